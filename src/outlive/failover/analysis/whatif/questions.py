"""What if: hosts are emptied, added or lost, VMs are added, more slots are asked for. Nothing is ever written.

Each question alters the cluster in memory, gathers and plans it again with what plans the real one, and compares
(docs/design/failover.md#what-if). "How many" is found by doubling and bisection, each time with the
planner, and within a limit that is named in the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from outlive.base import BadInput, NotFound, OutliveError, compile_pattern
from outlive.failover.analysis.bound import BoundInput, compute_bound
from outlive.failover.analysis.coverage import CoverageResult, Numbers
from outlive.failover.analysis.drain.inputs import (
    Close,
    DrainInput,
    DrainObstacle,
    Move,
    Stuck,
    drain_input,
    explain_no_host,
    move_request,
)
from outlive.failover.analysis.drain.order import order_drain
from outlive.failover.analysis.survival import FailuresInput, survive
from outlive.failover.analysis.tolerance import ToleranceInput, compute_tolerance
from outlive.failover.analysis.whatif.altered import Altered, add_running_vm, empty_copies, without_unit
from outlive.failover.analysis.whatif.answers import (
    Landed,
    Pair,
    Short,
    Unplaced,
    WhatIfAnswer,
    WhatIfTolerance,
    WholeRemedy,
)
from outlive.failover.model import SlotView
from outlive.failover.offers import free_capacity
from outlive.failover.planner.actions import Fail, Leave
from outlive.failover.planner.plan import PlanResult, plan
from outlive.failover.planner.replan import replan
from outlive.failover.snapshot import Snapshot, coverage_of, plan_input
from outlive.failover.topology import HOST_UNIT
from outlive.placement import Intent, VmView, explain_nowhere
from outlive.resources import ZONE_LABEL, Hypervisor

HOSTS_ADDED = 256
"""Hosts that are added at most to find out how many are short; beyond it the number is not known."""
ACTIONS_PLANNED = 10_000
"""Actions of all the plans together that find out how many hosts are short; beyond it the number is not known."""
MOST_VMS = 4_096
"""The largest number of VMs that ``most`` looks for."""


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster as it is, or as it would be once planned."""

    gathered: Snapshot
    slots: tuple[SlotView, ...]
    coverage: CoverageResult
    actions: int = 0

    @property
    def full(self) -> bool:
        """Whether everybody has the slots that they need."""
        unplaced = sum(self.gathered.required.get(vm.id, 0) > 0 for vm in self.gathered.unplaced)
        return self.coverage.covered == self.coverage.required - unplaced


def assess_snapshot(gathered: Snapshot, slots: tuple[SlotView, ...], fails: Iterable[Fail] = ()) -> ClusterView:
    """With coverage and tolerance."""
    return ClusterView(gathered=gathered, slots=slots, coverage=coverage_of(gathered, slots, fails))


async def plan_altered(altered: Altered, *, packing: bool = True) -> ClusterView:
    """What the planner makes of the altered cluster; without packing sooner, and with no more VMs covered."""
    gathered = await altered.gather_snapshot()
    given = msgspec.structs.replace(await plan_input(gathered, anew=packing), packing=packing)
    result: PlanResult = replan(given) if packing else plan(given)
    fails = [one for one in result.actions if isinstance(one, Fail)]
    return msgspec.structs.replace(assess_snapshot(gathered, result.slots, fails), actions=len(result.actions))


# The five questions.


async def drain(now: Altered, hosts: Sequence[str], *, keep: int | None = None) -> WhatIfAnswer:
    """Empty these hosts: where everything goes, and in what order."""
    check_hosts(now, hosts)
    gathered = await now.gather_snapshot()
    before = assess_snapshot(gathered, gathered.observation.slots)
    given = await drain_input(gathered, hosts, keep=keep)
    result = order_drain(given)
    answer = WhatIfAnswer(
        question=f"drain {','.join(hosts)}" + (f" --keep {keep}" if keep is not None else ""),
        possible=result.possible,
        proven=result.proven,
        obstacles=_with_reasons(result.obstacles, gathered, hosts),
        weaker=result.weaker,
        coverage=Pair(before=_to_numbers(before.coverage)),
        tolerance=Pair(before=_compute_tolerated(before)),
        limit=result.limit,
        keep=keep,
    )
    if not result.possible:
        # More hosts may help, unless placement refuses a VM whatever room there is.
        about_room = all(one.reason is not Stuck.NO_HOST for one in result.obstacles)
        return msgspec.structs.replace(
            answer,
            keep_possible=_find_lower_tolerance(given),
            short_hosts=await _hosts_for_drain(now, hosts, keep) if about_room else None,
        )
    observation = msgspec.structs.replace(gathered.observation, vms=result.vms)
    after = assess_snapshot(msgspec.structs.replace(gathered, observation=observation), result.slots)
    return msgspec.structs.replace(
        answer,
        coverage=Pair(before=answer.coverage.before, after=_to_numbers(after.coverage)),
        tolerance=Pair(before=answer.tolerance.before, after=_compute_tolerated(after)),
        moves=tuple(
            Landed(vm=step.vm, source=step.source, host=step.host) for step in result.steps if isinstance(step, Move)
        ),
        order=result.steps,
        closed=tuple(step.slot for step in result.steps if isinstance(step, Close)),
        displaced=tuple(step for step in result.steps if isinstance(step, Leave)),
        uncovered=after.coverage.uncovered,
    )


async def remove_hosts(now: Altered, hosts: Sequence[str]) -> WhatIfAnswer:
    """These hosts are gone at once: who has a place, and what coverage then."""
    check_hosts(now, hosts)

    async def apply_removal(base: Altered) -> ChangeOutcome:
        landed, unplaced, then = await place_stranded_vms(base, await base.gather_snapshot(), set(hosts))
        return ChangeOutcome(landed=landed, unplaced=unplaced, after=await plan_altered(then))

    return await _build_answer(f"remove-host {','.join(hosts)}", now, apply_removal)


async def add_hosts(now: Altered, hosts: Sequence[Hypervisor]) -> WhatIfAnswer:
    """These hosts join: what coverage once it is planned."""
    taken = next((host.name for host in hosts if host.name in now.hosts), None)
    if taken is not None:
        raise BadInput(f"there is a host {taken!r} already", remedy="the new hosts need other names")

    async def apply_hosts(base: Altered) -> ChangeOutcome:
        return ChangeOutcome(after=await plan_altered(base.with_hosts(hosts)))

    return await _build_answer(f"add-host {','.join(host.name for host in hosts)}", now, apply_hosts)


async def add_vms(now: Altered, like: VmView, count: int) -> WhatIfAnswer:
    """So many VMs like this one are added: is there a place for each, and full coverage of everybody."""

    async def apply_vms(base: Altered) -> ChangeOutcome:
        landed, unplaced, then = await place_new_vms(base, like, count)
        return ChangeOutcome(landed=landed, unplaced=unplaced, after=await plan_altered(then))

    return await _build_answer(f"add-vms {count} x {like.flavor or 'VM'}", now, apply_vms)


async def most_vms(now: Altered, like: VmView) -> WhatIfAnswer:
    """The largest number of VMs like this one with which everybody is covered, up to ``MOST_VMS``.

    ``None`` where somebody is not covered without them.
    """
    question = f"add-vms --most {like.flavor or 'VM'}"

    async def fails(count: int) -> bool:
        _, unplaced, then = await place_new_vms(now, like, count)
        full = not unplaced and ((await plan_altered(then, packing=False)).full or (await plan_altered(then)).full)
        return not full

    if await fails(0):
        return msgspec.structs.replace(await add_vms(now, like, 0), question=question)
    # What works is taken to work for less.
    first = await _find_smallest(fails, MOST_VMS)
    most = MOST_VMS if first is None else first - 1
    reached = f"MOST_VMS ({MOST_VMS})" if most >= MOST_VMS else ""
    return msgspec.structs.replace(await add_vms(now, like, most), question=question, most=most, limit=reached)


async def require(now: Altered, pattern: str, count: int) -> WhatIfAnswer:
    """Flavors that match the pattern need so many slots: is full coverage still possible."""
    compile_pattern(pattern)
    if not 0 <= count <= 16:
        raise BadInput(f"{count} slots", place=f"{pattern}={count}", remedy="write 0 to 16")
    failover = now.settings.failover
    patterns = {**failover.requirements, pattern: count}
    changed = msgspec.structs.replace(failover, flavor_failover_requirements=patterns)
    settings = msgspec.structs.replace(now.settings, failover=changed)

    async def apply_requirement(base: Altered) -> ChangeOutcome:
        return ChangeOutcome(after=await plan_altered(base.with_settings(settings)))

    return await _build_answer(f"require {pattern}={count}", now, apply_requirement)


def check_hosts(now: Altered, hosts: Sequence[str]) -> None:
    """``NotFound`` names the first host that there is not; ``BadInput`` where all would go."""
    unknown = next((host for host in hosts if host not in now.hosts), None)
    if unknown is not None:
        raise NotFound(f"there is no host {unknown!r}", remedy="see outlive get hypervisors")
    if not hosts:
        raise BadInput("no host is named", remedy="name one, or several with commas")


# Coverage and tolerance, before and after.


def _to_numbers(coverage: CoverageResult) -> Numbers:
    return Numbers(**{name: getattr(coverage, name) for name in Numbers.__struct_fields__})


def _compute_tolerated(what: ClusterView) -> WhatIfTolerance:
    gathered = what.gathered
    units = gathered.topology.units
    found = compute_tolerance(
        ToleranceInput(vms=gathered.vms, required=gathered.required, slots=what.slots, units=units, weakest=0)
    )
    return WhatIfTolerance(fleet=found.fleet, zones=found.zones)


class ChangeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What comes of a change: who lands where, who nowhere, and the fleet once it is planned."""

    landed: Sequence[Landed] = ()
    unplaced: Sequence[tuple[VmView, str]] = ()
    after: ClusterView

    @property
    def unserved_vms(self) -> list[VmView]:
        """Who has no place, or not all slots."""
        names = {one.vm for one in self.after.coverage.uncovered}
        return [*(vm for vm, _ in self.unplaced), *(vm for vm in self.after.gathered.vms if vm.id in names)]


Change = Callable[[Altered], Awaitable[ChangeOutcome]]


async def _build_answer(question: str, now: Altered, change: Change) -> WhatIfAnswer:
    gathered = await now.gather_snapshot()
    before = assess_snapshot(gathered, gathered.observation.slots)
    replanned, outcome = await plan_altered(now), await change(now)
    after = outcome.after
    short, by = await _find_short_hosts(now, change, outcome)
    return WhatIfAnswer(
        question=question,
        possible=not outcome.unserved_vms,
        proven=not outcome.unserved_vms or is_impossible(after.gathered),
        coverage=Pair(
            before=_to_numbers(before.coverage),
            planned=_to_numbers(replanned.coverage),
            after=_to_numbers(after.coverage),
        ),
        tolerance=Pair(
            before=_compute_tolerated(before), planned=_compute_tolerated(replanned), after=_compute_tolerated(after)
        ),
        moves=tuple(outcome.landed),
        unplaced=tuple(Unplaced(vm=vm.id, reason=reason) for vm, reason in outcome.unplaced),
        uncovered=after.coverage.uncovered,
        short_hosts=short,
        short_by=by,
    )


async def whole_remedy(now: Altered) -> WholeRemedy:
    """What covers everybody by the needs as they are, found as the answers of all questions are."""

    async def plan_unchanged(base: Altered) -> ChangeOutcome:
        return ChangeOutcome(after=await plan_altered(base))

    hosts, by = await _find_short_hosts(now, plan_unchanged, await plan_unchanged(now))
    return WholeRemedy(hosts=hosts, by=by)


def is_impossible(gathered: Snapshot) -> bool:
    """Whether no plan can cover every VM of known location on these hosts, by counting alone.

    A VM needs a unit of failure for itself and one for each slot; and slots hold at least what ``compute_bound`` says,
    in the room that hosts have beside their VMs.
    """
    hosts = [host for host in gathered.observation.hosts if not host.closed]
    units = {gathered.topology.unit_of_host(host.name) for host in hosts}
    needing = [vm for vm in gathered.vms if gathered.required.get(vm.id, 0) > 0]
    if any(len(units - {gathered.topology.unit_of_host(vm.host)}) < gathered.required[vm.id] for vm in needing):
        return True
    least = compute_bound(
        BoundInput(
            vms=gathered.vms, required=gathered.required, hosts=gathered.observation.hosts, topology=gathered.topology
        )
    )
    room = [0, 0]
    for free in free_capacity(gathered.fleet).values():
        room[0] += max(0, free[0])
        room[1] += max(0, free[1])
    for slot in gathered.observation.slots:
        room[0] += slot.cpu_milli
        room[1] += slot.memory_bytes
    return least.cpu_milli > room[0] or least.memory_bytes > room[1]


# How many.


async def _find_smallest(works: Callable[[int], Awaitable[bool]], limit: int) -> int | None:
    """The smallest number from 1 up to the limit that works; ``None`` where none does."""
    low, high = 0, 1
    while not await works(high):
        if high >= limit:
            return None
        low, high = high, min(2 * high, limit)
    while high - low > 1:
        middle = (low + high) // 2
        if await works(middle):
            high = middle
        else:
            low = middle
    return high


class _BudgetSpent(Exception):
    """``ACTIONS_PLANNED`` is reached."""


async def _find_short_hosts(
    now: Altered, change: Change, outcome: ChangeOutcome
) -> tuple[int | None, tuple[Short, ...]]:
    """Hosts that are short for a yes, zone after zone; ``None`` where no number of them up to the limits helps."""
    found: list[Short] = []
    spent = 0
    for zone in sorted({vm.zone for vm in outcome.unserved_vms}):
        # Of all hosts, if VMs say no zone.
        possible = [
            host
            for host in now.hosts.values()
            if not host.spec.maintenance and (not zone or host.metadata.labels.get(ZONE_LABEL, "") == zone)
        ]
        if not possible:
            return None, tuple(found)
        like = max(possible, key=_size_of_host)

        async def covers_zone(count: int, like: Hypervisor = like, zone: str = zone, base: Altered = now) -> bool:
            nonlocal spent
            if spent > ACTIONS_PLANNED:
                raise _BudgetSpent
            trial = await change(_enlarge(base, like, count))
            spent += trial.after.actions
            return all(vm.zone != zone for vm in trial.unserved_vms)

        try:
            count = await _find_smallest(covers_zone, HOSTS_ADDED)
        except _BudgetSpent:
            count = None
        if count is None:
            return None, tuple(found)
        now = _enlarge(now, like, count)
        found.append(Short(zone=zone, hosts=count, like=like.name))
    return sum(short.hosts for short in found), tuple(found)


def _size_of_host(host: Hypervisor) -> tuple[int, int, str]:
    capacity = host.effective_capacity()
    return (capacity.memory_bytes, capacity.cpu_milli, host.name) if capacity is not None else (0, 0, host.name)


def _enlarge(altered: Altered, like: Hypervisor, count: int) -> Altered:
    """With so many hosts like this one, each a unit of failure of its own."""
    unit = altered.settings.topology_choice.unit
    pattern = like if unit == HOST_UNIT else without_unit(like, unit)
    taken = len(altered.hosts)
    return altered.with_hosts(empty_copies(pattern, [f"what-if-host-{taken + number:03d}" for number in range(count)]))


async def _hosts_for_drain(now: Altered, hosts: Sequence[str], keep: int | None) -> int | None:
    """Hosts like the largest of those that go with which there is an order."""
    like = max((now.hosts[name] for name in hosts), key=_size_of_host)

    async def allows_drain(count: int) -> bool:
        gathered = await _enlarge(now, like, count).gather_snapshot()
        return order_drain(await drain_input(gathered, hosts, keep=keep)).possible

    return await _find_smallest(allows_drain, HOSTS_ADDED_FOR_DRAIN)


HOSTS_ADDED_FOR_DRAIN = 16
"""Hosts that are added at most to find out how many are short for emptying hosts."""


def _find_lower_tolerance(given: DrainInput) -> int | None:
    """The largest tolerance for which an order is found, below the one that was asked for; ``None`` where none is."""
    highest = max(given.required.values(), default=0) if given.keep is None else given.keep
    for lower in range(highest - 1, -1, -1):
        if order_drain(msgspec.structs.replace(given, keep=lower)).possible:
            return lower
    return None


def _with_reasons(
    obstacles: Sequence[DrainObstacle], gathered: Snapshot, hosts: Sequence[str]
) -> tuple[DrainObstacle, ...]:
    """The obstacles, those of placement with what it says."""
    views = {vm.id: vm for vm in gathered.vms}
    return tuple(
        msgspec.structs.replace(one, detail=f"{one.detail}: {explain_no_host(gathered, views[one.vm], hosts)}")
        if one.reason is Stuck.NO_HOST
        else one
        for one in obstacles
    )


# Where VMs come to that are new, or whose host is gone: their own slots first, which are then used up, else what
# placement finds as for new VMs, one after the other.


async def place_new_vms(
    now: Altered, like: VmView, count: int
) -> tuple[list[Landed], list[tuple[VmView, str]], Altered]:
    """VMs like this one, each placed by the engine and counted before the next."""
    views = [msgspec.structs.replace(like, id=f"what-if-{number:05d}") for number in range(1, count + 1)]
    placed, unplaced = placed_by_engine(await now.gather_snapshot(), views)
    return [Landed(vm=vm.id, host=vm.host) for vm in placed], unplaced, now.with_vms(placed)


def placed_by_engine(gathered: Snapshot, views: Sequence[VmView]) -> tuple[list[VmView], list[tuple[VmView, str]]]:
    """The VMs with a host each, as placement ranks them one after the other, and those without."""
    fleet, engine = gathered.fleet, gathered.engine
    placed: list[VmView] = []
    unplaced: list[tuple[VmView, str]] = []
    for vm in views:
        request = move_request(vm, intent=Intent.CREATE)
        try:
            hosts = engine.rank(request).hosts
            reason = "" if hosts else explain_nowhere(engine.rank(request, why=True))
        except OutliveError as error:
            hosts, reason = (), str(error)
        if not hosts:
            unplaced.append((vm, reason))
            continue
        record = fleet.find_host(hosts[0])
        assert record is not None, "a ranked host is known"
        there = msgspec.structs.replace(vm, host=hosts[0])
        fleet.upsert_host(add_running_vm(record, there))
        placed.append(there)
    return placed, unplaced


async def place_stranded_vms(
    now: Altered, gathered: Snapshot, gone: set[str]
) -> tuple[list[Landed], list[tuple[VmView, str]], Altered]:
    """The cluster without these hosts: their VMs take their own slots, or what placement finds, or run nowhere."""
    stranded = [vm for vm in gathered.vms if vm.host in gone]
    slots: dict[str, SlotView] = {}
    """VM → the slot of its own that it is left, by the evaluation of ``survive``."""
    if stranded:
        there = {slot.name: slot for slot in gathered.observation.slots if slot.host in gathered.fleet.index}
        given = FailuresInput(
            vms=gathered.vms,
            required={vm.id: 1 for vm in stranded},
            slots=tuple(there.values()),
            hosts=gathered.observation.hosts,
            cases=(tuple(sorted(gone)),),
        )
        slots = {one.vm: there[one.slot] for one in survive(given).landing or () if not one.contested}
    into = [msgspec.structs.replace(vm, host=slots[vm.id].host) for vm in stranded if vm.id in slots]
    rest = now.without_hosts(gone).without_slots(slot.name for slot in slots.values()).with_vms(into)
    placed, unplaced = placed_by_engine(
        await rest.gather_snapshot(), [msgspec.structs.replace(vm, host="") for vm in stranded if vm.id not in slots]
    )
    landed = [
        Landed(vm=vm.id, source=vm.host, host=slots[vm.id].host, slot=slots[vm.id].name)
        for vm in stranded
        if vm.id in slots
    ]
    sources = {vm.id: vm.host for vm in stranded}
    landed += [Landed(vm=vm.id, source=sources[vm.id], host=vm.host) for vm in placed]
    return landed, unplaced, rest.with_vms(placed).without_members(vm.id for vm in stranded)
