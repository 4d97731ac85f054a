"""What must hold once nothing changes any more: L1, S3, and no room counted twice.

S3 is stated as the promise is: for a VM that is *reported* covered, and any so many hosts that fail together with its
own, some slot of it is left that is on a living host and that no other failed VM needs. It shares nothing with the
check of the product.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from typing import Final

from outlive.base import LoopClock, as_datetime
from outlive.commitments import CommitmentSettings
from outlive.node.vm import is_ignored
from outlive.resources import (
    COMMITTED,
    FAILOVER,
    Amounts,
    Coverage,
    Fault,
    Hypervisor,
    Membership,
    MigrationPhase,
    Reservation,
    VirtualMachine,
    find_condition,
)
from outlive.resources.reasons import FaultCode, VmReason
from outlive.simulation.judges.truth import Truth

STOPPED_PHASES: Final = ("stop", "shutdown", "disable")
IMPORTED_PHASE: Final = "ACTIVE"
"""Of a VM that runs on a host without our daemon."""
SILENT_S: Final = 30.0
"""What a host reported is long past once it has not renewed for so long; a host that lives renews far more often."""
ORDER_SLACK_S: Final = 5.0
"""So much longer than it says may a VM wait for others."""


def is_wanted(vm: VirtualMachine, *, daemons: bool = True) -> bool:
    """Whether somebody wants us to run it; where hosts have no daemon of ours, not what runs as it was imported."""
    unwanted = STOPPED_PHASES if daemons else (*STOPPED_PHASES, IMPORTED_PHASE)
    return vm.spec.power_state == "running" and not vm.deleting and vm.status.phase not in unwanted


def check_runs_or_reason(truth: Truth, vm: VirtualMachine) -> str:
    """L1: what should run runs, once, or is held with a reason and a remedy that somebody can follow."""
    if vm.deleting:
        return _check_deletion(truth, vm)
    if not is_wanted(vm, daemons=truth.daemons):
        return _check_restarted(truth, vm)
    running = truth.running_hosts(vm.name)
    if len(running) == 1:
        return ""
    if len(running) > 1:
        harmful = [host for host in running if truth.harms(host, vm.name)]
        return "" if len(harmful) == 1 else f"runs on {' and '.join(running)}"
    hosts = {vm.host, *(one.hypervisor for one in vm.status.holders)}
    if not running and is_ignored(vm) and any(_is_off(truth, host) or not _is_alive(truth, host) for host in hosts):
        return ""
    recovery = vm.status.recovery
    if recovery is not None and recovery.unfinished and recovery.reason and recovery.remedy:
        return ""
    paused = vm.status.reason in (VmReason.CLUSTER_PAUSED, VmReason.CLUSTER_FROZEN)
    shut_out = vm.host if vm.status.reason == VmReason.ISOLATION_UNCONFIRMED else ""
    fault = any(
        not one.ended
        and one.remedy
        and (
            one.subject.name == vm.name
            or (paused and one.code in (FaultCode.STORE_RESTORED, FaultCode.CLUSTER_DISARMED))
            or (one.code == FaultCode.ISOLATION_UNRECORDED and one.subject.name == shut_out)
            or (one.code == FaultCode.NO_COORDINATOR and _is_kept_isolated(truth, shut_out))
        )
        for one in truth.store.list_all(Fault)
    )
    if fault or (vm.status.phase == "fail" and vm.status.reason):
        return ""
    where = vm.host or "nowhere"
    if _is_waiting_in_order(vm, where):
        return ""
    state = f"recovery {recovery.phase}: {recovery.reason or 'no reason'}" if recovery is not None else "no recovery"
    holders = ", ".join(f"{one.hypervisor} epoch {one.epoch}" for one in vm.status.holders) or "nobody"
    return (
        f"does not run; assigned to {where}, phase {vm.status.phase!r} ({vm.status.reason}), held by {holders}, {state}"
    )


def _check_deletion(truth: Truth, vm: VirtualMachine) -> str:
    """L1 of a deleted VM: it is removed, unless a dead host may still run it, or its status or a fault says why not."""
    recovery = vm.status.recovery
    explained = recovery is not None and recovery.unfinished and recovery.reason and recovery.remedy
    about = (FaultCode.STORE_RESTORED, FaultCode.CLUSTER_DISARMED)
    fault = any(
        not one.ended and one.remedy and (one.subject.name == vm.name or one.code in about)
        for one in truth.store.list_all(Fault)
    )
    hosts = sorted({one.hypervisor for one in vm.status.holders})
    if explained or fault or not vm.guarded or any(not _is_alive(truth, one) for one in hosts):
        return ""
    return f"was deleted, and does not go: held by {', '.join(hosts) or 'nobody'}"


def _is_kept_isolated(truth: Truth, host: str) -> bool:
    """Whether the host is isolated, and no coordinator lives that could end that."""
    member = truth.store.find_member_record(host) if host else None
    hosts = [one.name for one in truth.store.list_all(Hypervisor) if one.spec.mode == "coordinator"]
    return member is not None and member.cut.through > 0 and not any(_is_alive(truth, one) for one in hosts)


def _check_restarted(truth: Truth, vm: VirtualMachine) -> str:
    """What only a drain has stopped starts again once its host is ready."""
    where = vm.host
    host = truth.store.find(Hypervisor, where) if where else None
    if host is None or vm.spec.power_state != "running" or vm.status.phase != "stop":
        return ""
    ready = host.status.domain_state == "ready" and not host.status.lost and _is_member(truth, where)
    drained = vm.status.reason == VmReason.STOPPED_BY_DRAIN and ready
    return f"was stopped because {where} was drained, and stays down though that is ready" if drained else ""


def _is_waiting_in_order(vm: VirtualMachine, where: str) -> bool:
    """Whether its host says for whom it waits, and the time for that is not over."""
    said = vm.status.start_order
    if said is None or not said.waits_for or not said.detail or said.hypervisor != where or said.since is None:
        return False
    return (as_datetime(LoopClock().now()) - said.since).total_seconds() <= said.limit_s + ORDER_SLACK_S


def check_coverage_true(truth: Truth) -> Iterator[tuple[str, str]]:
    """S3: VMs that are reported covered and are not, with why."""
    store = truth.store
    vms = {vm.name: vm for vm in store.list_all(VirtualMachine)}
    slots = {one.name: one for one in store.list_all(Reservation) if one.spec.type == FAILOVER}
    lost = {host.name for host in store.list_all(Hypervisor) if host.status.lost}
    home, moving = _locate_vms(truth, vms)
    between = _find_moving(truth, vms, home)
    free = frozenset(name for name, vm in vms.items() if _has_no_claim(truth, vm))
    recovering = frozenset(
        name
        for name, vm in vms.items()
        if _recovery_source(vm) or _is_lost_with_host(truth, vm) or _is_given_up(vm, lost)
    )
    known = {name: host for name, host in home.items() if name not in recovering}
    shared = {name: _Shared(slot, known, between, free) for name, slot in slots.items()}
    for coverage in store.list_all(Coverage):
        status, name = coverage.status, coverage.name
        if not status.covered or not status.required or name not in home or name in moving or name in recovering:
            continue
        mine = [slots[one] for one in status.slots if one in slots and slots[one].status.consumer is None]
        size = vms[name].spec.resources
        if vms[name].deleting:
            continue
        if len(mine) < status.required:
            yield name, f"is reported covered by {list(status.slots)}, of which {len(mine)} are there and free"
            continue
        if idle := [one.name for one in mine if not is_promised(one)]:
            yield name, f"is reported covered by {idle[0]}, which is not ready"
            continue
        if short := [one for one in mine if not _holds(one, size.cpu_milli, size.memory_bytes)]:
            yield name, f"is reported covered by {short[0].name}, which is smaller than it"
            continue
        if any(one.status.host in lost for one in mine):
            yield name, "is reported covered by a slot on a host that is proven dead"
            continue
        losses = [shared[one.name].failures_of(name) for one in mine]
        case = _find_break(losses, frozenset({home[name]}), status.required - 1)
        if case is not None:
            yield name, f"is reported covered, and has no slot left when {', '.join(sorted(case))} fail"


def _locate_vms(truth: Truth, vms: dict[str, VirtualMachine]) -> tuple[dict[str, str], dict[str, None]]:
    """Where each VM is, and those that are between two hosts: assigned to one and listed by another, or by none.

    A VM that is being recovered is where it was lost: that failure is among those that its slots are for, until it
    runs elsewhere. Of slots that it shares it counts where it is recorded, and of itself nothing is judged.
    """
    listed: dict[str, list[str]] = {}
    for host in truth.store.list_all(Hypervisor):
        for one in host.status.instances:
            listed.setdefault(one.id, []).append(host.name)
    assigned = {name: vm.status.assigned.hypervisor for name, vm in vms.items() if vm.status.assigned is not None}
    home = {
        name: _recovery_source(vms[name]) or _locate_vm(truth, vms[name], host, listed.get(name, []))
        for name, host in assigned.items()
    }
    return home, {
        name: None for name, host in assigned.items() if home[name] != host or host not in listed.get(name, [])
    }


def _find_moving(
    truth: Truth, vms: Mapping[str, VirtualMachine], home: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """VMs that one host runs and that are assigned to another, while both live: they claim a slot only if both fail.

    Where the first fails it starts on the other, in room that is kept for it; where the other fails it runs on. It does
    not matter whether one of them is being emptied, nor whether they have registered in this very store, which was
    restored: until somebody finds one dead, its failure is one more. Nor does it that the first is condemned by now, as
    long as it is not proven dead, and the other can start it; nor that the other is, as long as it holds the VM: then
    nobody restarts that before the other is proven dead as well.
    """
    pairs = {
        name: (there, where.hypervisor)
        for name, there in home.items()
        if (where := vms[name].status.assigned) is not None and not _recovery_source(vms[name])
    }
    return {
        name: (one, other)
        for name, (one, other) in pairs.items()
        if one != other
        and (
            (_is_member(truth, one) and (_is_member(truth, other) or _may_run(truth, vms[name], other)))
            or (_is_being_fenced(truth, one) and _is_alive(truth, other))
        )
    }


def _may_run(truth: Truth, vm: VirtualMachine, host: str) -> bool:
    """Whether the host holds it in an epoch that nothing proves dead."""
    found = [(one.epoch, truth.find_member(one)) for one in vm.status.holders if one.hypervisor == host]
    return any(member is not None and member.dead_through < epoch for epoch, member in found)


def _is_lost_with_host(truth: Truth, vm: VirtualMachine) -> bool:
    """Whether its host is off and has not said, or not again, that it has it: it may have landed there just before."""
    where = vm.host
    host = truth.store.find(Hypervisor, where) if where else None
    listed = host is not None and any(one.id == vm.name for one in host.status.instances)
    return _is_off(truth, where) and not listed


def _is_given_up(vm: VirtualMachine, lost: Container[str]) -> bool:
    """Whether its host is proven dead and nobody wants it to run: its failure has come, and nothing restarts it. Once
    its holders are dropped it claims nothing."""
    return vm.spec.power_state != "running" and vm.host in lost and vm.status.holders != ()


def _has_no_claim(truth: Truth, vm: VirtualMachine) -> bool:
    """Whether nobody restarts it where its host fails: it is down, or is bound for a host after one that is back."""
    if vm.deleting or (vm.status.phase in (*STOPPED_PHASES, "fail") and not vm.status.holders):
        return True
    lost_at = _recovery_source(vm)
    return lost_at != "" and _is_alive(truth, lost_at)


def _recovery_source(vm: VirtualMachine) -> str:
    """The host that a recovery takes it from; empty where it is not being recovered, or its own host runs it."""
    recovery = vm.status.recovery
    if recovery is None or recovery.phase in ("recovered", "dropped"):
        return ""
    runs = any(one.hypervisor == vm.host and not one.role and one.seen == "running" for one in vm.status.holders)
    return "" if runs and recovery.origin != vm.host else recovery.origin


def _locate_vm(truth: Truth, vm: VirtualMachine, assigned: str, listed: list[str]) -> str:
    """Where it is: on its assigned host, unless another one lists it that is up to date, or holds it.

    What a host lists to which it is to be moved back is what it ran there before, until that host is ready for it.
    """
    move = vm.status.migration
    if move is not None and move.phase is MigrationPhase.REQUESTED and move.target == assigned:
        listed = [host for host in listed if host != assigned] if move.source in listed else listed
    if assigned in listed:
        return assigned
    holders = {one.hypervisor for one in vm.status.holders}
    fresh = [host for host in listed if not _is_stale(truth, host)]
    return next(iter((*fresh, *(host for host in listed if host in holders))), assigned)


def _is_being_fenced(truth: Truth, name: str) -> bool:
    """Whether the host is condemned, and nothing proves yet that it is dead."""
    member = truth.store.find_member_record(name)
    return member is not None and member.state == "Revoked" and member.dead_through < member.epoch


def _is_member(truth: Truth, name: str) -> bool:
    """Whether the host is a member that nobody has condemned."""
    member = truth.store.find_member_record(name)
    return member is not None and member.state == "Held"


def _is_alive(truth: Truth, name: str) -> bool:
    """Whether the host lives, and has registered in this very store."""
    member = truth.store.find_member_record(name)
    return member is not None and member.state == "Held" and member.incarnation == truth.store.incarnation


def _is_off(truth: Truth, host: str) -> bool:
    return host in truth.hypervisors and not truth.hypervisors[host].powered


def _is_stale(truth: Truth, host: str) -> bool:
    """Whether what the host reported last may be long past.

    It is off, which may not have been noticed yet; is condemned, is no member any more, has not registered in this
    very store, which was restored, or does not renew, and no coordinator lives that could condemn it.
    """
    found = truth.store.find(Membership, host)
    if _is_off(truth, host) or found is None or found.record.state == "Revoked":
        return True
    now_s = LoopClock().monotonic()
    silent = now_s - truth.renewed_s.get(found.metadata.uid, now_s) > SILENT_S
    return silent or found.record.incarnation not in ("", truth.store.incarnation)


def _holds(slot: Reservation, cpu_milli: int, memory_bytes: int) -> bool:
    held = slot.spec.resources
    return held.cpu_milli >= cpu_milli and held.memory_bytes >= memory_bytes and bool(slot.status.host)


def is_promised(slot: Reservation) -> bool:
    """Whether a slot does not say of itself that it is not ready; one that is used already is no promise, and held."""
    ready = find_condition(slot.status.conditions, "Ready")
    return slot.status.consumer is not None or ready is None or ready.status == "True"


def _find_break(slots: list[frozenset[frozenset[str]]], failed: frozenset[str], more: int) -> frozenset[str] | None:
    """Hosts, ``failed`` and so many more at most, whose failure breaks all these slots; ``None`` if there are none."""
    # Most VMs need one slot: then nobody fails but their own host, and no set of hosts is smaller than it.
    alone = len(failed) == 1
    left = [one for one in slots if not (failed in one if alone else any(hosts <= failed for hosts in one))]
    if not left:
        return failed
    if more == 0:
        return None
    for hosts in sorted(left[0], key=sorted):
        new = hosts - failed
        if len(new) <= more and (found := _find_break(left[1:], failed | new, more - len(new))) is not None:
            return found
    return None


class _Shared:
    """A slot, as all its members see it."""

    def __init__(
        self,
        slot: Reservation,
        home: dict[str, str],
        between: Mapping[str, tuple[str, str]],
        free: frozenset[str],
    ) -> None:
        """``between``: members that claim it only if both of these hosts fail; ``free``: that claim nothing."""
        self._host = slot.status.host
        status = slot.status.failover_reservation
        self._claims = {
            vm: frozenset(between[vm]) if vm in between else frozenset({home.get(vm, host)})
            for vm, host in (status.allocations if status is not None else {}).items()
            if vm not in free
        }
        """Member → hosts that all have to fail before it claims the slot."""

    def failures_of(self, vm: str) -> frozenset[frozenset[str]]:
        """Sets of hosts each of which, failing together, take the slot from that VM or have another one fill it."""
        return frozenset({frozenset({self._host}), *(hosts for one, hosts in self._claims.items() if one != vm)})


COMMITMENTS_GRACE_S: Final = float(CommitmentSettings().oversubscription_grace_period)
"""How long the slots of commitments on a host may be more than fit before one of them leaves."""


def check_room_counted_once(truth: Truth) -> Iterator[tuple[str, str]]:
    """Hosts on which VMs leave no room for the slots; a slot whose VM has landed is that VM, and what VMs use of a
    commitment's slot is theirs.

    A slot that says that it is not ready promises nothing: nobody may be reported covered by it, which is S3, and it
    goes once the brake on removals lets it. Hosts whose VMs alone are too many are excepted: users may ask for that. A
    slot with a consumer counts as that VM, which is bound for the host. Slots of commitments may be too many for their
    time of grace after a VM came to the host.
    """
    store = truth.store
    slots = [one for one in store.list_all(Reservation) if one.spec.type in (FAILOVER, COMMITTED) and one.status.host]
    for host in store.list_all(Hypervisor):
        capacity = host.effective_capacity()
        if capacity is None or host.status.allocation is None or host.status.lost:
            continue
        listed = {one.id for one in host.status.instances}
        now_s = LoopClock().monotonic()
        lately = any(now_s - truth.began_s.get((host.name, vm), -math.inf) < COMMITMENTS_GRACE_S for vm in listed)
        blocks = [
            one
            for one in slots
            if one.status.host == host.name
            and is_promised(one)
            and not (lately and one.spec.type == COMMITTED)
            and not (one.status.consumer is not None and one.status.consumer.vm in listed)
        ]
        coming = [one.spec.resources for one in blocks if one.status.consumer is not None]
        vms_cpu = host.status.allocation.cpu_milli + sum(one.cpu_milli for one in coming)
        vms_memory = host.status.allocation.memory_bytes + sum(one.memory_bytes for one in coming)
        if vms_cpu > capacity.cpu_milli or vms_memory > capacity.memory_bytes:
            continue
        held = [_unused_amounts(one, listed) for one in blocks]
        used_cpu = host.status.allocation.cpu_milli + sum(one.cpu_milli for one in held)
        used_memory = host.status.allocation.memory_bytes + sum(one.memory_bytes for one in held)
        if used_cpu > capacity.cpu_milli or used_memory > capacity.memory_bytes:
            taken = Amounts(cpu=used_cpu, memory=used_memory).to_wire()
            yield (
                host.name,
                f"its VMs and {len(blocks)} slots take {format_amounts(taken)}, and it has "
                f"{format_amounts(capacity.to_wire())}",
            )


def _unused_amounts(slot: Reservation, listed: Container[str]) -> Amounts:
    """What of it no VM uses that its host lists."""
    details, size = slot.spec.committed_resource_reservation, slot.spec.resources
    inside = [one.resources for vm, one in details.allocations.items() if vm in listed] if details is not None else []
    return Amounts(
        cpu=max(0, size.cpu_milli - sum(one.cpu_milli for one in inside)),
        memory=max(0, size.memory_bytes - sum(one.memory_bytes for one in inside)),
    )


def format_amounts(wire: Mapping[str, str]) -> str:
    """Amounts in a sentence."""
    return f"{wire['cpu']} cores and {wire['memory']} of memory"


def check_instances_counted_once(truth: Truth) -> Iterator[tuple[str, str]]:
    """VMs that two hosts list among theirs.

    What a condemned host reported last is left out, and what is shut out of all that others may use: it began late, in
    an epoch that is over, and is being ended.
    """
    seen: dict[str, str] = {}
    for host in truth.store.list_all(Hypervisor):
        if host.status.lost or _is_stale(truth, host.name):
            continue
        for one in host.status.instances:
            if host.name in truth.running_hosts(one.id) and not truth.harms(host.name, one.id):
                continue
            if one.id in seen:
                yield one.id, f"is listed by {seen[one.id]} and by {host.name}"
            seen[one.id] = host.name
