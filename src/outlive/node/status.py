"""What this host publishes of itself: ``Hypervisor.status`` when it changes, ``HypervisorUsage`` every interval.

The virtual machines that are here and what they take stand in one document and change together: the block of a slot
that a virtual machine was recovered into becomes allocation in the very write that lists it. What is published is as
old as the last listing of the domains; nothing is safe because of it. Decision ``keepalive.cycle`` says which figures
are published when some of them come late or not at all.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Literal

import msgspec

from outlive import __version__
from outlive.base import OutliveError, as_datetime, deadline, get_logger, join_parts
from outlive.node.fencing.policy import DAEMON_CONDITION, Departure
from outlive.node.health_monitor import HealthMonitor
from outlive.node.ports import DomainState
from outlive.node.vm.context import GuestCounts, Statistics, VmContext
from outlive.node.vm.states import is_to_run, state_of
from outlive.resources import (
    Amounts,
    Condition,
    HostSchema,
    HostUsage,
    Hypervisor,
    HypervisorStatus,
    HypervisorUsage,
    Instance,
    ObjectMeta,
    ObjectRef,
    VirtualMachine,
    with_condition,
)
from outlive.resources import DomainState as HostDomainState
from outlive.resources.reasons import FaultCode
from outlive.runtime import Amount, Decision, Number, Positive
from outlive.store import change_status, compare_and_swap
from outlive.store.schema import active_schema, latest_version


class AccountedVm(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine that is on the host, assigned to it, or both. Memory in MiB."""

    uuid: str
    node: str | None
    active_here: bool
    paused: bool = False
    live_memory: Amount = 0
    """What it has now, where it runs."""
    xml_memory: Amount = 0
    """What it is configured to have."""
    vcpus: Amount = 0
    state: str = ""


class AccountInput(msgspec.Struct, frozen=True, kw_only=True):
    """A host and its virtual machines."""

    node: str
    memory_total: Amount
    vms: tuple[AccountedVm, ...]


class AccountResult(msgspec.Struct, frozen=True, kw_only=True):
    """The figures. Memory in MiB."""

    allocated: Number
    provisioned: Number
    vcpu_allocated: Number
    domains_count: int
    """Domains that the hypervisor has, paused ones included."""
    running: tuple[str, ...]
    stats_for: tuple[str, ...]
    """Whose statistics may be asked for: a paused domain would let the question hang."""
    overprovisioned: bool


def account_node(given: AccountInput) -> AccountResult:
    """Add up; everything in the order in which it was given."""
    running = [vm for vm in given.vms if vm.active_here and not vm.paused]
    down = [vm for vm in given.vms if vm.node == given.node and (vm.paused or not vm.active_here)]
    allocated = sum(vm.live_memory for vm in running)
    provisioned = allocated + sum(vm.xml_memory for vm in down)
    names = tuple(vm.uuid for vm in running)
    return AccountResult(
        allocated=allocated,
        provisioned=provisioned,
        vcpu_allocated=sum(vm.vcpus for vm in running),
        domains_count=sum(vm.active_here for vm in given.vms),
        running=names,
        stats_for=names,
        overprovisioned=provisioned > given.memory_total,
    )


ACCOUNT_NODE: Final = Decision(
    "account.node", account_node, AccountInput, AccountResult, "What a host's virtual machines take", lambda _: True
)


RESERVE_S: Final = 1
"""Seconds before the next cycle in which collectors must have ended."""


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What one collector brought, and how long that took in seconds."""

    start: Literal["ok", "connect_error"]
    duration: Amount = 0
    values: dict[str, Any] = {}


class KeepaliveInput(msgspec.Struct, frozen=True, kw_only=True):
    """A cycle: its interval in seconds, all collectors by name, and the figures of the cycle before."""

    interval: Positive
    collectors: dict[str, Collected]
    previous: dict[str, Any] = {}


class KeepaliveResult(msgspec.Struct, frozen=True, kw_only=True):
    """What is written, and who is missing. Times in seconds from the start of the cycle."""

    stamp_at: float
    written: dict[str, Any]
    stale: tuple[str, ...]
    warnings: tuple[str, ...]
    cycle_time: Number


def keepalive_cycle(given: KeepaliveInput) -> KeepaliveResult:
    """Merge what came in time over what was known; of two collectors of one figure the later name wins."""
    budget = max(given.interval - RESERVE_S, 0)
    written = dict(given.previous)
    warnings: dict[str, str] = {}
    for name, collected in sorted(given.collectors.items()):
        if collected.start == "connect_error":
            warnings[name] = f"connect:{name}"
        elif collected.duration > budget:
            warnings[name] = f"timeout:{name}"
        else:
            written.update(collected.values)
    spent = [min(each.duration, budget) for each in given.collectors.values() if each.start == "ok"]
    return KeepaliveResult(
        stamp_at=0.0,
        written=written,
        stale=tuple(sorted(warnings)),
        warnings=tuple(sorted(warnings.values())),
        cycle_time=max(spent, default=0.0),
    )


TRIES: Final = 2
"""Writes of the figures before they wait for the next interval."""
COLLECT_S: Final = 0.05
"""How long changes are collected before they are published together."""
RETRY_S: Final = 1.0
"""The wait after a report that did not get through."""
MEBIBYTE: Final = 1 << 20
LATEST_SCHEMA: Final = latest_version()
"""The newest storage schema that this version knows, which an upgrade of its files must not change while it runs."""
SOURCE: Final = "daemon"
HYPERVISOR_TYPE: Final = "kvm"
"""What runs VMs on every host with this daemon, as placement knows it: where nobody says, placement offers no host."""
STALE_CYCLES: Final = 3
"""So many intervals without fresh figures are a fault."""
ASKED: Final = {"domains": "its hypervisor service", "guests": "its hypervisor service", "machine": "its kernel"}
"""Who brings the figures of each collector."""

_replace = msgspec.structs.replace
_log = get_logger("node.status")


KEEPALIVE_CYCLE: Final = Decision(
    "keepalive.cycle",
    keepalive_cycle,
    KeepaliveInput,
    KeepaliveResult,
    "What a keepalive publishes",
    lambda output: not output.stale,
)


class HostReporter:
    """See the module. ``notify`` says that something may have changed."""

    def __init__(self, node: VmContext, health: HealthMonitor) -> None:
        self.domain_state: HostDomainState = ""
        """Whether the host takes virtual machines, as its draining says; empty: leave what is there."""
        self.key_ids: tuple[str, ...] = ()
        """Of the cluster's keys that this host has."""
        self.authorities: tuple[str, ...] = ()
        """Fingerprints of the server's authorities that this host believes."""
        self.stopping = ""
        """Why the host is about to stop; empty while it is not."""
        self.departure = Departure.DAEMON
        """What stops then."""
        self._node = node
        self._health = health
        self._stale_cycles: dict[str, int] = {}
        """Who brought no figures → in how many intervals one after the other."""
        self._usage_s = float(node.settings.usage)
        self._usage_due_s = 0.0
        self._needs: dict[str, Amounts] = {}
        """What each virtual machine here takes, kept while it is on its way to another host."""
        self._figures: dict[str, Any] = {}
        self._counts: dict[str, tuple[GuestCounts, float]] = {}
        """Virtual machine → what it had used at the last count, and when that was (monotonic)."""
        self._stale: tuple[str, ...] = ()
        """Who did not bring any to the latest figures."""
        self._present: tuple[str, ...] | None = None
        """What was here at the look for the latest figures; ``None``: the hypervisor did not say."""
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Publish soon, if anything differs."""
        self._changed.set()

    async def run(self) -> None:
        """Publish what changed, until cancelled."""
        end = self._node.informer.subscribe(self._vm_changed)
        try:
            while True:
                await self._changed.wait()
                await self._node.clock.sleep(COLLECT_S)
                self._changed.clear()
                if not await self.report():
                    await self._node.clock.sleep(RETRY_S)
                    self._changed.set()
        finally:
            end()

    async def report(self) -> bool:
        """Publish what differs from what is published; whether that is done."""
        if not self._node.domains.looked:
            return True

        chassis = await self._node.network.find_chassis()

        def build_status(found: Hypervisor) -> HypervisorStatus | None:
            status = self._build_status(found, chassis)
            if status is None or status == found.status:
                return None
            return _replace(status, observed_at=as_datetime(self._node.clock.now()))

        try:
            node = self._node
            found = await change_status(node.store, Hypervisor, node.host, build_status, clock=node.clock)
        except OutliveError as error:
            _log.warning("report.not_written", host=self._node.host, error=str(error))
            return False
        return found is not None and chassis is not None

    def _build_status(self, found: Hypervisor, chassis: str | None) -> HypervisorStatus:
        present = self._node.domains.list_present()
        capacity, machine = self._node.machine.read_capacity(), self._node.machine.read_capabilities()
        links = self._node.links
        known = {one.vm: self._node.informer.get(one.vm) for one in present}
        objectives = [one for vm in self._node.informer.items() if (one := self._objective_of(vm)) is not None]
        self._needs = {
            one.vm: vm.spec.resources
            if (vm := known[one.vm]) is not None
            else self._needs.get(one.vm, Amounts(cpu=one.cpu_milli, memory=one.memory_bytes))
            for one in present
        }
        names = {name: vm.spec.display_name for name, vm in known.items() if vm is not None}
        status = _replace(
            found.status,
            capacity=capacity,
            effective_capacity=apply_overcommit(capacity, found.spec.overcommit),
            allocation=sum(self._needs.values(), Amounts(cpu=0, memory=0)),
            instances=tuple(
                Instance(id=one.vm, name=names.get(one.vm, ""), active=one.state is DomainState.RUNNING)
                for one in present
            ),
            num_instances=len(present),
            capabilities=machine if machine.cpu_arch else found.status.capabilities,
            version=__version__,
            schema=HostSchema(active=active_schema(self._node.store, self._node.desired.cluster), latest=LATEST_SCHEMA),
            storage_address=self._node.storage.own_address(),
            addresses={**self._node.networks, **(links.addresses if links is not None else {})},
            networks=links.made if links is not None else None,
            bridges=dict(links.bridge_of) if links is not None else {},
            chassis=chassis if chassis is not None else found.status.chassis,
            domain_capabilities=_replace(
                found.status.domain_capabilities,
                hypervisor_type=found.status.domain_capabilities.hypervisor_type or HYPERVISOR_TYPE,
            ),
            key_ids=self.key_ids,
            authorities=self.authorities,
            recovery_time_objective_s=min(objectives, default=None),
            degrading=self._health.published,
            storage_lost=self._node.losses.published if self._node.losses.looked else found.status.storage_lost,
            source=SOURCE,
        )
        if self.domain_state:
            status = _replace(status, domain_state=self.domain_state)
        return _replace(status, conditions=with_condition(status.conditions, self._ready_condition()))

    def _ready_condition(self) -> Condition:
        reason, message = "DaemonRuns", ""
        if self.stopping:
            reason, message = self.departure.value, self.stopping
        elif not self._node.lease.held:
            reason, message = "NotMember", "the host does not hold its membership"
        now = as_datetime(self._node.clock.now())
        status: Literal["True", "False"] = "False" if message else "True"
        return Condition(type=DAEMON_CONDITION, status=status, reason=reason, message=message, last_transition_time=now)

    def _objective_of(self, vm: VirtualMachine | None) -> float | None:
        """The objective of a virtual machine that is to run here."""
        if vm is None or vm.host != self._node.host or not is_to_run(vm):
            return None
        return vm.spec.recovery_time_objective_s

    def _vm_changed(self, old: VirtualMachine | None, new: VirtualMachine | None) -> None:
        if self._objective_of(old) != self._objective_of(new):
            self.notify()

    # Figures

    def figures_due(self) -> None:
        """Publish the figures at the next occasion."""
        self._usage_due_s = 0.0

    async def publish_figures(self) -> None:
        """Publish the figures, once in the interval. Errors of the store wait for the next one."""
        now_s = self._node.clock.monotonic()
        if now_s < self._usage_due_s:
            return
        self._usage_due_s = now_s + self._usage_s
        statistics = self._node.statistics
        counted = None if statistics is None else asyncio.ensure_future(self._collect_guests(statistics))
        try:
            collectors = {"domains": await self._collect_domains(), "machine": self._collect_machine()}
            if counted is not None:
                collectors["guests"] = await counted
        finally:
            if counted is not None:
                counted.cancel()
        cycle = KeepaliveInput(interval=max(self._usage_s, 1.0), collectors=collectors, previous=self._figures)
        result = self._node.decisions.use(KEEPALIVE_CYCLE, cycle, subject=self._node.host)
        self._figures, self._stale = result.written, result.stale
        subject = ObjectRef(kind="Hypervisor", name=self._node.host)
        self._stale_cycles = {name: self._stale_cycles.get(name, 0) + 1 for name in self._stale}
        silent = [name for name in self._stale if self._stale_cycles[name] >= STALE_CYCLES]
        if silent:
            late = all(collectors[name].start == "ok" for name in silent)
            who = join_parts(list(dict.fromkeys(ASKED[name] for name in silent)))
            how = "takes too long to answer" if late else "does not answer"
            self._node.faults.activate(FaultCode.FIGURES_STALE, subject, who=who, how=how)
        else:
            self._node.faults.clear(FaultCode.FIGURES_STALE, subject)
        await self._publish()

    async def _collect_domains(self) -> Collected:
        """What the virtual machines here are allocated."""
        began_s = self._node.clock.monotonic()
        self._present = None
        try:
            await self._node.domains.refresh()
        except OutliveError as error:
            _log.warning("figures.not_collected", host=self._node.host, error=str(error))
            return Collected(start="connect_error")
        self._present = self._node.domains.list_names()
        took_s = max(0.0, self._node.clock.monotonic() - began_s)
        return Collected(start="ok", duration=took_s, values=self._account())

    async def _collect_guests(self, statistics: Statistics) -> Collected:
        """What each guest uses, by what it had used at the last time."""
        began_s, limit_s = self._node.clock.monotonic(), float(self._node.settings.call_limit)
        try:
            with deadline(limit_s):
                found = await statistics()
        except (OutliveError, TimeoutError) as error:
            _log.warning("figures.not_counted", host=self._node.host, error=str(error) or "no answer in time")
            return Collected(start="connect_error")
        now_s = self._node.clock.monotonic()
        before, self._counts = self._counts, {one.vm: (one, now_s) for one in found}
        used: dict[str, dict[str, int]] = {}
        for one in found:
            last, at_s = before.get(one.vm, (one, now_s))
            used[one.vm] = {"memory": one.resident_bytes, **usage_rates(last, one, now_s - at_s)}
        return Collected(start="ok", duration=max(0.0, now_s - began_s), values={"guests": used})

    def _collect_machine(self) -> Collected:
        """What the machine says of itself, which it does at once."""
        try:
            used, load = self._node.machine.read_usage(), self._node.machine.read_load()
        except OSError as error:
            _log.warning("figures.not_measured", host=self._node.host, error=str(error))
            return Collected(start="connect_error")
        values: dict[str, Any] = {"load": load}
        if used is not None:
            values |= {"usedCpu": used.cpu_milli, "usedMemory": used.memory_bytes}
        return Collected(start="ok", values=values)

    def _account(self) -> dict[str, Any]:
        """Memory in bytes, CPU in milli-cores."""
        domains = self._node.domains.by_vm
        vms: list[AccountedVm] = []
        for name in sorted({*domains, *(vm.name for vm in self._node.informer.items() if vm.host == self._node.host)}):
            domain, vm = domains.get(name), self._node.informer.get(name)
            need = vm.spec.resources if vm is not None else self._needs.get(name, Amounts())
            active = domain is not None and domain.state is not DomainState.OFF
            memory = domain.memory_bytes if domain is not None and domain.memory_bytes else need.memory_bytes
            cpu = domain.cpu_milli if domain is not None and domain.cpu_milli else need.cpu_milli
            accounted = AccountedVm(
                uuid=name,
                node=vm.host or None if vm is not None else None,
                active_here=active,
                paused=active and domain is not None and domain.state is not DomainState.RUNNING,
                live_memory=memory / MEBIBYTE,
                xml_memory=(need.memory_bytes or memory) / MEBIBYTE,
                vcpus=cpu / 1000,
                state=state_of(vm) if vm is not None else "",
            )
            vms.append(accounted)
        total = self._node.machine.read_capacity().memory_bytes / MEBIBYTE
        given = AccountInput(node=self._node.host, memory_total=total, vms=tuple(vms))
        result = self._node.decisions.use(ACCOUNT_NODE, given, subject=self._node.host)
        return {
            "allocatedMemory": round(result.allocated * MEBIBYTE),
            "allocatedCpu": round(result.vcpu_allocated * 1000),
            "provisionedMemory": round(result.provisioned * MEBIBYTE),
            "running": len(result.running),
        }

    async def _publish(self) -> None:
        figures, (scores, slopes) = self._figures, self._health.read_figures()
        allocated = Amounts(cpu=figures.get("allocatedCpu", 0), memory=figures.get("allocatedMemory", 0))
        usage = HostUsage(
            sampled_at=as_datetime(self._node.clock.now()),
            used=Amounts(
                cpu=figures.get("usedCpu", allocated.cpu_milli),
                memory=figures.get("usedMemory", allocated.memory_bytes),
            ),
            allocated=allocated,
            provisioned=Amounts(cpu=allocated.cpu_milli, memory=figures.get("provisionedMemory", 0)),
            load=figures.get("load", 0.0),
            running=figures.get("running", 0),
            present=self._present,
            guests={vm: Amounts(used) for vm, used in figures.get("guests", {}).items()},
            interfaces=self._node.traffic.list_rates() if self._node.traffic is not None else {},
            stale=self._stale,
            scores=scores,
            slopes=slopes,
            reached=self._node.losses.reached,
        )

        def change(found: HypervisorUsage | None) -> HypervisorUsage:
            meta = ObjectMeta(name=self._node.host) if found is None else found.metadata
            return HypervisorUsage(metadata=meta, usage=usage)

        try:
            await compare_and_swap(
                self._node.store, HypervisorUsage, self._node.host, change, clock=self._node.clock, tries=TRIES
            )
        except OutliveError as error:  # the next interval writes again
            _log.warning("figures.not_written", host=self._node.host, error=str(error))


def usage_rates(last: GuestCounts, now: GuestCounts, passed_s: float) -> dict[str, int]:
    """What a guest used between two counts, each second: milli-cores and bytes. Nothing where it was started anew."""
    spent = {
        "cpu": 1000 * (now.cpu_s - last.cpu_s),
        "diskRead": now.read_bytes - last.read_bytes,
        "diskWritten": now.written_bytes - last.written_bytes,
        "netReceived": now.received_bytes - last.received_bytes,
        "netSent": now.sent_bytes - last.sent_bytes,
    }
    return {name: round(max(0, amount) / passed_s) if passed_s > 0 else 0 for name, amount in spent.items()}


def apply_overcommit(capacity: Amounts, overcommit: dict[str, float]) -> Amounts | None:
    """Capacity times overcommit, rounded down; ``None`` where nothing is overcommitted."""
    if not overcommit:
        return None
    return Amounts({name: int(amount * max(1.0, overcommit.get(name, 1.0))) for name, amount in capacity.items()})
