"""Network isolation as a host sees it that isolates nobody itself: ``CutPort`` for ports that others have cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from outlive.base import NotFound
from outlive.node.ports import CutPort, CutReport

SCOPE: Final = "port:"
REMEDY: Final = "set network.northbound in node.yaml of each coordinator"


class ArrivedPorts(CutPort):
    """``CutPort`` of a host that isolates nobody from ports: what is recorded as isolated from one has arrived."""

    def select(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        """None."""
        return ()

    async def cut(self, host: str, epoch: int, scope: tuple[str, ...]) -> None:
        """Nobody here can."""
        raise NotFound(f"this host cannot shut {host} out of networks", remedy=REMEDY)

    async def read_back(self, host: str, epoch: int) -> CutReport:
        """Nobody here can."""
        raise NotFound(f"this host cannot see what networks {host} is shut out of", remedy=REMEDY)

    async def wait_isolated(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        """All ports: ``OvnCuts`` reports no port before every chassis has it."""
        return tuple(one for one in scope if one.startswith(SCOPE))

    async def lift(self, host: str, epoch: int) -> None:
        """Nobody here can."""
        raise NotFound(f"this host cannot let {host} into networks", remedy=REMEDY)

    async def list_hosts(self) -> Mapping[str, int]:
        """Nobody here can say."""
        raise NotFound("this host cannot see who is shut out of networks", remedy=REMEDY)
