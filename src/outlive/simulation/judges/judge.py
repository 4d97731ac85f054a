"""Calls the invariants after every event, each only on what changed, and adds protocol writes to the history.

What one event may break is looked at with that event: a domain that changed, a write that counted, an answer that was
given. What only holds at rest is judged when the world asks for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final

from outlive.guard import GuardState
from outlive.network import Rows
from outlive.resources import RECOVERY_STEPS, Coverage, Hypervisor, Membership, Reservation, Resource, VirtualMachine
from outlive.simulation.history import History
from outlive.simulation.judges.commitments import Batches, Wanted
from outlive.simulation.judges.networks import check_network, find_contradictions, find_leftover_rows
from outlive.simulation.judges.proofs import (
    check_condemned_silent,
    check_death_proven,
    check_entries_proven,
    check_guard_record,
    check_proof_true,
    check_recovery_fenced,
    check_watchdog_wait,
)
from outlive.simulation.judges.rest import (
    check_coverage_true,
    check_instances_counted_once,
    check_room_counted_once,
    check_runs_or_reason,
)
from outlive.simulation.judges.truth import VIOLATIONS_LIMIT, InvariantViolation, Truth
from outlive.simulation.judges.vms import (
    Slow,
    Starts,
    check_degrading_move,
    check_deletion_safe,
    check_holder_listed,
    check_no_old_state,
    check_one_presence,
    check_one_vm_writes,
    check_one_writer,
    check_own_slot,
)
from outlive.simulation.narration import narrate
from outlive.simulation.refusals import WriteRefusal
from outlive.simulation.stores import Author
from outlive.store import Write

PACE_S: Final = 10.0
PACE_WRITES: Final = 60
"""So many writes of one object by one process within ``PACE_S`` are a loop without a pause."""
WRITES_PER_MEMBER: Final = 2
"""More of a slot, for each VM in it: where a rack is lost many join at once, each by a write of its own."""
COVERS: Final[tuple[type[Resource], ...]] = (VirtualMachine, Hypervisor, Reservation, Coverage)
"""Kinds on whose changes coverage depends."""
QUOTED_ALSO: Final = 4
"""Other objects whose events a violation quotes."""
HOLDERS_LIMIT: Final = 8
"""Two in a move, and those that are fenced and not yet dropped."""
FINDINGS_LIMIT: Final = 6
"""One of each kind of proof."""
REFUSED_S: Final = 60.0
"""How long a process that hears of it may be refused one write, tried at least so often. Watches that broke are listed
anew within seconds, so until then it may have yet to notice something; after that the table and the code disagree."""


class Judge:
    """See the module."""

    def __init__(self, truth: Truth, *, seed: int, replay: str) -> None:
        self.truth = truth
        self.violations: list[InvariantViolation] = []
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

    def judge_domain(self, host: str, vm: str, how: str) -> None:
        """A domain came, changed or went."""
        truth = self.truth
        truth.note_domain(host, vm)
        self._starts.note_domain(host, vm)
        truth.history.add("domain", vm, f"on {host}: {how}", also=(host,))
        self._check_writers(vm)

    def judge_guard(self, host: str, state: GuardState) -> None:
        """A guard was armed, or disarmed."""
        self._report("guard", host, check_guard_record(self.truth, host, state))

    def judge_host(self, host: str) -> None:
        """What the host is shut out of has changed."""
        for vm in list(self.truth.hypervisors[host].domains):
            self._check_writers(vm)

    def judge_rows(self, before: Rows, after: Rows) -> None:
        """OVN has other rows from now on: they contradict nowhere."""
        for subject, text in find_contradictions(after) if after is not before else ():
            self._report("rows", subject, text)

    def judge_presence(self) -> None:
        """Packets go elsewhere from now on: a chassis has other flows, or a guest was heard."""
        for vm in self.truth.holding:
            self._check_presence(vm)

    def judge_write(self, write: Write, author: Author) -> None:
        """A write counts from now on."""
        truth, before, after, now_s = self.truth, write.before, write.after, asyncio.get_running_loop().time()
        truth.history.hash_write(f"{author.process}|{write.kind.__name__}/{write.key}|", write.raw or b"")
        self._report("limits", write.key, self._check_pace(write, author))
        self._report("S4", write.key, self.batches.judge_write(before, after))
        for event in narrate(before, after, author):
            truth.history.record(event)
        if write.kind in COVERS:
            self.changed_s = now_s
        if after is None:
            if isinstance(before, VirtualMachine):
                truth.deleted[before.name] = None
                self._report("held", before.name, check_deletion_safe(truth, before))
            elif isinstance(before, Membership):
                truth.cut_when_deleted[before.metadata.uid] = (before.record.cut, now_s)
            return
        self._report("limits", write.key, check_limits(after))
        if isinstance(after, VirtualMachine):
            if isinstance(before, VirtualMachine) and before.status is not after.status:
                self._check_proofs(before, after, author)
                self._report("order", after.name, self._starts.judge_write(before, after))
                self._report("slot", after.name, check_own_slot(truth, before, after))
                self._check_holders(after.name)
                degrading = check_degrading_move(truth, self._slow, before, after, author, now_s)
                self._report("leaving", after.name, degrading)
        elif isinstance(after, Hypervisor):
            self._slow.note_host(after, now_s)
            if after.spec.fencing.requested:
                truth.ordered[after.name, after.spec.fencing.requested] = None
        elif isinstance(after, Membership):
            self._check_member(before if isinstance(before, Membership) else None, after, author)

    def _check_proofs(self, before: VirtualMachine, after: VirtualMachine, author: Author) -> None:
        self._report("S2", after.name, check_entries_proven(self.truth, before, after, author))
        self._report("S2", after.name, check_recovery_fenced(self.truth, before, after, author))

    def _check_member(self, before: Membership | None, after: Membership, author: Author) -> None:
        truth, old, now_s = self.truth, before.record if before is not None else None, asyncio.get_running_loop().time()
        self._report("silence", after.name, check_condemned_silent(truth, before, after, author, now_s))
        self._report("proof", after.name, check_watchdog_wait(truth, before, after, now_s))
        if after.record.state == "Held":
            truth.renewed_s[after.metadata.uid] = now_s
        if after.record.proof is not None:
            truth.proven[after.metadata.uid] = after.record.dead_through
        for former in after.record.former:
            truth.proven[former.uid] = max(former.dead_through, truth.proven.get(former.uid, 0))
        if old is None or old.dead_through != after.record.dead_through:
            self._report("S2", after.name, check_death_proven(old, after.record))
            self._report("proof", after.name, check_proof_true(truth, after.name, old, after.record))

    def judge_refusal(self, write: Write, author: Author, refusal: WriteRefusal) -> None:
        """A write that its author may not make does not count, but an operator's, who may be an administrator. What
        would have been done without a proof is wrong also where the server is in its way."""
        now_s, before, after = asyncio.get_running_loop().time(), write.before, write.after
        if isinstance(before, VirtualMachine) and isinstance(after, VirtualMachine):
            self._check_proofs(before, after, author)
        self._report("one-writer", write.key, self._refusals.judge_refusal(write, author, refusal, now_s))

    def judge_acknowledged(self, answer: object) -> None:
        """A writer was answered that its write counts."""
        self._report("S5", getattr(answer, "name", ""), check_acknowledged_kept(self.truth, answer))

    def judge_answer(self, request: str, accepted: bool, wanted: Wanted) -> None:
        """Limes was answered: S4."""
        self._report("S4", request, self.batches.judge_answer(request, accepted, wanted))

    def judge_rest(self, recent: Collection[str] = ()) -> None:
        """Nothing has changed for a while: what holds only then. Of VMs that were lost a moment ago L1 says nothing."""
        self.judge_coverage()
        for vm in self.truth.store.list_all(VirtualMachine):
            if vm.name in recent:
                continue
            self._report("L1", vm.name, check_runs_or_reason(self.truth, vm))
        for name, text in check_room_counted_once(self.truth):
            self._report("room", name, text)
        for name, text in self.batches.judge_rest():
            self._report("S4", name, text)
        for name, text in check_instances_counted_once(self.truth):
            self._report("room", name, text)
        for name, text in self.addresses_at_rest():
            self._report("lease", name, text)
        for name, text in (*check_network(self.truth, recent), *find_leftover_rows(self.truth)):
            self._report("network", name, text)

    def judge_coverage(self) -> None:
        """S3, once the last change is a second old."""
        for name, text in check_coverage_true(self.truth):
            self._report("S3", name, text)

    def _check_pace(self, write: Write, author: Author) -> str:
        """A loop without a pause: one process that writes one object again and again."""
        place = (author.process, write.kind.__name__, write.key)
        now = asyncio.get_running_loop().time()
        begun, count = self._pace.get(place, (now, 0))
        if now - begun > PACE_S:
            begun, count = now, 0
        self._pace[place] = (begun, count + 1)
        slot = write.after.status.failover_reservation if isinstance(write.after, Reservation) else None
        limit = PACE_WRITES + WRITES_PER_MEMBER * (len(slot.allocations) if slot is not None else 0)
        if count + 1 < limit:
            return ""
        return f"{author.process} wrote {write.kind.__name__}/{write.key} {limit} times within {PACE_S:g} s"

    def _check_writers(self, vm: str) -> None:
        self._report("S1a", vm, check_one_writer(self.truth, vm))
        self._report("S1a", vm, check_one_vm_writes(self.truth, vm))
        self._report("S1a", vm, check_no_old_state(self.truth, vm))
        self._check_presence(vm)
        self._check_holders(vm)

    def _check_presence(self, vm: str) -> None:
        self._report("S1b", vm, check_one_presence(self.truth, vm))

    def _check_holders(self, vm: str) -> None:
        self._report("held", vm, check_holder_listed(self.truth, vm, self.truth.find_vm(vm)))

    def read(self, process: str, what: str) -> None:
        """A process asked for what the server would refuse its token: a daemon needs nothing of that."""
        self._report("token", what, f"{process} reads {what}")

    def judge_address(self, address: str, text: str) -> None:
        """An address of hosts is on several of them, or on none, for too long."""
        self._report("address", address, text)

    def _report(self, invariant: str, subject: str, text: str) -> None:
        if not text or (invariant, subject, text) in self._reported or len(self.violations) >= VIOLATIONS_LIMIT:
            return
        self._reported[(invariant, subject, text)] = None
        hosts = [name for name in self.truth.hypervisors if name in text.replace(",", " ").split()]
        violation = InvariantViolation(
            invariant=invariant,
            at_s=asyncio.get_running_loop().time(),
            subject=subject,
            text=text,
            last_events=self.truth.history.last_events(subject, *hosts[:QUOTED_ALSO]),
            seed=self._seed,
            replay=self.replay,
        )
        self.violations.append(violation)
        self.truth.history.add("violation", subject, f"{invariant}: {text}")


class RefusedWrites:
    """The writes that processes are refused again and again."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._since: dict[tuple[str, str, str], tuple[float, float]] = {}
        """Process, object and reason → when it was first refused, and last, without a longer time than ``REFUSED_S``
        between."""

    def judge_refusal(self, write: Write, author: Author, refusal: WriteRefusal, now_s: float) -> str:
        """What is wrong with a process that tries what the server refuses a token with its names: nothing yet where the
        server has looked at more than the object itself, and the process may have yet to notice that."""
        what = f"{author.process} as {'/'.join(author.writers)} {refusal.why}"
        place = (author.process, f"{write.kind.__name__}/{write.key}", refusal.why)
        since_s, last_s = self._since.get(place, (now_s, float("-inf")))
        if now_s - last_s > REFUSED_S:
            since_s = now_s
            text = f"the server refuses it: {what}"
            self._history.add("refused", write.key, text, loud=not refusal.by_facts)
        if not author.hears:
            since_s = now_s
        self._since[place] = (since_s, now_s)
        if not refusal.by_facts:
            return what
        return f"{what}, and tries it for {REFUSED_S:g} s" if now_s - since_s > REFUSED_S else ""


def check_acknowledged_kept(truth: Truth, answer: object) -> str:
    """S5: the object that a writer got as an answer is what the store has, or something later, or was deleted since."""
    if not isinstance(answer, Resource):
        return ""
    kept = truth.store.find(type(answer), answer.name)
    if kept is None or kept.metadata.uid != answer.metadata.uid:
        return ""
    if int(kept.metadata.resource_version) < int(answer.metadata.resource_version):
        version = answer.metadata.resource_version
        return f"version {version} was acknowledged, and the store has {kept.metadata.resource_version}"
    return ""


def check_limits(after: Resource) -> str:
    """Lists in documents stay short."""
    if isinstance(after, VirtualMachine):
        if len(after.status.holders) > HOLDERS_LIMIT:
            return f"{len(after.status.holders)} holders"
        if after.status.recovery is not None and len(after.status.recovery.steps) > RECOVERY_STEPS:
            return f"{len(after.status.recovery.steps)} steps of one recovery"
    if isinstance(after, Membership) and len(after.record.fence.findings) > FINDINGS_LIMIT:
        return f"{len(after.record.fence.findings)} findings of one fence"
    return ""
