"""The faults of recovery as a function of what it sees: held and failed VMs, scarce memory, BMCs.

No recovery depends on them. The leader of recovery records them: it has all VMs and hosts in view, and there is one of
it; a new leader takes over what the one before it recorded (docs/concepts/safety.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from outlive.base import Clock, Instant, as_instant, format_bytes, format_until, join_parts, shown_time
from outlive.failover.report import Events
from outlive.node import enforcing_hosts
from outlive.node.vm import deletion_of
from outlive.placement import HARD, VmConstraints, concerned_vm, demands_of, find_contradictions
from outlive.recovery.informers import RecoveryInformers, members_of
from outlive.recovery.view import UNATTENDED_S
from outlive.resources import (
    CLUSTER,
    ZONE_LABEL,
    AffinityRule,
    Cluster,
    Disarmed,
    Hypervisor,
    Membership,
    ObjectRef,
    Pause,
    RecoveryPhase,
    VirtualMachine,
)
from outlive.resources.reasons import REPORTED_OF_HOST, FaultCode, Reason, Value, render
from outlive.runtime import ActiveFault, Crashes, FaultRecorder, Periodic, crash_faults, fault_name

EVERY_S: Final = 10.0
"""How often all VMs and hosts are inspected for this, besides whenever a VM is held or no longer held."""
NAMED: Final = 5
"""Hosts that a report names."""
FEWEST_HOSTS: Final = 2
"""With fewer there is nothing that could fail over."""
MIB: Final = 1 << 20
DELETION_S: Final = 300.0
"""How long a VM that was deleted may wait for a host that may still run it before that is reported."""
SURE_S: Final = 2 * UNATTENDED_S
"""How long after it began to lead a process may not know yet whether a coordinator lives."""
THE_CLUSTER: Final = ObjectRef(kind="Cluster", name=CLUSTER)
REHEARSED: Final = "ok"


def active_faults(
    vms: Iterable[VirtualMachine],
    hosts: Iterable[Hypervisor],
    cluster: Cluster | None = None,
    *,
    now: Instant = Instant(0.0),
    disarmed: Iterable[ActiveFault] = (),
    lacks_coordinator: bool = False,
) -> tuple[ActiveFault, ...]:
    """What is wrong now. Memory is that of the living hosts of our daemon, and must do without the largest of them."""
    vms = tuple(vms)
    ours = [one for one in hosts if one.spec.management == "node"]
    living = [one for one in ours if not one.status.lost]
    unattended = (ActiveFault(FaultCode.NO_COORDINATOR, THE_CLUSTER),) if lacks_coordinator else ()
    quarantined = [
        ActiveFault(
            FaultCode.HOST_QUARANTINED,
            ObjectRef(kind="Hypervisor", name=one.name),
            {"deaths": found.deaths, "until": shown_time(found.until)},
        )
        for one in ours
        if (found := one.status.quarantine) is not None
    ]
    not_rehearsed = [
        ActiveFault(
            FaultCode.POWER_NOT_REHEARSED,
            ObjectRef(kind="Hypervisor", name=one.name),
            {"why": one.status.rehearsed},
        )
        for one in living
        if one.spec.fencing.driver and one.status.rehearsed and one.status.rehearsed != REHEARSED
    ]
    return (
        *_vm_faults(vms, now),
        *quarantined,
        *not_rehearsed,
        *_memory_faults(vms, living),
        *_pause_faults(cluster),
        *disarmed,
        *unattended,
    )


def disarmed_fault(cluster: Cluster | None, members: Iterable[Membership], now: float) -> Iterator[ActiveFault]:
    """That the cluster is disarmed, and whose guards enforce all the same: they have not followed, or cannot."""
    mode = cluster.spec.disarmed_mode(now) if cluster is not None else ""
    if cluster is None or not mode:
        return
    spec = cluster.spec
    enforcing = enforcing_hosts(members)
    still = f"; the guards of {join_parts(enforcing, most=NAMED)} enforce all the same" if enforcing else ""
    fields: dict[str, Value] = {
        "mode": mode,
        "since": shown_time(spec.disarmed_since),
        "until": format_until(spec.disarmed_until),
        "still": still,
    }
    yield ActiveFault(FaultCode.CLUSTER_DISARMED, cluster.ref, fields)


def _pause_faults(cluster: Cluster | None) -> Iterator[ActiveFault]:
    if cluster is not None and cluster.paused:
        pause = cluster.status.pause or Pause()
        hosts = join_parts(pause.waits_for, most=NAMED) if pause.waits_for else "the hosts to be counted"
        fields = {"reason": pause.reason, "hosts": hosts, "incarnation": cluster.status.store_incarnation}
        yield ActiveFault(FaultCode.STORE_RESTORED, cluster.ref, fields)


def _ref_of(vm: VirtualMachine) -> ObjectRef:
    return ObjectRef(kind="VirtualMachine", name=vm.name)


def _vm_faults(vms: Iterable[VirtualMachine], now: Instant) -> Iterator[ActiveFault]:
    for vm in vms:
        deleted = vm.metadata.deletion_timestamp
        if deleted is not None:
            if vm.guarded and now - as_instant(deleted) >= DELETION_S:
                said = deletion_of(vm)
                yield ActiveFault(FaultCode.DELETION_WAITS, _ref_of(vm), {"why": said.text, "remedy": said.remedy})
            continue
        about, status, record = _ref_of(vm), vm.status, vm.status.recovery
        if status.phase == "fail" and vm.spec.recovery.mode != "ignore":
            why = status.message or "its host did not report why"
            yield ActiveFault(FaultCode.VM_FAILED, about, {"why": why})
        if record is not None and record.phase is RecoveryPhase.HELD and record.reason not in REPORTED_OF_HOST:
            fields = {"reason": record.reason, "why": record.message, "remedy": record.remedy}
            yield ActiveFault(FaultCode.VM_HELD, about, fields)


def _memory_faults(vms: Iterable[VirtualMachine], living: Iterable[Hypervisor]) -> Iterator[ActiveFault]:
    ours = {one.name: _memory_of(one) for one in living}
    totals = [total for total, _ in ours.values() if total > 0]
    if len(totals) < FEWEST_HOSTS:
        return
    room = sum(totals) - max(totals)
    allocated = sum(taken for _, taken in ours.values())
    provisioned = sum(
        vm.spec.resources.memory_bytes
        for vm in vms
        if vm.status.assigned is not None and vm.status.assigned.hypervisor in ours
    )
    if allocated >= room:
        yield ActiveFault(
            FaultCode.MEMORY_OVERCOMMITTED,
            THE_CLUSTER,
            {"taken": _format_memory(allocated), "room": _format_memory(room)},
        )
    elif provisioned >= room:
        yield ActiveFault(
            FaultCode.MEMORY_OVERPROVISIONED,
            THE_CLUSTER,
            {"taken": _format_memory(provisioned), "room": _format_memory(room)},
        )


def _memory_of(host: Hypervisor) -> tuple[int, int]:
    """What the host has, and what its VMs are allocated."""
    has, taken = host.effective_capacity(), host.status.allocation
    return (has.memory_bytes if has is not None else 0, taken.memory_bytes if taken is not None else 0)


def _format_memory(amount: int) -> str:
    return format_bytes(amount // MIB * MIB)


class RuleFaults:
    """Rules of VMs that contradict each other although the server refuses such: what came past it, or two at once."""

    def __init__(self, informers: RecoveryInformers) -> None:
        self._informers = informers
        self._changed: dict[str, None] = {}
        self._found: dict[str, Reason] = {}
        """VM → the first of its rules that cannot be met."""
        informers.vms.subscribe(self._vm_changed)

    def _vm_changed(self, old: VirtualMachine | None, new: VirtualMachine | None) -> None:
        before, now = (demands_of(one) if one is not None else None for one in (old, new))
        if before == now:
            return
        for one in (before, now):
            if one is not None and (one.rules or one.host_limit):
                self._changed[one.id] = None
        if before is not None and now is None:
            vms = self._informers.vms
            self._changed.update((vm.name, None) for rule in before.rules for vm in members_of(vms, rule))

    async def find(self) -> tuple[ActiveFault, ...]:
        """What is so now; only VMs whose rules have changed, and those found before, are looked at again."""
        changed = {**self._changed, **dict.fromkeys(self._found)}
        self._changed = {}
        hosts = self._informers.hypervisors.items() if changed else ()
        zones = {host.name: host.metadata.labels.get(ZONE_LABEL, "") for host in hosts}
        seen: set[str] = set()
        for name in changed:
            vm = self._informers.vms.get(name)
            self._found.pop(name, None)
            if vm is None or name in seen:
                continue
            together = self._find_tied(vm)
            seen.update(one.id for one in together)
            for one in together:
                self._found.pop(one.id, None)
            for why in find_contradictions(together, zones):
                self._found.setdefault(concerned_vm(why), why)
            await asyncio.sleep(0)
        return tuple(
            ActiveFault(
                FaultCode.RULES_CONTRADICT,
                ObjectRef(kind="VirtualMachine", name=name),
                {"why": render(why).text, "remedy": render(why).remedy},
            )
            for name, why in sorted(self._found.items())
        )

    def _find_tied(self, vm: VirtualMachine) -> list[VmConstraints]:
        """The VM, and those that hard rules tie to it."""
        found, left = {vm.name: demands_of(vm)}, [vm]
        done: set[AffinityRule] = set()
        while left:
            for rule in left.pop().spec.affinity_rules:
                if rule.policy not in HARD or rule in done:
                    continue
                done.add(rule)
                for one in members_of(self._informers.vms, rule):
                    if one.name not in found:
                        found[one.name] = demands_of(one)
                        left.append(one)
        return list(found.values())


class RecoveryFaults:
    """Records them; ``wake`` where one has begun or ended."""

    def __init__(
        self,
        informers: RecoveryInformers,
        recorder: FaultRecorder,
        events: Events,
        clock: Clock,
        *,
        lacks_coordinator: Callable[[], bool],
        crashes: Crashes | None = None,
    ) -> None:
        self._crashes = crashes or Crashes(clock)
        self._informers = informers
        self._lacks_coordinator = lacks_coordinator
        self._recorder = recorder
        self._rules = RuleFaults(informers)
        self._events = events
        self._clock = clock
        self._loop = Periodic(self.record, EVERY_S, clock=clock, wakes=True)
        self._sure_at = 0.0
        """From when on this process knows who renews, as it leads; monotonic."""
        self._mode: Disarmed | None = None
        """How the cluster was disarmed at the last inspection; ``None``: there was none."""

    def wake(self) -> None:
        """Inspect soon."""
        self._loop.wake()

    async def run(self) -> None:
        """Until cancelled; may be called again, when somebody else has led meanwhile."""
        self._recorder.forget()
        self._sure_at = self._clock.monotonic() + SURE_S
        await self._loop.run()

    async def record(self) -> None:
        """Record what is so now; nothing while the caches are in doubt."""
        if self._informers.doubtful:
            return
        vms, hosts = self._informers.vms.items(), self._informers.hypervisors.items()
        cluster = self._informers.clusters.get(CLUSTER)
        disarmed = tuple(disarmed_fault(cluster, self._informers.memberships.items(), self._clock.now()))
        if cluster is not None:
            before, self._mode = self._mode, cluster.spec.disarmed_mode(self._clock.now())
            if before is not None and before != self._mode:
                until, mode = format_until(cluster.spec.disarmed_until), self._mode
                reason = "ClusterDisarmed" if mode else "ClusterArmed"
                note = f"disarmed ({mode}) {until}" if mode else "armed again"
                self._events.emit(cluster.ref, reason, note, type="Warning" if mode else "Normal", action="Disarm")
        rules = await self._rules.find()
        found = active_faults(
            vms,
            hosts,
            cluster,
            now=self._clock.now(),
            disarmed=disarmed,
            lacks_coordinator=self._lacks_coordinator(),
        )
        kept: list[str] = [
            fault_name(FaultCode.VM_HELD, _ref_of(vm))
            for vm in vms
            # a host was sent it and does not run it yet: if the VM was held before, that is not over
            if vm.status.recovery is not None and vm.status.recovery.phase is RecoveryPhase.ASSIGNED
        ]
        if self._clock.monotonic() < self._sure_at:
            kept.append(FaultCode.NO_COORDINATOR)  # another leader may have reported it
        await self._recorder.record((*found, *rules, *crash_faults(self._crashes)), undetermined=kept)
