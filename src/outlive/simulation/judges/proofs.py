"""S2: nobody else's entry goes, and nothing is recovered, before every holder is fenced, each with a recorded proof.

Stated here once more, from the words of the promise and not from the steps of the product.
"""

from __future__ import annotations

from math import inf
from typing import Final

from outlive.base import LoopClock
from outlive.guard import GuardState
from outlive.node.fencing import fence_order
from outlive.node.ports import DomainState
from outlive.resources import Cut, Holder, MemberRecord, Membership, VirtualMachine
from outlive.simulation.judges.truth import Truth
from outlive.simulation.stores import Author

SILENT_S: Final = 2.0
"""No limit of silence is shorter."""
DELETION_SEEN_S: Final = 2.0
"""So much later may be used what a Membership proved before somebody deleted it: caches see that late."""
CLOCKS_APART: Final = 0.005
"""So much the clock of a guard may run slow, and that of a fencer fast: both are allowed for, one can be seen here."""
RESET_S: Final = 2.0
"""From the end of a guard's time to a host that is empty or reset, at most."""


def is_fenced(truth: Truth, vm: VirtualMachine, holder: Holder) -> bool:
    """Whether it is proven, on record, that this holder can do the VM no harm."""
    record = truth.find_member(holder)
    if truth.proven.get(holder.member_uid, 0) >= holder.epoch:
        return True
    if record is None:
        cut, deleted_s = truth.cut_when_deleted.get(holder.member_uid, (Cut(), -inf))
        seen = LoopClock().monotonic() - deleted_s <= DELETION_SEEN_S
        return truth.is_lost_and_over(holder) or (seen and _is_isolated(cut, vm, holder))
    if record.dead_through >= holder.epoch:
        return record.proof is not None
    return _is_isolated(record.cut, vm, holder)


def _is_isolated(cut: Cut, vm: VirtualMachine, holder: Holder) -> bool:
    """Whether it proves that the holder reaches nothing of the VM's any more."""
    if cut.through < holder.epoch or not vm.spec.disks:
        return False
    wanted = [f"disk:{disk}" for disk in vm.spec.disks]
    if vm.spec.network_policy != "accept-duplicate":
        wanted += [f"port:{port}" for port in vm.spec.ports]
    return all(one in cut.scope for one in wanted) and cut.proof is not None


def check_entries_proven(truth: Truth, before: VirtualMachine, after: VirtualMachine, author: Author) -> str:
    """S2, on each write of a VM: entries that went were the writer's own, or fenced."""
    old, new = before.status.holders, after.status.holders
    if old == new:
        return ""
    for holder in old:
        if any(one.hypervisor == holder.hypervisor and one.run_id == holder.run_id for one in new):
            continue
        if is_fenced(truth, before, holder):
            continue
        if author.host != holder.hypervisor:
            return (
                f"{author.process} dropped the entry of {holder.hypervisor}, epoch {holder.epoch}, "
                "which is not proven dead or cut off"
            )
        domain = truth.hypervisors[author.host].domains.get(after.name)
        if domain is not None and domain.run_id == holder.run_id and domain.state is not DomainState.OFF:
            return f"{author.host} took its own entry back while the domain of run {holder.run_id} is {domain.state}"
    return ""


def check_recovery_fenced(truth: Truth, before: VirtualMachine, after: VirtualMachine, author: Author) -> str:
    """S2, on each write of a VM by recovery: it moves only what no host may still run."""
    if "recovery" not in author.writers or before.status.assigned == after.status.assigned:
        return ""
    if after.status.assigned is None or not after.status.assigned.fence:
        return ""
    unfenced = [one for one in before.status.holders if not is_fenced(truth, before, one)]
    if unfenced:
        return f"assigned to {after.status.assigned.hypervisor} while {unfenced[0].hypervisor} may still run it"
    return ""


def check_death_proven(before: MemberRecord | None, after: MemberRecord) -> str:
    """S2, on each write of a Membership: what is proven dead only grows, and only with a proof."""
    through = before.dead_through if before is not None else 0
    if after.dead_through < through:
        return f"dead through {through} became dead through {after.dead_through}"
    if after.dead_through == through:
        return ""
    if after.proof is None:
        return f"dead through {after.dead_through} without a proof"
    if after.proof.epoch < after.dead_through:
        return f"dead through {after.dead_through} by a proof of epoch {after.proof.epoch}"
    return ""


def check_proof_true(truth: Truth, host: str, before: MemberRecord | None, after: MemberRecord) -> str:
    """A proof says what is so: nothing of the epochs that it declares dead can run any more.

    Hosts about which somebody lied on purpose are excepted: there the other kinds of proof, or policy, must do. So is
    what a restored store does not know, and what somebody deleted: it is in nobody's books, and nobody starts it.
    """
    through = before.dead_through if before is not None else 0
    if host in truth.lied or host not in truth.hypervisors:
        return ""
    lost = _check_lost_over(truth, host, before, after)
    if lost or after.dead_through <= through:
        return lost
    hypervisor = truth.hypervisors[host]
    for vm, domain in hypervisor.domains.items():
        if domain.state is DomainState.OFF or not hypervisor.powered:
            continue
        found = truth.find_vm(vm)
        if found is None and (truth.restored or vm in truth.deleted):
            continue
        entries = found.status.holders if found is not None else ()
        mine = [one.epoch for one in entries if one.hypervisor == host and one.run_id == domain.run_id]
        epoch = max([domain.epoch, *mine])
        if epoch <= after.dead_through:
            return f"proven dead through {after.dead_through}, and {vm} is {domain.state} there in epoch {epoch}"
    return ""


def _check_lost_over(truth: Truth, host: str, before: MemberRecord | None, after: MemberRecord) -> str:
    """What was newly said of lost memberships of the host."""
    known = before.former if before is not None else ()
    hypervisor = truth.hypervisors[host]
    for former in (one for one in after.former if one not in known):
        if former.proof.epoch < former.dead_through:
            return f"lost membership {former.uid} dead through {former.dead_through}, by a proof of less"
        for vm, domain in hypervisor.domains.items():
            found = truth.find_vm(vm)
            if found is None or domain.state is DomainState.OFF or not hypervisor.powered:
                continue
            for one in found.status.holders:
                of_it = (one.hypervisor, one.member_uid, one.run_id) == (host, former.uid, domain.run_id)
                if of_it and one.epoch <= former.dead_through:
                    return f"lost membership {former.uid} is said to be over, and {vm} is {domain.state} there"
    return ""


def check_condemned_silent(
    truth: Truth, before: Membership | None, after: Membership, author: Author, now_s: float
) -> str:
    """No fencer condemns a host that has just renewed, by any clock, unless somebody asked for it to be fenced in that
    epoch."""
    if before is None or (before.record.state, after.record.state) != ("Held", "Revoked") or not author.host:
        return ""
    silent_s = now_s - truth.renewed_s.get(after.metadata.uid, -inf)
    uid, epoch = after.metadata.uid, before.record.epoch
    orders = (fence_order(text, uid) for host, text in truth.ordered if host == after.name)
    if silent_s >= SILENT_S / (1 + CLOCKS_APART) or any(order is not None and order[0] == epoch for order in orders):
        return ""
    return f"is condemned for its silence {silent_s:.1f} s after it renewed"


def check_guard_record(truth: Truth, host: str, guard: GuardState) -> str:
    """A guard that gets other times, or none, acts no later than its host's membership says that it does.

    A restored store is excepted: what it says of guards is from before.
    """
    found = truth.store.find(Membership, host)
    if found is None or truth.restored or found.record.dead_through >= found.record.epoch:
        return ""
    says = found.record.guard
    if not says.armed or (guard.armed and guard.timeout_s <= says.timeout_s and guard.watchdog_s <= says.watchdog_s):
        return ""
    is_now = f"armed with T {guard.timeout_s:g} s and W {guard.watchdog_s:g} s" if guard.armed else "disarmed"
    return f"its guard is {is_now}, and its membership says T {says.timeout_s:g} s and W {says.watchdog_s:g} s"


def check_watchdog_wait(truth: Truth, before: Membership | None, after: Membership, now_s: float) -> str:
    """A proof by watchdog waits for the guard's and the watchdog's time after the last renewal, by any clock."""
    known = before.record.fence.findings if before is not None else ()
    if all(one in known or one.kind != "watchdog" for one in after.record.fence.findings):
        return ""
    guard = after.record.guard
    need_s = (guard.timeout_s + 2 * guard.watchdog_s + RESET_S) * (1 + 2 * CLOCKS_APART) / (1 + CLOCKS_APART)
    waited_s = now_s - truth.renewed_s.get(after.metadata.uid, -inf)
    if waited_s >= need_s:
        return ""
    return f"is proven dead by its watchdog {waited_s:.2f} s after it renewed, and not {need_s:.2f} s"
