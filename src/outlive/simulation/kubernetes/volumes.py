"""What this Kubernetes needs of a DRBD cluster, and ``drbdsetup`` as one node has it.

``Volumes`` is what pods write to and what the network between nodes does to it; ``simulation.drbd`` is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from outlive.base import OutliveError, Random
from outlive.runtime import outside_parts
from outlive.simulation.process import Process
from outlive.storage import CommandOutput

COMMAND_S: Final = (0.01, 0.06)
"""What a command takes, from and to."""


class AcknowledgedWrite(Protocol):
    """A write that was acknowledged."""

    @property
    def node(self) -> str:
        """Where it was written."""
        ...

    @property
    def at_s(self) -> float:
        """When."""
        ...

    @property
    def survives(self) -> bool:
        """Whether it is in the data of the side with quorum."""
        ...


class Volumes(Protocol):
    """A DRBD cluster; nodes and resources by name."""

    def create(self, name: str, *, disks: Sequence[str], diskless: Sequence[str], quorum: str) -> None:
        """A new resource, all of whose data is up to date."""
        ...

    async def open(self, node: str, resource: str) -> Any:
        """Open the device, which promotes it; raises ``OutliveError`` or ``OSError`` if that is refused."""
        ...

    async def write(self, opener: Any) -> object:
        """Return once a write is acknowledged; waits while I/O is suspended, raises ``OSError`` on an I/O error."""
        ...

    def close(self, opener: Any) -> None:
        """Close the device; the last one who does demotes it."""
        ...

    def force_secondary(self, node: str, resource: str) -> None:
        """``drbdsetup secondary --force``."""
        ...

    def status_text(self, node: str, resource: str | None = None) -> str:
        """``drbdsetup status --json``."""
        ...

    def show_text(self, node: str, resource: str | None = None) -> str:
        """``drbdsetup show --json``."""
        ...

    def follow_events(self, node: str) -> AsyncGenerator[str, None]:
        """Lines of ``drbdsetup events2``: what there is, then changes."""
        ...

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Nothing comes from ``a`` to ``b``, nor back unless ``one_way``."""
        ...

    def heal(self, a: str, b: str) -> None:
        """Both ways work."""
        ...

    def crash(self, node: str) -> None:
        """The node is off: its openers are gone, and its disks keep what they have."""
        ...

    def boot(self, node: str) -> None:
        """The node is on, with its resources up and connecting."""
        ...

    def find_writers(self, resource: str) -> Iterable[str]:
        """Nodes whose writes can complete now."""
        ...

    def find_quorate(self, resource: str) -> Iterable[str]:
        """Nodes that have quorum, not counting peers that they are about to lose."""
        ...

    def list_writes(self, resource: str) -> Iterable[AcknowledgedWrite]:
        """Acknowledged writes, oldest first."""
        ...


class NodeDrbdTool:
    """``DrbdTool``: ``drbdsetup`` of one node as one process runs it.

    ``hangs`` says whether commands hang at the moment, ``garbled`` what they print instead, if anything.
    """

    def __init__(
        self,
        volumes: Volumes,
        node: str,
        process: Process,
        *,
        random: Random,
        hangs: Callable[[], bool],
        garbled: Callable[[], str | None],
    ) -> None:
        self._volumes = volumes
        self._node = node
        self._process = process
        self._random = random
        self._hangs = hangs
        self._garbled = garbled
        self._in_kernel = outside_parts()
        """What the model of DRBD goes on to do by itself is not the process's."""

    async def is_loaded(self) -> bool:
        """DRBD is always loaded."""
        return True

    async def run(self, argv: Sequence[str], *, limit_s: float | None) -> CommandOutput:
        """What the command prints; one that hangs is killed after ``limit_s``."""
        self._process.check()
        took_s = self._random.uniform(*COMMAND_S)
        if self._hangs():
            took_s = limit_s if limit_s is not None else float("inf")
        if took_s == float("inf"):
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(took_s)
        self._process.check()
        if self._hangs():
            return CommandOutput(argv=tuple(argv), exit=None, timed_out=True, stdout="", stderr="")
        exit_code, stdout, stderr = self._in_kernel.run(self._carry_out, argv[1:])
        return CommandOutput(argv=tuple(argv), exit=exit_code, timed_out=False, stdout=stdout, stderr=stderr)

    def _carry_out(self, arguments: Sequence[str]) -> tuple[int, str, str]:
        words = [one for one in arguments if not one.startswith("--")]
        if words[0] in ("status", "show") and (garbled := self._garbled()) is not None:
            return 0, garbled, ""
        try:
            match words:
                case ["status", *rest]:
                    return 0, self._volumes.status_text(self._node, rest[0] if rest else None), ""
                case ["show", *rest]:
                    return 0, self._volumes.show_text(self._node, rest[0] if rest else None), ""
                case ["secondary", resource]:
                    self._volumes.force_secondary(self._node, resource)
                    return 0, "", ""
        except (OutliveError, OSError, KeyError) as error:
            return 10, "", str(error)
        return 20, "", f"{' '.join(arguments)}: not simulated"

    async def follow_events(self) -> AsyncGenerator[str, None]:
        """Lines of ``events2``, until the process is killed."""
        async for line in self._volumes.follow_events(self._node):
            self._process.check()
            yield line
