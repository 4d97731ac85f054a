"""Drivers of BMCs against real services: ``ipmi_sim``, the Redfish emulator, and a program of ours."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from lab.bmc import PASSWORD, USERNAME, Ipmi, Redfish, StateFile, Strip
from tests.conformance.claims import Subject
from tests.conformance.ports import harness
from tests.support.odd_redfish import OddRedfish

from outlive.drivers.bmc import DRIVERS, Credential, PowerControllers, ProgramDriver
from outlive.node.ports import PowerPort, PowerReading
from outlive.resources import FencingSpec, Hypervisor, HypervisorSpec, ObjectMeta

Kind = Callable[[Path, str, str, Sequence[str]], Ipmi | Redfish | Strip]
LIMIT_S = 30.0
"""Of a call, …"""
SHORT_S = 4.0
"""… and where a controller is dead or slow."""
SLOW_S = 6.0


async def credential(secret: str) -> Credential:
    return Credential(USERNAME, PASSWORD)


class _Killable:
    """The port in a process that may be killed: its calls end with it, unanswered."""

    def __init__(self, port: PowerPort) -> None:
        self._port = port
        self._calls: dict[asyncio.Task[object], None] = {}

    def kill(self) -> None:
        for call in self._calls:
            call.cancel()

    async def read(self, host: Hypervisor) -> PowerReading:
        return await self._called(self._port.read(host))

    async def power_off(self, host: Hypervisor) -> None:
        await self._called(self._port.power_off(host))

    async def power_on(self, host: Hypervisor) -> None:
        await self._called(self._port.power_on(host))

    async def check(self, host: Hypervisor) -> str:
        return await self._called(self._port.check(host))

    async def _called(self, call):
        task = asyncio.ensure_future(call)
        self._calls[task] = None
        try:
            return await task
        finally:
            self._calls.pop(task, None)


class RealPower:
    """See ``harness.PowerHarness``."""

    settle_s = 0.3

    def __init__(self, path: Path, driver: str, kind: Kind) -> None:
        self._systems = {name: StateFile(path / f"system-{name}").create() for name in ("a", "b", "c")}
        uuids = {name: str(uuid.uuid4()) for name in ("a", "b")}
        self._controllers = {name: kind(path, name, said, self._systems[name].hook) for name, said in uuids.items()}
        self._name = driver
        self._path = path
        self._last: _Killable | None = None
        self._hampered: set[str] = set()
        """Those that are dead or slow."""
        for one in self._controllers.values():
            one.start()

    def close(self) -> None:
        for one in self._controllers.values():
            one.stop()

    def driver(self) -> PowerPort:
        drivers = {**DRIVERS, "command": ProgramDriver(Strip.program(self._path))}
        limit_s = SHORT_S if self._hampered else LIMIT_S
        self._last = _Killable(PowerControllers(credential, limit_s=limit_s, drivers=drivers))
        return self._last

    def kill(self) -> None:
        assert self._last is not None
        self._last.kill()

    def host(self, name: str) -> Hypervisor:
        fencing = FencingSpec()
        if name in self._controllers:
            one = self._controllers[name]
            fencing = FencingSpec(
                driver=self._name,
                address=one.address,
                secret="controllers",
                system_uuid=one.system_uuid,
                options=options_of(one),
            )
        return Hypervisor(metadata=ObjectMeta(name=name), spec=HypervisorSpec(fencing=fencing))

    def is_on(self, host: str) -> bool:
        return self._systems[host].is_on

    def boots(self, host: str) -> int:
        return self._systems[host].boots

    def commands(self, host: str) -> int:
        return self._controllers[host].commands

    def set_mode(self, host: str, mode: str) -> None:
        one = self._controllers[host]
        (self._hampered.add if mode in ("dead", "slow") else self._hampered.discard)(host)
        one.slow(SLOW_S if mode == "slow" else 0)
        one.lie(mode == "lying")
        if mode == "dead":
            one.stop()
        else:
            one.start()

    def wire(self, host: str, to: str) -> None:
        self._controllers[host].rewire(self._controllers[to].system_uuid, self._systems[to].hook)


def options_of(controller: Ipmi | Redfish | Strip) -> dict[str, str]:
    if isinstance(controller, OddRedfish):
        return {}
    if isinstance(controller, Ipmi):
        return {"cipherSuite": "3"}
    if isinstance(controller, Strip):
        return {"command": Strip.PROGRAM}
    return {"certificateAuthority": controller.certificate.read_text(encoding="utf-8")}


def _subject(driver: str, kind: Kind, component: str = "", name: str = "") -> Subject[harness.PowerHarness]:
    @asynccontextmanager
    async def opened(path: Path) -> AsyncIterator[harness.PowerHarness]:
        with contextlib.closing(RealPower(path, driver, kind)) as one:
            yield one

    return Subject(name or driver, opened, component=component)


def _odd(oddities: str) -> Subject[harness.PowerHarness]:
    return _subject("redfish", partial(OddRedfish, oddities=oddities), name=f"redfish-{oddities}")


POWER: tuple[Subject[harness.PowerHarness], ...] = (
    _subject("ipmi", Ipmi, "ipmi"),
    _subject("redfish", Redfish),
    _subject("command", Strip),
    _odd("slash+session+oem+bom"),
    _odd("moved+info+moody"),
)
