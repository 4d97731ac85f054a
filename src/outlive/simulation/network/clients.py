"""OVN as processes of a virtual cluster reach it: the switch of their host, the databases, and who isolates ports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from outlive.base import Clock, NotFound, OutliveError
from outlive.node.ports import CutPort, CutReport
from outlive.simulation.network.databases import OvnClient
from outlive.simulation.network.fabric import Fabric, chassis_of
from outlive.simulation.process import Process

LOOK_S: Final = 0.05
"""How often a host's switch is asked whether it has flows."""
PORT: Final = "port:"


class ProcessOvnClient(OvnClient):
    """A process of a virtual cluster. ``reaches``: whether its host is on the network of the databases."""

    def __init__(self, process: Process, reaches: Callable[[], bool], kill: Callable[[], None]) -> None:
        self._process = process
        self._reaches = reaches
        self._kill = kill

    async def travel(self, clock: Clock, seconds: float) -> None:
        """As the base says."""
        self._process.check()
        await clock.sleep(seconds)
        self._process.check()

    def is_reachable(self) -> bool:
        """As the base says."""
        return self._reaches()

    def crash(self) -> None:
        """As the base says."""
        self._kill()
        self._process.check()


class SimulatedHostSwitch:
    """The switch of one host: ``HostSwitch``."""

    def __init__(self, fabric: Fabric, host: str, clock: Clock, process: Process) -> None:
        self._fabric = fabric
        self._host = host
        self._clock = clock
        self._process = process

    async def start(self) -> None:
        """It is there."""

    async def read_chassis(self) -> str:
        """As the fabric names it."""
        self._process.check()
        return chassis_of(self._host)

    async def read_devices(self) -> dict[str, str]:
        """None: nobody sends frames here."""
        return {}

    async def wait_installed(self, interfaces: Collection[str], limit_s: float) -> tuple[str, ...]:
        """See the protocol."""
        end_s = self._clock.monotonic() + limit_s
        while True:
            self._process.check()
            missing = tuple(one for one in interfaces if not self._fabric.is_installed(self._host, one))
            if not missing or self._clock.monotonic() >= end_s:
                return missing
            await self._clock.sleep(LOOK_S)


class SplitCuts(CutPort):
    """Disks, and ports that are on no network of OVN, by one; ports that are, by another."""

    def __init__(self, fabric: Fabric, disks: CutPort, ports: CutPort) -> None:
        self._fabric = fabric
        self._disks = disks
        self._ports = ports

    def select(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        """As ``CutPort``."""
        disks, ports = self._split(scope)
        return (*self._disks.select(disks), *self._ports.select(ports))

    async def cut(self, host: str, epoch: int, scope: tuple[str, ...]) -> None:
        """As ``CutPort``; one that fails spoils no other."""
        failed: list[OutliveError] = []
        parts = [part for part in zip((self._disks, self._ports), self._split(scope), strict=True) if part[1]]
        for part, meant in parts:
            try:
                await part.cut(host, epoch, meant)
            except OutliveError as error:
                failed.append(error)
        if failed and len(failed) == len(parts):
            raise failed[0]

    async def read_back(self, host: str, epoch: int) -> CutReport:
        """As ``CutPort``: what either says; one that does not answer hides nothing of the other."""
        reports: list[CutReport] = []
        failed: list[OutliveError] = []
        for part in (self._disks, self._ports):
            try:
                reports.append(await part.read_back(host, epoch))
            except NotFound:
                continue
            except OutliveError as error:
                failed.append(error)
        if not reports:
            raise failed[0] if failed else NotFound(f"nobody can shut {host} out")
        return CutReport(
            scope=tuple(sorted({one for report in reports for one in report.scope})),
            evidence="; ".join(one.evidence for one in reports if one.evidence),
            unanswered=failed[0].message if failed else "",
        )

    async def wait_isolated(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        """As ``CutPort``."""
        disks, ports = self._split(scope)
        return (*await self._disks.wait_isolated(disks), *(await self._ports.wait_isolated(ports) if ports else ()))

    async def lift(self, host: str, epoch: int) -> None:
        """As ``CutPort``; both are asked before the first that fails is told of."""
        failed: list[OutliveError] = []
        for part in (self._disks, self._ports):
            try:
                await part.lift(host, epoch)
            except NotFound:
                continue
            except OutliveError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    async def list_hosts(self) -> Mapping[str, int]:
        """As ``CutPort``; one that does not answer hides nothing of the other."""
        found: dict[str, int] = {}
        failed: list[OutliveError] = []
        for part in (self._disks, self._ports):
            try:
                for host, through in (await part.list_hosts()).items():
                    found[host] = min(through, found.get(host, through))
            except OutliveError as error:
                failed.append(error)
        if len(failed) == 2:
            raise failed[0]
        return found

    def _split(self, scope: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        ports = tuple(one for one in scope if one.startswith(PORT) and self._fabric.vm_of(one.removeprefix(PORT)))
        return tuple(one for one in scope if one not in ports), ports
