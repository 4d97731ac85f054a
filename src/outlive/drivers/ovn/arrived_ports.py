"""Network isolation as a host sees it that isolates nobody itself: ``CutPort`` for ports that others have cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from outlive.base.errors import NotFound
from outlive.node.ports import CutPort, CutReport

SCOPE: Final = "port:"


class ArrivedPorts(CutPort):
    """``CutPort`` of a host that isolates nobody from ports: what is recorded as isolated from one has arrived."""

    async def cut(self, host: str, epoch: int, scope: tuple[str, ...]) -> None:
        """Nobody here can."""
        raise NotFound(f"this host cannot shut {host} out of networks", remedy="set network.northbound in node.yaml")

    async def read_back(self, host: str, epoch: int) -> CutReport:
        """Nobody here can."""
        raise NotFound(f"this host cannot shut {host} out of networks", remedy="set network.northbound in node.yaml")

    async def barrier(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        """All ports: ``OvnCuts`` reports no port before every chassis has it."""
        return tuple(one for one in scope if one.startswith(SCOPE))

    async def lift(self, host: str, epoch: int) -> None:
        """There is nothing."""

    async def hosts(self) -> Mapping[str, int]:
        """None that is known here."""
        return {}
