"""Hosts that renew, BMCs that misbehave, and fencers that watch them, on one memory store."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from outlive.base import Conflict, LoopClock, NotFound, Random, SeededIds, Unavailable, Unknown
from outlive.node.fencing import Fencer, FencerContext
from outlive.node.ports import PowerReading, PowerRefused, PowerState
from outlive.resources import (
    Assigned,
    Cluster,
    ClusterSpec,
    Fault,
    FencingPolicy,
    FencingSpec,
    GuardRecord,
    Holder,
    Hypervisor,
    HypervisorSpec,
    HypervisorStatus,
    MemberRecord,
    Membership,
    ObjectMeta,
    SilentPeer,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
)
from outlive.runtime import DecisionLog, FaultRecorder, Metrics, OrderedTaskGroup
from outlive.store import MemoryStore, list_all
from tests.support.field_writers import WriterStore
from tests.support.remembering_log import RememberingLog

ARMED = GuardRecord(armed=True, timeout_s=5, watchdog_s=10)


class Controller:
    """The BMC of one host."""

    def __init__(self, name: str) -> None:
        self.system = f"uuid-{name}"
        self.on = True
        self.mode = "ok"
        """``dead``, ``lying`` (says off and does nothing), ``stuck`` (does nothing and says so),
        ``always-off`` (does nothing and says off), ``refuses`` (answers no to orders), ``unsure`` (answers that it does
        not know the order)."""
        self.obstacle = ""
        """What a check finds."""
        self.delay_s = 0.05
        self.offs: list[float] = []
        self.ons: list[float] = []


class Power:
    """All BMCs."""

    def __init__(self) -> None:
        self.controllers: dict[str, Controller] = {}
        self.reads: Counter[str] = Counter()

    async def _reach(self, host: Hypervisor) -> Controller:
        controller = self.controllers.get(host.name)
        if controller is None:
            raise NotFound("none")
        await asyncio.sleep(controller.delay_s)
        if controller.mode == "dead":
            raise Unavailable("no route to it")
        return controller

    async def read(self, host: Hypervisor) -> PowerReading:
        self.reads[host.name] += 1
        controller = await self._reach(host)
        off = not controller.on or (controller.mode == "lying" and bool(controller.offs))
        off = off or controller.mode == "always-off"
        return PowerReading(state=PowerState.OFF if off else PowerState.ON, system_uuid=controller.system)

    async def power_off(self, host: Hypervisor) -> None:
        controller = await self._reach(host)
        controller.offs.append(LoopClock().monotonic())
        if controller.mode == "refuses":
            raise PowerRefused("user op may not do that: the account is read-only")
        if controller.mode == "unsure":
            raise Unknown("it may or may not switch off: ForceOff is not supported for Reset")
        if controller.mode == "ok":
            controller.on = False

    async def check(self, host: Hypervisor) -> str:
        return (await self._reach(host)).obstacle

    async def power_on(self, host: Hypervisor) -> None:
        controller = await self._reach(host)
        controller.ons.append(LoopClock().monotonic())
        controller.on = True


@dataclass
class Eyes:
    """The observer that a fencer belongs to."""

    own_age_s: float = 0.0
    connected: bool = True
    silent: tuple[SilentPeer, ...] = ()
    """What the fencer has its host publish with its next renewal."""
    at_once: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it wants that at once."""
    early: int = 0
    """How often it wanted that."""

    def publish_silent(self, silent: tuple[SilentPeer, ...], *, soon: bool) -> None:
        self.silent = silent
        if soon:
            self.early += 1
            self.at_once.set()


class SleepyClock(LoopClock):
    """Of a host that has slept."""

    slept_s = 0.0

    def latest(self) -> float:
        return super().latest() + self.slept_s


class SlowClock(LoopClock):
    """It tells moments apart that are one to the event loop."""

    def monotonic(self) -> float:
        return super().monotonic() / 4


class Interposed:
    """A store that does something first where a document is read, and afterwards where a kind was listed."""

    def __init__(self, inner) -> None:
        self._inner = inner
        self.reading = None
        """Called with kind and name, if set."""
        self.listed = None
        """Awaited with the kind, if set."""

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def get(self, kind, name, *, fresh=False):
        if self.reading is not None:
            self.reading(kind, name)
        return await self._inner.get(kind, name, fresh=fresh)

    async def list(self, kind, **how):
        page = await self._inner.list(kind, **how)
        if self.listed is not None:
            await self.listed(kind)
        return page

    def fail(self, host: str, error: Exception) -> None:
        """Let every read of that host's settings end so."""

        def reading(kind, name) -> None:
            if kind is Hypervisor and name == host:
                raise error

        self.reading = reading


@dataclass
class Watch:
    """One fencer, and what it runs on."""

    fencer: Fencer
    eyes: Eyes
    decisions: DecisionLog
    task: asyncio.Task | None = None


@dataclass
class Site:
    """See the module. Use ``async with``."""

    store: MemoryStore
    power: Power = field(default_factory=Power)
    fencers: dict[str, Watch] = field(default_factory=dict)
    renewing: dict[str, asyncio.Task] = field(default_factory=dict)
    group: OrderedTaskGroup = field(default_factory=OrderedTaskGroup)
    t0: float = 0.0

    async def __aenter__(self) -> Site:
        await self.group.__aenter__()
        self.t0 = LoopClock().monotonic()
        return self

    async def __aexit__(self, *error) -> None:
        for task in list(self.group._tasks):
            task.cancel()
        await self.group.__aexit__(*error)

    def now(self) -> float:
        return LoopClock().monotonic() - self.t0

    # Making things

    async def host(
        self,
        name: str,
        *,
        rack: str = "",
        switch: str = "",
        bmc: str = "ok",
        guard: GuardRecord = GuardRecord(),
        mode: str = "coordinator",
        renews: float = 1.0,
        board: str = "",
        **fencing,
    ) -> None:
        if bmc:
            self.power.controllers[name] = Controller(name)
            self.power.controllers[name].mode = bmc
            fencing = {"driver": "redfish", "address": name, "system_uuid": f"uuid-{name}", **fencing}
        domains = {"rack": rack, "switch": switch}
        labels = {f"outlive.dev/domain-{kind}": value for kind, value in domains.items() if value}
        spec = HypervisorSpec(mode=mode, fencing=FencingSpec(**fencing))
        await self.store.create(Hypervisor(metadata=ObjectMeta(name=name, labels=labels), spec=spec))
        machine = f"m-{name}.{board}" if board else f"m-{name}"
        record = MemberRecord(machine_id=machine, boot_id="b1", nonce=f"nonce-{name}", seq=1, guard=guard)
        await self.store.create(Membership(metadata=ObjectMeta(name=name), record=record))
        self.renew(name, renews)

    async def hosts(self, *names: str, **each) -> None:
        for name in names:
            await self.host(name, **each)

    def renew(self, name: str, every_s: float = 1.0) -> None:
        """Let the host's daemon live."""
        self.renewing[name] = self.group.create_task(self._renew(name, every_s))

    async def _renew(self, name: str, every_s: float) -> None:
        while True:
            await self._rest(name, every_s)
            current = await self.store.get(Membership, name, fresh=True)
            if current.record.state != "Held":
                return
            silent = self.fencers[name].eyes.silent if name in self.fencers else ()
            try:
                await self.write(current, seq=current.record.seq + 1, silent=silent)
            except Conflict:
                continue

    async def _rest(self, name: str, every_s: float) -> None:
        """Until the next renewal, which a fencer may bring forward."""
        if name not in self.fencers:
            await asyncio.sleep(every_s)
            return
        at_once = self.fencers[name].eyes.at_once
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(at_once.wait(), every_s)
        at_once.clear()

    async def write(self, current: Membership, **changes) -> Membership:
        record = msgspec.structs.replace(current.record, **changes)
        return await self.store.replace(msgspec.structs.replace(current, record=record))

    def silence(self, *names: str) -> None:
        """The hosts' daemons die."""
        for name in names:
            self.renewing.pop(name).cancel()

    async def come_back(self, name: str, *, boot: str = "b2") -> None:
        """The host joins again after a boot."""
        current = await self.store.get(Membership, name, fresh=True)
        epoch = current.record.epoch
        await self.write(
            current, boot_id=boot, epoch=epoch + 1, state="Held", seq=current.record.seq + 1, dead_through=epoch
        )
        self.renew(name)

    async def policy(self, *, cluster: dict | None = None, **fencing) -> None:
        """Change the cluster's policy."""
        spec = ClusterSpec(fencing=FencingPolicy(**fencing), **(cluster or {}))
        try:
            current = await self.store.get(Cluster, "default")
        except NotFound:
            await self.store.create(Cluster(metadata=ObjectMeta(name="default"), spec=spec))
            return
        await self.store.replace(msgspec.structs.replace(current, spec=spec))

    async def change_fencing(self, host: str, **fencing) -> None:
        """Change a host's own settings."""
        current = await self.store.get(Hypervisor, host)
        changed = msgspec.structs.replace(current.spec.fencing, **fencing)
        spec = msgspec.structs.replace(current.spec, fencing=changed)
        await self.store.replace(msgspec.structs.replace(current, spec=spec))

    async def report(self, host: str, **status) -> None:
        """Let the host's daemon report."""
        current = await self.store.get(Hypervisor, host)
        await self.store.replace_status(
            msgspec.structs.replace(
                current, status=msgspec.structs.replace(current.status or HypervisorStatus(), **status)
            )
        )

    async def vm(self, name: str, *, holder: str, disks=("disk-1",), ports=("port-1",)) -> VirtualMachine:
        """A VM that runs on a host."""
        made = await self.store.create(
            VirtualMachine(metadata=ObjectMeta(name=name), spec=VirtualMachineSpec(disks=disks, ports=ports))
        )
        uid = (await self.store.get(Membership, holder)).metadata.uid
        held = Holder(hypervisor=holder, member_uid=uid, epoch=1, run_id="r1")
        status = VirtualMachineStatus(holders=(held,), assigned=Assigned(hypervisor=holder))
        return await self.store.replace_status(msgspec.structs.replace(made, status=status))

    async def release(self, vm: VirtualMachine) -> None:
        """Nobody holds it any more."""
        status = msgspec.structs.replace(vm.status, holders=())
        await self.store.replace_status(msgspec.structs.replace(vm, status=status))

    def watch(self, name: str, *, clock=None, cut=None, store=None) -> Watch:
        """Start the fencer of that host."""
        clock = clock or LoopClock()
        store = WriterStore(store or self.store, writer="fencer")
        eyes, decisions = Eyes(), RememberingLog(clock)
        context = FencerContext(
            store,
            host=name,
            observer=eyes,
            power=self.power,
            cut=cut,
            clock=clock,
            random=Random(1),
            decisions=decisions,
        )
        fencer = Fencer(
            context, ids=SeededIds(Random(2)), faults=FaultRecorder(store, clock, "fencer", name), metrics=Metrics()
        )
        watch = self.fencers[name] = Watch(fencer, eyes, decisions)
        watch.task = self.group.create_task(fencer.run())
        return watch

    def kill(self, name: str) -> None:
        """The fencer dies where it stands."""
        watch = self.fencers.pop(name)
        assert watch.task is not None
        watch.task.cancel()

    # Looking

    async def record(self, name: str) -> MemberRecord:
        return (await self.store.get(Membership, name, fresh=True)).record

    async def until(self, name: str, holds, *, limit_s: float = 120.0) -> float:
        """When the record first fulfils ``holds``, looked at ten times a second."""
        end = self.now() + limit_s
        while self.now() < end:
            if holds(await self.record(name)):
                return self.now()
            await asyncio.sleep(0.1)
        raise AssertionError(f"{name} after {limit_s} s: {await self.record(name)}")

    async def until_dead(self, name: str, *, limit_s: float = 120.0) -> float:
        return await self.until(name, lambda record: record.dead_through >= record.epoch, limit_s=limit_s)

    async def faults(self) -> dict[str, Fault]:
        return {one.name: one async for one in list_all(self.store, Fault) if not one.ended}


def site() -> Site:
    """An empty one."""
    return Site(MemoryStore(LoopClock(), SeededIds(Random(1))))


BEFORE_S = 20.0
"""Long enough for every fencer's grace and first rehearsals."""


async def four_hosts(s: Site, *fencers: str, **last) -> None:
    """Hosts ``a`` to ``d``; ``last`` is of the last one."""
    await s.hosts("a", "b", "c")
    await s.host("d", **last)
    for name in fencers or ("a",):
        s.watch(name)
    await asyncio.sleep(BEFORE_S)


async def build_racks(s: Site, count: int, *, per_rack: int = 2, **options) -> list[str]:
    """Add hosts ``h0`` to ``h<count - 1>``, so many in a rack; their names."""
    names = [f"h{number}" for number in range(count)]
    for number, name in enumerate(names):
        await s.host(name, rack=f"r{number // per_rack}", **options)
    return names


async def list_revoked(s: Site, names: Iterable[str]) -> list[str]:
    """Names of those hosts whose Membership is revoked."""
    return [name for name in names if (await s.record(name)).state == "Revoked"]
