"""What survives: named cases of failure, or every set of K failed units.

A VM is *lost* in a case if its unit fails and none of its slots is left to it alone
(docs/design/failover.md#surviving). That every set of K units is survived is known without looking at the
sets: it is so exactly if the tolerance of every VM that needs slots is at least K. Sets of fewer units are parts of
these and lose nobody else. Where it does not hold, or where somebody wants to see it, the sets are enumerated.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import chain, combinations, islice
from math import comb

import msgspec

from outlive.base import BadInput, LimitExceeded
from outlive.failover.analysis.tolerance import SurvivalMatrix
from outlive.failover.model import HostView, SlotView
from outlive.failover.topology import iter_bits, unite
from outlive.placement import VmView

PAIRS_LIMIT = 2_000_000_000
"""Pairs of a case and an affected VM that an enumeration on request may look at."""
PAIRS_UNASKED = 50_000_000
"""The same where it was not asked for: beyond it every lost VM is listed with the fewest failures that lose it."""
LOST_LISTED = 10_000
"""Lost pairs of VM and case that are listed; the count is always of all."""
CASES_LIMIT = 1_000_000
"""Cases that are listed one by one."""
WORST_SHOWN = 10
"""Cases that are shown because they lose most."""
COUNTED = 1 << 21
"""Lost pairs of VM and case of which the worst cases are counted; beyond it no worst case is shown."""


class Method(enum.StrEnum):
    """How the answer was found."""

    CASES = "cases"
    """The named cases were looked at."""
    TOLERANCE = "tolerance"
    """By the tolerance of every VM, which is exact; each lost VM is listed once, with the fewest failures."""
    ENUMERATION = "enumeration"
    """Every set of so many units was looked at; each lost VM is listed with every set."""


class FailuresInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A state, and what fails: named ``cases``, or any ``failures`` units."""

    vms: tuple[VmView, ...]
    required: dict[str, int]
    """VM → slots that it needs; missing means none."""
    slots: tuple[SlotView, ...] = ()
    hosts: tuple[HostView, ...] = ()
    units: dict[str, str] = {}
    """Host → its unit of failure; a host that is missing here is a unit of its own."""
    priorities: dict[str, int] = {}
    """VM → restart priority, larger is earlier; missing means 0."""
    cases: tuple[tuple[str, ...], ...] = ()
    """Sets of units that fail together; each is a case of its own."""
    failures: int = 0
    """Without ``cases``: how many units fail, whichever they are."""
    enumerate: bool = False
    """Look at every set, also where the answer is known without."""


class WorstCase(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A case that loses many."""

    case: tuple[str, ...]
    affected: int
    lost: int


class FailuresResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is lost."""

    failures: int
    """Units that fail at once; of several named cases the most."""
    cases: int
    """Sets of units that the answer is about."""
    lost: tuple[Lost, ...]
    """By VM and case; the first ``LOST_LISTED`` where there are more."""
    holds: bool
    method: Method
    lost_count: int
    """Pairs of VM and case that are lost."""
    lost_vms: int
    """VMs that are lost in some case."""
    affected: int
    """Pairs of a case and a VM that needs slots and runs on what fails."""
    unprotected: int
    """VMs that need no slots and run on what may fail; nobody promised them anything."""
    worst: tuple[WorstCase, ...] = ()
    """Cases that lose most VMs, where any loses one."""
    landing: tuple[Landing, ...] | None = None
    """For a single named case: where each affected VM goes."""


def survive(given: FailuresInput) -> FailuresResult:
    """Who is lost. ``BadInput`` for an unknown unit, ``LimitExceeded`` where there are too many sets to look at."""
    answers = Cases(given)
    matrix = answers.matrix
    if given.cases:
        return _examine_named_cases(answers)
    if given.failures < 1:
        raise BadInput("nothing fails", place="failures", remedy="name cases, or failures of 1 or more")
    failures = min(given.failures, max(1, len(matrix.unit_names)))
    pairs = len(matrix.vms) * comb(max(0, len(matrix.unit_names) - 1), failures - 1) if failures else 0
    levels, understated = ([], []) if given.enumerate else matrix.compute_levels()
    weak = [at for at, level in enumerate(levels) if level < failures]
    doubtful = not set(understated).isdisjoint(weak)
    if not given.enumerate and not doubtful and (not weak or pairs > PAIRS_UNASKED):
        weak.sort(key=lambda at: (levels[at], matrix.vms[at].id))
        listed, method = [(at, matrix.fatal_units(at)) for at in weak[:LOST_LISTED]], Method.TOLERANCE
        lost, worst = dict.fromkeys(weak, 1), []
    elif pairs > PAIRS_LIMIT:
        raise LimitExceeded(
            f"{comb(len(matrix.unit_names), failures):,} sets of {failures} units are too many to look at: "
            f"{pairs:,} landings, at most {PAIRS_LIMIT:,}",
            place="failures",
            remedy="leave the enumeration out: the answer by tolerance is exact too; or let fewer units fail",
        )
    else:
        losses = Losses(matrix, failures)
        everybody = sorted(range(len(matrix.vms)), key=lambda at: matrix.vms[at].id)
        lost = {at: count for at in everybody if (count := losses.count(at))}
        method, listed, worst = Method.ENUMERATION, losses.list_losses(lost), losses.find_worst(lost)
    return FailuresResult(
        failures=failures,
        cases=comb(len(matrix.unit_names), failures),
        lost=_list_lost(answers, listed),
        holds=not lost,
        method=method,
        lost_count=sum(lost.values()),
        lost_vms=len(lost),
        affected=pairs,
        unprotected=_count_unprotected(given),
        worst=tuple(
            WorstCase(case=matrix.unit_names_of(units), affected=len(answers.affected_vms(units)), lost=count)
            for units, count in worst
        ),
    )


class Losses:
    """The sets of so many units that leave a VM without a slot of its own: counted, and listed one by one."""

    def __init__(self, matrix: SurvivalMatrix, failures: int) -> None:
        self._matrix = matrix
        self._more = failures - 1
        """Units that fail besides the VM's own."""

    def count(self, vm: int) -> int:
        """How many there are."""
        return sum(comb(free.bit_count(), more) for _, free, more in self._build_stems(vm))

    def iter_cases(self, vm: int) -> Iterator[tuple[int, ...]]:
        """Each of them once, its units ascending."""
        own = self._matrix.own[vm]
        for units, free, more in self._build_stems(vm):
            for rest in combinations(iter_bits(free), more):
                yield tuple(sorted((own, *units, *rest)))

    def _build_stems(self, vm: int) -> Iterator[Stem]:
        matrix = self._matrix
        others = ((1 << len(matrix.unit_names)) - 1) & ~(1 << matrix.own[vm])
        return _build_spoiling_stems(matrix.spoiling_units(vm), others, self._more)

    def list_losses(self, lost: Mapping[int, int]) -> list[tuple[int, tuple[str, ...]]]:
        """(VM, case) up to ``LOST_LISTED``; every VM that is lost comes before any second case."""
        first = [(vm, next(self.iter_cases(vm))) for vm in islice(lost, LOST_LISTED)]
        more = ((vm, case) for vm in lost for case in islice(self.iter_cases(vm), 1, None))
        return [
            (vm, self._matrix.unit_names_of(case)) for vm, case in chain(first, islice(more, LOST_LISTED - len(first)))
        ]

    def find_worst(self, lost: Mapping[int, int]) -> list[tuple[tuple[int, ...], int]]:
        """The cases that lose most VMs, with how many; none where there are too many to count."""
        if sum(lost.values()) > COUNTED:
            return []
        tally = Counter(case for vm in lost for case in self.iter_cases(vm))
        return nsmallest(WORST_SHOWN, tally.items(), key=lambda one: (-one[1], one[0]))


Stem = tuple[tuple[int, ...], int, int]
"""Units that spoil everything, and how many more fail: whichever they are of these."""


def _build_spoiling_stems(spoilers: Sequence[int], others: int, number: int) -> Iterator[Stem]:
    """Every set of so many of the other units that has one of each of these is of one stem."""
    if not spoilers:
        yield (), others, number
    elif number >= _count_disjoint(spoilers):
        for unit in iter_bits(spoilers[0] & others):
            others &= ~(1 << unit)
            rest = [units for units in spoilers[1:] if not units >> unit & 1]
            for units, free, more in _build_spoiling_stems(rest, others, number - 1):
                yield (unit, *units), free, more


def _count_disjoint(spoilers: Sequence[int]) -> int:
    """Spoilers of which no two have a unit in common: each needs one of its own."""
    seen = count = 0
    for units in spoilers:
        if not seen & units:
            seen |= units
            count += 1
    return count


def iter_cases(given: FailuresInput) -> Iterator[tuple[tuple[str, ...], CaseResult]]:
    """The cases one by one, with where everybody lands; ``LimitExceeded`` where there are too many to list."""
    answers = Cases(given)
    if given.cases:
        yield from ((case, answers.examine(case)) for case in given.cases)
        return
    names = sorted(answers.matrix.unit_names)
    failures = min(given.failures, len(names))
    count = comb(len(names), failures)
    if count > CASES_LIMIT:
        raise LimitExceeded(
            f"{count:,} cases are too many to list one by one, at most {CASES_LIMIT:,}",
            place="failures",
            remedy="let fewer units fail, or leave --cases out: totals are computed for all of them",
        )
    yield from ((case, answers.examine(case)) for case in combinations(names, failures))


def _examine_named_cases(answers: Cases) -> FailuresResult:
    cases = answers.given.cases
    results = [answers.examine(case) for case in cases]
    affected = [len(answers.affected_vms(answers.parse_case(case))) for case in cases]
    worst = [
        WorstCase(case=case, affected=here, lost=len(result.lost))
        for case, here, result in zip(cases, affected, results, strict=True)
        if result.lost
    ]
    lost = [one for result in results for one in result.lost]
    single = len(cases) == 1
    return FailuresResult(
        failures=max(len(set(case)) for case in cases),
        cases=len(cases),
        lost=_sort_lost(lost[:LOST_LISTED]),
        holds=not lost,
        method=Method.CASES,
        lost_count=len(lost),
        lost_vms=len({one.vm for one in lost}),
        affected=sum(affected),
        unprotected=_count_unprotected(answers.given, {name for case in cases for name in case}),
        worst=() if single else tuple(sorted(worst, key=lambda one: (-one.lost, one.case))[:WORST_SHOWN]),
        landing=results[0].landing if single else None,
    )


def _count_unprotected(given: FailuresInput, failing: set[str] | None = None) -> int:
    """VMs that need no slots, on these units or on any."""
    return sum(
        1
        for vm in given.vms
        if given.required.get(vm.id, 0) <= 0 and (failing is None or given.units.get(vm.host, vm.host) in failing)
    )


def _list_lost(answers: Cases, pairs: Iterable[tuple[int, tuple[str, ...]]]) -> tuple[Lost, ...]:
    """Pairs of a lost VM's number and a case, in full."""
    losses: dict[tuple[str, ...], dict[str, Lost]] = {}
    found = []
    for at, case in pairs:
        if case not in losses:
            losses[case] = {one.vm: one for one in answers.examine(case).lost}
        found.append(losses[case][answers.matrix.vms[at].id])
    return _sort_lost(found)


def _sort_lost(lost: Iterable[Lost]) -> tuple[Lost, ...]:
    return tuple(sorted(lost, key=lambda one: (one.vm, one.case)))


class LostReason(enum.StrEnum):
    """Why a VM has no slot of its own in a case."""

    NO_SLOT = "no-slot"
    """No slot counts for it, whatever fails."""
    SLOTS_FAILED = "slots-failed"
    """All its slots are on what failed."""
    CONTESTED = "contested"
    """Its living slots belong to other affected VMs as well."""


class Landing(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where an affected VM is brought up again."""

    vm: str
    source: str = msgspec.field(name="from")
    """The host that failed under it."""
    slot: str
    host: str
    contested: bool = False
    """Somebody else who is affected has a claim to the slot too and goes elsewhere, or without."""


class Lost(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM without a slot of its own in a case."""

    vm: str
    case: tuple[str, ...]
    """What failed."""
    host: str
    reason: LostReason
    required: int
    """Slots that it needs: as many failures as it was promised to survive."""
    takes: str = ""
    """The contested slot that restart priority leaves it; empty if there is none."""
    rivals: tuple[str, ...] = ()
    """Affected VMs that have a claim to its living slots, the first few by name."""


class CaseResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one case does. Both lists by VM."""

    landing: tuple[Landing, ...]
    lost: tuple[Lost, ...]


RIVALS_NAMED = 5
"""Rivals that are named for a VM whose slots are contested."""


class Cases:
    """Answers about cases, one after the other; what concerns a slot is prepared when it is first asked for."""

    def __init__(self, given: FailuresInput) -> None:
        needing = [vm for vm in given.vms if given.required.get(vm.id, 0) > 0]
        hosts = [host.name for host in given.hosts]
        locations = {vm.id: vm.host for vm in given.vms}
        matrix = SurvivalMatrix(needing, given.slots, locations, given.units, hosts)
        self.given = given
        self.matrix = matrix
        self._on: dict[int, list[int]] = {}
        for at, unit in enumerate(matrix.own):
            self._on.setdefault(unit, []).append(at)

    def affected_vms(self, down: Iterable[int]) -> list[int]:
        """Numbers of the VMs on these units."""
        return [at for unit in sorted(set(down)) for at in self._on.get(unit, ())]

    def parse_case(self, case: tuple[str, ...]) -> frozenset[int]:
        """The numbers of these units; ``BadInput`` for a name that is none."""
        numbers = {name: self.matrix.unit_number(name) for name in case}
        unknown = [name for name, number in numbers.items() if number is None]
        if unknown:
            remedy = "name hosts or units of this state"
            raise BadInput(f"there is no {unknown[0]!r} to fail", place="cases", remedy=remedy)
        return frozenset(number for number in numbers.values() if number is not None)

    def examine(self, case: tuple[str, ...]) -> CaseResult:
        """Who lands where when exactly these units fail."""
        down = self.parse_case(case)
        failed = unite(1 << unit for unit in down)
        landing: list[Landing] = []
        left: list[int] = []
        matrix = self.matrix
        for at in self.affected_vms(down):
            # The first slot that no failed unit but the VM's own touches, and that one only because of the VM.
            others = failed & ~(1 << matrix.own[at])
            own = next((slot for slot in matrix.surviving_slots(at) if not matrix.touched[slot] & others), None)
            if own is None:
                left.append(at)
            else:
                landing.append(self._to_landing(at, own, contested=False))
        left.sort(key=self._claim_order)
        living = [[slot for slot in matrix.claims[at] if matrix.slot_unit[slot] not in down] for at in left]
        lost = []
        for at, slots, taken in zip(left, living, match_slots(living), strict=True):
            landed = None if taken is None else self._to_landing(at, taken, contested=True)
            if landed is not None:
                landing.append(landed)
            vm = matrix.vms[at]
            reason = LostReason.CONTESTED if slots else LostReason.SLOTS_FAILED
            rivals = {name for slot in slots for name in matrix.members_down(slot, failed)} - {vm.id}
            lost.append(
                Lost(
                    vm=vm.id,
                    case=case,
                    host=vm.host,
                    reason=reason if matrix.claims[at] else LostReason.NO_SLOT,
                    required=self.given.required.get(vm.id, 0),
                    takes=landed.slot if landed is not None else "",
                    rivals=tuple(sorted(rivals)[:RIVALS_NAMED]),
                )
            )
        return CaseResult(
            landing=tuple(sorted(landing, key=lambda one: one.vm)), lost=tuple(sorted(lost, key=lambda one: one.vm))
        )

    def _claim_order(self, at: int) -> tuple[int, int, str]:
        """Who chooses first among contested slots."""
        vm = self.matrix.vms[at]
        return (-self.given.priorities.get(vm.id, 0), -vm.memory_bytes, vm.id)

    def _to_landing(self, at: int, slot: int, *, contested: bool) -> Landing:
        vm, view = self.matrix.vms[at], self.matrix.slots[slot]
        return Landing(vm=vm.id, source=vm.host, slot=view.name, host=view.host, contested=contested)


def match_slots(wanted: Sequence[Sequence[int]]) -> list[int | None]:
    """For each claimant, in order of importance, the slot that it takes out of those that it wants, or ``None``.

    Effort: a search that serves somebody looks at each claim once at most, one that fails takes its slots out of all
    later searches, because these cannot be freed for anybody.
    """
    holder: dict[int, int] = {}
    taken: list[int | None] = [None] * len(wanted)
    hopeless: set[int] = set()
    for claimant in range(len(wanted)):
        came_from: dict[int, int] = {}
        free = _search(claimant, wanted, holder, hopeless, came_from)
        if free is None:
            hopeless.update(came_from)
            continue
        slot: int | None = free
        while slot is not None:
            who = came_from[slot]
            holder[slot], taken[who], slot = who, slot, taken[who]
    return taken


def _search(
    claimant: int,
    wanted: Sequence[Sequence[int]],
    holder: dict[int, int],
    hopeless: set[int],
    came_from: dict[int, int],
) -> int | None:
    """A slot that becomes free for the claimant if others change theirs; ``came_from``: slot → who would take it."""
    waiting = deque([claimant])
    while waiting:
        who = waiting.popleft()
        for slot in wanted[who]:
            if slot in came_from or slot in hopeless:
                continue
            came_from[slot] = who
            if slot not in holder:
                return slot
            waiting.append(holder[slot])
    return None
