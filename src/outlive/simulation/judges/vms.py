"""What is promised of VMs, judged at the event that may break it: who runs one, where it starts, and in which order.

A VM is started in order if those that it starts after were seen running, or it says why not; judged by what really ran,
at the write by which a host takes the VM to start it. A host may follow what it saw some seconds ago, or at any moment
since the VM could start. Directed recovery sends a VM into a slot of its own, which nobody else is let into. VMs of
hosts that degrade leave alive, and for hosts that do well.
"""

from __future__ import annotations

import asyncio
from typing import Final

from outlive.node.ports import DomainState
from outlive.resources import Holder, Hypervisor, Reservation, VirtualMachine
from outlive.simulation.judges.truth import Truth
from outlive.simulation.stores import Author


def check_one_writer(truth: Truth, vm: str) -> str:
    """S1a. Two hosts whose domain of it runs and is not shut out of its disks."""
    hosts = truth.holding.get(vm, ())
    if len(hosts) < 2:
        return ""
    writers = [
        host for host in truth.running_hosts(vm) if truth.disks.reaches_disks(host, truth.hypervisors[host].domains[vm])
    ]
    return f"{' and '.join(writers)} write its disks" if len(writers) > 1 else ""


def check_one_vm_writes(truth: Truth, vm: str) -> str:
    """S1a, between VMs: a disk that not both of them share is written by a domain of it and by one of another VM."""
    for host in truth.running_hosts(vm):
        domain = truth.hypervisors[host].domains[vm]
        if not truth.disks.reaches_disks(host, domain):
            continue
        for disk in domain.disks:
            for other in truth.had.get(disk, ()):
                for there in truth.running_hosts(other) if other != vm else ():
                    second = truth.hypervisors[there].domains[other]
                    both = disk in domain.shared and disk in second.shared
                    if disk in second.disks and not both and truth.disks.reaches_disks(there, second):
                        return f"{host} writes its disk {disk}, and {there} does for {other}"
    return ""


def check_no_old_state(truth: Truth, vm: str) -> str:
    """S1a, over time: a domain whose state was handed over and ran elsewhere runs again, on disks that went on."""
    for host in truth.holding.get(vm, ()):
        domain = truth.hypervisors[host].domains.get(vm)
        if domain is not None and domain.left and domain.state is DomainState.RUNNING:
            return f"runs on {host} from a state that it had left for another host"
    return ""


def check_one_presence(truth: Truth, vm: str) -> str:
    """S1b. Two hosts whose domain of it runs and answers; a VM may accept that of a host that is off its disks."""
    hosts = truth.holding.get(vm, ())
    if len(hosts) < 2:
        return ""
    there = [host for host in truth.running_hosts(vm) if truth.is_answering(host, vm)]
    if len(there) < 2:
        return ""
    excepted = [
        host
        for host in there
        if truth.hypervisors[host].domains[vm].accept_duplicate
        and not truth.disks.reaches_disks(host, truth.hypervisors[host].domains[vm])
    ]
    return f"{' and '.join(there)} answer at its addresses" if len(there) - len(excepted) > 1 else ""


def check_holder_listed(truth: Truth, name: str, vm: VirtualMachine | None) -> str:
    """What rests under S1: a domain that runs has an entry in ``holders``, until the host is known not to run it.

    A VM without a document is not judged; while it runs its document must not go (``check_deletion_safe``). An entry of
    a host that is fenced may be dropped, also while some servers have yet to hear of its cut; a store that was restored
    knows only of hosts that have registered since.
    """
    return "" if vm is None else _check_entry(truth, name, vm.status.holders)


def check_deletion_safe(truth: Truth, vm: VirtualMachine) -> str:
    """What rests under S1 as well: the document of a VM goes once it runs nowhere, or only where that is fenced."""
    return _check_entry(truth, vm.name, ())


def _check_entry(truth: Truth, name: str, holders: tuple[Holder, ...]) -> str:
    for host in truth.running_hosts(name):
        domain = truth.hypervisors[host].domains[name]
        if any(one.hypervisor == host and one.run_id == domain.run_id for one in holders):
            continue
        member = truth.store.find_member_record(host)
        if member is not None and member.dead_through >= domain.epoch:
            continue
        shut_out = not truth.disks.reaches_disks(host, domain, on_record=True)
        if not shut_out and host not in truth.lied and not truth.is_unregistered(host):
            return f"it runs on {host} as run {domain.run_id} of epoch {domain.epoch}, which is not among its holders"
    return ""


UNNOTICED_S: Final = 30.0
"""How long the daemon of a living host may not know that a domain of it has ended."""
ON_THE_WAY_S: Final = 40.0
"""How long a renewal may be on its way that a host sent before it lost power."""
NEVER: Final = float("-inf")


class Starts:
    """Remembers since when each VM could start, and when it ran last."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._up: dict[str, dict[str, None]] = {}
        """VM → hosts where a domain of it runs, also while the host stands still."""
        self._ended: dict[str, tuple[float, str]] = {}
        """VM → when a running domain of it ended last, and where."""
        self._assigned_s: dict[str, float] = {}
        self._ran: dict[tuple[str, str], str] = {}
        """Host and VM → the run that ran there last: a host that registers it anew starts nothing."""

    def note_domain(self, host: str, vm: str) -> None:
        """Its domain on that host came, changed or went."""
        domain = self._truth.hypervisors[host].domains.get(vm)
        up = self._up.setdefault(vm, {})
        if domain is not None and domain.state is DomainState.RUNNING:
            up[host] = None
            self._ran[host, vm] = domain.run_id
        elif host in up:
            del up[host]
            self._ended[vm] = (asyncio.get_running_loop().time(), host)

    def judge_write(self, before: VirtualMachine, after: VirtualMachine) -> str:
        """What is wrong with a start that this write begins; empty where it begins none, or one in order."""
        if before.status.assigned != after.status.assigned:
            self._assigned_s[after.name] = asyncio.get_running_loop().time()
        if not after.spec.start_after:
            return ""
        known = {one.run_id for one in before.status.holders}
        for holder in after.status.holders:
            ran = self._ran.get((holder.hypervisor, after.name))
            if holder.run_id in (*known, ran) or holder.role:
                continue
            domain = self._truth.hypervisors[holder.hypervisor].domains.get(after.name)
            if domain is None or domain.run_id != holder.run_id:
                return self._check_order(after, holder.hypervisor)
        return ""

    def _check_order(self, vm: VirtualMachine, host: str) -> str:
        said = vm.status.start_order
        explained = said.without if said is not None and said.hypervisor == host and said.detail else ()
        since_s = max(self._assigned_s.get(vm.name, NEVER), self._ended.get(vm.name, (NEVER, ""))[0])
        early = [
            name
            for name in vm.spec.start_after
            if name != vm.name and name not in explained and not self._was_running(name, since_s)
        ]
        return f"is started on {host} before {', '.join(early)}, and does not say why" if early else ""

    def _was_running(self, name: str, since_s: float) -> bool:
        """Whether somebody could have seen it running at that time or later."""
        if self._up.get(name):
            return True
        ended_s, host = self._ended.get(name, (NEVER, ""))
        if not host:
            return False
        lives = self._truth.hypervisors[host].powered
        return ended_s + (UNNOTICED_S if lives else ON_THE_WAY_S) >= since_s


def check_own_slot(truth: Truth, before: VirtualMachine, after: VirtualMachine) -> str:
    """What is wrong with the slot that it is sent into; empty where it is sent into none, or into its own."""
    where = after.status.assigned
    if where is None or where.slot is None or where == before.status.assigned:
        return ""
    slot = truth.store.find(Reservation, where.slot.name)
    if slot is None:
        return f"is sent into slot {where.slot.name}, which is not there"
    consumer, failover = slot.status.consumer, slot.status.failover_reservation
    if consumer is None or (consumer.vm, consumer.fence) != (after.name, where.fence):
        taken = f"is let to {consumer.vm} (fence {consumer.fence})" if consumer is not None else "is let to nobody"
        return f"is sent into slot {slot.name} for fence {where.fence}, and that {taken}"
    if slot.status.host != where.hypervisor:
        return f"is sent to {where.hypervisor} into slot {slot.name}, which is on {slot.status.host}"
    if failover is None or after.name not in failover.allocations:
        return f"is sent into slot {slot.name}, which was not promised to it"
    return ""


KNOWN_S: Final = 90.0
"""So long after a host has said that it degrades everybody has read it, whatever became of single calls."""


class Slow:
    """Since when hosts say that they degrade."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def note_host(self, host: Hypervisor, now_s: float) -> None:
        """What a host says now."""
        if host.status.degrading is None:
            self._since.pop(host.name, None)
        else:
            self._since.setdefault(host.name, now_s)

    def is_known(self, host: str, now_s: float) -> bool:
        """Whether everybody knows that it degrades."""
        return now_s - self._since.get(host, now_s) > KNOWN_S


def check_degrading_move(
    truth: Truth, slow: Slow, before: VirtualMachine, after: VirtualMachine, author: Author, now_s: float
) -> str:
    """A move that a host begins because it degrades: live, and to a host that does well."""
    move, old = after.status.migration, before.status.migration
    if move is None or (old is not None and old.id == move.id) or after.status.answered != before.status.answered:
        return ""  # no new move, or one that a user asks for
    source = truth.store.find(Hypervisor, move.source)
    if source is None or source.spec.drain or before.host != author.host:
        return ""
    degrading = source.status.degrading
    if degrading is None or after.status.phase != "migrate-live":
        return ""
    if move.mode != "live":
        return f"{move.source} degrades, and stops it to move it to {move.target}"
    if slow.is_known(move.target, now_s):
        return f"it leaves {move.source}, which degrades, for {move.target}, which does as well"
    return ""
