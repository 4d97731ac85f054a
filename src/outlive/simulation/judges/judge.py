"""Calls the invariants after every event, each only on what changed, and adds protocol writes to the history.

What one event may break is looked at with that event: a domain that changed, a write that counted, an answer that was
given. What only holds at rest is judged when the world asks for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final

from outlive.guard.states import State
from outlive.network.operations import Rows
from outlive.resources import Coverage, Hypervisor, Membership, Reservation, Resource, VirtualMachine
from outlive.simulation.judges.commitments import Batches, Wanted
from outlive.simulation.judges.networks import contradictions, network_is_right, rows_left_over
from outlive.simulation.judges.proofs import (
    condemned_in_silence,
    dead_with_proof,
    entries_go_with_proof,
    guard_keeps_to_what_is_published,
    proof_is_true,
    recovered_only_when_fenced,
    watchdog_waited,
)
from outlive.simulation.judges.rest import (
    coverage_is_true,
    instances_are_counted_once,
    no_room_is_counted_twice,
    runs_or_says_why,
)
from outlive.simulation.judges.truth import VIOLATIONS_LIMIT, Truth, Violation
from outlive.simulation.judges.vms import (
    Slow,
    Starts,
    goes_once_it_ended,
    held_where_it_runs,
    lands_in_its_own_slot,
    leaves_alive_and_for_better,
    never_from_the_past,
    one_presence,
    one_vm_writes,
    one_writer,
)
from outlive.simulation.judges.writes import (
    RefusedWrites,
    acknowledged_is_kept,
    within_limits,
)
from outlive.simulation.narration import narrate
from outlive.simulation.refusals import Refusal
from outlive.simulation.stores import Author
from outlive.store.tables import Write

PACE_S: Final = 10.0
PACE_WRITES: Final = 60
"""So many writes of one object by one process within ``PACE_S`` are a loop without a pause."""
WRITES_PER_MEMBER: Final = 2
"""More of a slot, for each VM in it: where a rack is lost many join at once, each by a write of its own."""
COVERS: Final[tuple[type[Resource], ...]] = (VirtualMachine, Hypervisor, Reservation, Coverage)
"""Kinds on whose changes coverage depends."""
QUOTED_ALSO: Final = 4
"""Other objects whose events a violation quotes."""


class Judge:
    """See the module."""

    def __init__(self, truth: Truth, *, seed: int, replay: str) -> None:
        self.truth = truth
        self.violations: list[Violation] = []
        self.replay = replay
        self.changed_s = 0.0
        """When something changed last that coverage depends on."""
        self.addresses_at_rest: Callable[[], Iterable[tuple[str, str]]] = tuple
        """What of hosts' own networks is not as it should be at rest, as subjects and texts."""
        self._seed = seed
        self._starts = Starts(truth)
        self._pace: dict[tuple[str, str, str], tuple[float, int]] = {}
        self._reported: dict[tuple[str, str, str], None] = {}
        self._slow = Slow()
        self._refusals = RefusedWrites(truth.history)
        self.batches = Batches(truth)

    def domain(self, host: str, vm: str, how: str) -> None:
        """A domain came, changed or went."""
        truth = self.truth
        truth.noticed(host, vm)
        self._starts.noticed(host, vm)
        truth.history.add("domain", vm, f"on {host}: {how}", also=(host,))
        self._running(vm)

    def guard(self, host: str, state: State) -> None:
        """A guard was armed, or disarmed."""
        self._found("guard", host, guard_keeps_to_what_is_published(self.truth, host, state))

    def reach(self, host: str) -> None:
        """What the host is shut out of has changed."""
        for vm in list(self.truth.hypervisors[host].domains):
            self._running(vm)

    def committed(self, before: Rows, after: Rows) -> None:
        """OVN has other rows from now on: they contradict nowhere."""
        for subject, text in contradictions(after) if after is not before else ():
            self._found("rows", subject, text)

    def switched(self) -> None:
        """Packets go elsewhere from now on: a chassis has other flows, or a guest was heard."""
        for vm in self.truth.holding:
            self._present(vm)

    def wrote(self, write: Write, author: Author) -> None:
        """A write counts from now on."""
        truth, before, after = self.truth, write.before, write.after
        truth.history.wrote(f"{author.process}|{write.kind.__name__}/{write.key}|", write.raw or b"")
        self._found("limits", write.key, self._spins(write, author))
        self._found("S4", write.key, self.batches.wrote(before, after))
        for event in narrate(before, after, author):
            truth.history.record(event)
        if write.kind in COVERS:
            self.changed_s = asyncio.get_running_loop().time()
        if after is None:
            if isinstance(before, VirtualMachine):
                truth.deleted[before.name] = None
                self._found("held", before.name, goes_once_it_ended(truth, before))
            elif isinstance(before, Membership):
                now_s = asyncio.get_running_loop().time()
                truth.cut_when_deleted[before.metadata.uid] = (before.record.cut, now_s)
            return
        self._found("limits", write.key, within_limits(after))
        if isinstance(after, VirtualMachine):
            if isinstance(before, VirtualMachine) and before.status is not after.status:
                self._unproven(before, after, author)
                self._found("order", after.name, self._starts.wrote(before, after))
                self._found("slot", after.name, lands_in_its_own_slot(truth, before, after))
                self._held(after.name)
                self._found("leaving", after.name, self._leaves(before, after, author))
        elif isinstance(after, Hypervisor):
            self._slow.wrote(after, asyncio.get_running_loop().time())
            if after.spec.fencing.requested:
                truth.ordered[after.name, after.spec.fencing.requested] = None
        elif isinstance(after, Membership):
            self._member(before if isinstance(before, Membership) else None, after, author)

    def _unproven(self, before: VirtualMachine, after: VirtualMachine, author: Author) -> None:
        self._found("S2", after.name, entries_go_with_proof(self.truth, before, after, author))
        self._found("S2", after.name, recovered_only_when_fenced(self.truth, before, after, author))

    def _member(self, before: Membership | None, after: Membership, author: Author) -> None:
        truth, old, now_s = self.truth, before.record if before is not None else None, asyncio.get_running_loop().time()
        self._found("silence", after.name, condemned_in_silence(truth, before, after, author, now_s))
        self._found("proof", after.name, watchdog_waited(truth, before, after, now_s))
        if after.record.state == "Held":
            truth.renewed_s[after.metadata.uid] = now_s
        if after.record.proof is not None:
            truth.proven[after.metadata.uid] = after.record.dead_through
        for former in after.record.former:
            truth.proven[former.uid] = max(former.dead_through, truth.proven.get(former.uid, 0))
        if old is None or old.dead_through != after.record.dead_through:
            self._found("S2", after.name, dead_with_proof(old, after.record))
            self._found("proof", after.name, proof_is_true(truth, after.name, old, after.record))

    def refused(self, write: Write, author: Author, refusal: Refusal) -> None:
        """A write that its author may not make does not count, but an operator's, who may be an administrator. What
        would have been done without a proof is wrong also where the server is in its way."""
        now_s, before, after = asyncio.get_running_loop().time(), write.before, write.after
        if isinstance(before, VirtualMachine) and isinstance(after, VirtualMachine):
            self._unproven(before, after, author)
        self._found("one-writer", write.key, self._refusals.refused(write, author, refusal, now_s))

    def acknowledged(self, answer: object) -> None:
        """A writer was answered that its write counts."""
        self._found("S5", getattr(answer, "name", ""), acknowledged_is_kept(self.truth, answer))

    def answered(self, request: str, accepted: bool, wanted: Wanted) -> None:
        """Limes was answered: S4."""
        self._found("S4", request, self.batches.answered(request, accepted, wanted))

    def rest(self, recent: Collection[str] = ()) -> None:
        """Nothing has changed for a while: what holds only then. Of VMs that were lost a moment ago L1 says nothing."""
        self.covered()
        for vm in self.truth.store.all_of(VirtualMachine):
            if vm.name in recent:
                continue
            self._found("L1", vm.name, runs_or_says_why(self.truth, vm))
        for name, text in no_room_is_counted_twice(self.truth):
            self._found("room", name, text)
        for name, text in self.batches.rest():
            self._found("S4", name, text)
        for name, text in instances_are_counted_once(self.truth):
            self._found("room", name, text)
        for name, text in self.addresses_at_rest():
            self._found("lease", name, text)
        for name, text in (*network_is_right(self.truth, recent), *rows_left_over(self.truth)):
            self._found("network", name, text)

    def covered(self) -> None:
        """S3, once the last change is a second old."""
        for name, text in coverage_is_true(self.truth):
            self._found("S3", name, text)

    def _leaves(self, before: VirtualMachine, after: VirtualMachine, author: Author) -> str:
        now_s = asyncio.get_running_loop().time()
        return leaves_alive_and_for_better(self.truth, self._slow, before, after, author, now_s)

    def _spins(self, write: Write, author: Author) -> str:
        """A loop without a pause: one process that writes one object again and again."""
        place = (author.process, write.kind.__name__, write.key)
        now = asyncio.get_running_loop().time()
        begun, count = self._pace.get(place, (now, 0))
        if now - begun > PACE_S:
            begun, count = now, 0
        self._pace[place] = (begun, count + 1)
        limit = PACE_WRITES + WRITES_PER_MEMBER * _members(write.after)
        if count + 1 < limit:
            return ""
        return f"{author.process} wrote {write.kind.__name__}/{write.key} {limit} times within {PACE_S:g} s"

    def _running(self, vm: str) -> None:
        self._found("S1a", vm, one_writer(self.truth, vm))
        self._found("S1a", vm, one_vm_writes(self.truth, vm))
        self._found("S1a", vm, never_from_the_past(self.truth, vm))
        self._present(vm)
        self._held(vm)

    def _present(self, vm: str) -> None:
        self._found("S1b", vm, one_presence(self.truth, vm))

    def _held(self, vm: str) -> None:
        self._found("held", vm, held_where_it_runs(self.truth, vm, self.truth.vm(vm)))

    def read(self, process: str, what: str) -> None:
        """A process asked for what the server would refuse its token: a daemon needs nothing of that."""
        self._found("token", what, f"{process} reads {what}")

    def placed(self, address: str, text: str) -> None:
        """An address of hosts is on several of them, or on none, for too long."""
        self._found("address", address, text)

    def _found(self, invariant: str, subject: str, text: str) -> None:
        if not text or (invariant, subject, text) in self._reported or len(self.violations) >= VIOLATIONS_LIMIT:
            return
        self._reported[(invariant, subject, text)] = None
        hosts = [name for name in self.truth.hypervisors if name in text.replace(",", " ").split()]
        violation = Violation(
            invariant=invariant,
            at_s=asyncio.get_running_loop().time(),
            subject=subject,
            text=text,
            last_events=self.truth.history.last(subject, *hosts[:QUOTED_ALSO]),
            seed=self._seed,
            replay=self.replay,
        )
        self.violations.append(violation)
        self.truth.history.add("violation", subject, f"{invariant}: {text}")


def _members(after: Resource | None) -> int:
    """VMs in it, where it is a slot."""
    slot = after.status.failover_reservation if isinstance(after, Reservation) else None
    return len(slot.allocations) if slot is not None else 0
