"""Explanations: every reason is true by a literal check of its own, and every remedy works when it is carried out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

import msgspec
import pytest
from tests.support.remedies import Resources, apply
from tests.support.separation import barred
from tests.support.small_clouds import GIB, SmallCloud, make_host, make_slot, make_vm, small_cloud, tight_cloud

from outlive.base import Random
from outlive.failover import (
    DECISIONS,
    Caller,
    FailoverUpkeepSettings,
    SlotView,
    Snapshot,
    Topology,
    coverage_of,
    groups_of,
)
from outlive.failover.analysis.explain import (
    CandidateReason,
    CoverageExplanation,
    EngineAnswers,
    ExplainedFleet,
    ExplainInput,
    RemedyKind,
    explain_fleet,
    explainer_of,
    state_of,
)
from outlive.failover.planner import CleanInput, clean
from outlive.failover.planner.plan import plan
from outlive.placement import AFFINITY, STEP_ERRORS, PlacementRequest, RunRefused, VmView
from outlive.resources import Amounts, Condition, Hypervisor, Instance, Reservation, VirtualMachine, encode
from outlive.roles import RoleSettings
from outlive.runtime import DecisionTable

BLOCK = 25
BLOCKS = range(0, 300, BLOCK)
"""A sample: the seed that each block of fleets begins with."""


class Truth:
    """The literal truth about one VM in one cloud, without any of the code that explains."""

    def __init__(self, gathered: Snapshot, vm: VmView) -> None:
        self.gathered = gathered
        self.vm = vm
        self.topology = gathered.topology
        self.slots = {slot.name: slot for slot in gathered.observation.slots}
        self.where = {member: host for slot in self.slots.values() for member, host in slot.members.items()}
        self.where |= {one.id: one.host for one in gathered.vms}
        self.size = gathered.sizes[vm.id]
        self.groups = [g for g in groups_of(gathered.vms, gathered.required) if vm.id in g.members]

    def members(self, slots: Iterable[SlotView]) -> dict[str, set[str]]:
        return {slot.name: set(slot.members) for slot in slots}

    def broken(self, who: str, host_of: Mapping[str, str], members: Mapping[str, set[str]]) -> set[tuple[int, object]]:
        """Every way in which a rule does not hold for a VM, word for word: (rule, what meets what)."""
        unit = self.topology.unit_of_host
        mine = sorted(slot for slot, inside in members.items() if who in inside)
        own = unit(self.where[who])
        users = [(slot, other) for slot in mine for other in sorted(members[slot]) if other != who]
        found: set[tuple[int, object]] = {(1, slot) for slot in mine if unit(host_of[slot]) == own}
        found |= {(2, pair) for pair in combinations(mine, 2) if len({unit(host_of[slot]) for slot in pair}) == 1}
        found |= {(3, user) for user in users if unit(self.where[user[1]]) == own}
        found |= {(4, user) for user in users if unit(self.where[user[1]]) == own}
        found |= {
            (4, (user, slot)) for user in users for slot in mine if unit(self.where[user[1]]) == unit(host_of[slot])
        }
        found |= {
            (5, pair) for pair in combinations(users, 2) if unit(self.where[pair[0][1]]) == unit(self.where[pair[1][1]])
        }
        return found

    def joining(self, slot: str, only: set[str] | None = None, rest: set[str] | None = None) -> set[int]:
        """Rules that joining the slot would break for the VM or a member of it, that hold before."""
        hosts = {name: one.host for name, one in self.slots.items()}
        before = self.members(self.slots.values())
        if only is not None:
            before[slot] &= only
        if rest is not None:
            before = {name: inside if name in rest or name == slot else set() for name, inside in before.items()}
        after = {**before, slot: before[slot] | {self.vm.id}}
        return {
            rule for who in after[slot] for rule, _ in self.broken(who, hosts, after) - self.broken(who, hosts, before)
        }

    def clashing(self, slot: str) -> bool:
        hosts = {name: one.host for name, one in self.slots.items()}
        members = self.members(self.slots.values())
        return any(self.broken(who, hosts, members) for who in members[slot])

    def opening(self, host: str) -> set[int]:
        hosts = {name: one.host for name, one in self.slots.items()} | {"": host}
        before = self.members(self.slots.values())
        after = {**before, "": {self.vm.id}}
        return {rule for rule, _ in self.broken(self.vm.id, hosts, after) - self.broken(self.vm.id, hosts, before)}

    def apart(self, host: str) -> str:
        slots = list(self.slots.values())
        text = barred(self.vm, host, slots, self.topology)
        for group in self.groups if not text else ():
            counted = [slot for slot in slots if group.policy != AFFINITY or slot.ready is not False]
            text = text or barred(self.vm, host, counted, Topology(), [group])
        return text

    def refusal(self, host: str, *, reuse: bool) -> tuple[str, str, str]:
        """(step, code, message) of the first step of placement against a host, looked at by itself."""
        settings = self.gathered.settings
        caller = Caller(profile=settings.upkeep.profile)
        call = (caller.build_reuse_call if reuse else caller.build_new_call)(self.vm, self.size, ignore=(self.vm.host,))
        request: PlacementRequest = call.request
        engine = self.gathered.engine
        try:
            run = engine.start(request, engine.select_pipeline(request))
        except RunRefused as error:
            return ("", "no-answer", str(error))
        for bound in engine.select_filters(request, engine.select_pipeline(request)):
            if bound.step.skips(run):
                continue
            try:
                bound.step.mask(run)  # fails where the engine fails
            except STEP_ERRORS as error:
                if bound.on_error == "skip":
                    continue
                return (bound.step.name, getattr(error, "code", ""), str(error))
            why = bound.step.check(run, host)
            if why is not None:
                return (why.step, why.code, why.message)
        return ("", "", "")

    def free(self, host: str) -> tuple[int, int] | None:
        """By subtraction; ``None`` where a figure is missing or negative."""
        record = {one.name: one for one in self.gathered.observation.hypervisors}[host]
        capacity, used = record.effective_capacity(), record.status.allocation
        if capacity is None or used is None:
            return None
        left = [capacity[name] - used[name] for name in ("cpu", "memory")]
        if min(left) < 0:
            return None
        for slot in self.slots.values():
            if host in (slot.host, slot.target_host):
                left = [left[0] - slot.cpu_milli, left[1] - slot.memory_bytes]
        return (left[0], left[1])

    @property
    def zero(self) -> bool:
        return min(self.vm.cpu_milli, self.vm.memory_bytes) <= 0

    @property
    def faulty(self) -> bool:
        hosts = {name: one.host for name, one in self.slots.items()}
        return bool(self.broken(self.vm.id, hosts, self.members(self.slots.values())))

    def last(self) -> str:
        return "zero-size" if self.zero else "memberships-clash" if self.faulty else "nothing"

    def host_word(self, host: str) -> str:
        """What an explanation has to say about a host, in the published order."""
        unit = self.topology.unit_of_host
        mine = [slot for slot in self.slots.values() if self.vm.id in slot.members]
        if unit(host) == unit(self.vm.host):
            return "rule-1"
        if unit(host) in {unit(slot.host) for slot in mine}:
            return "rule-2"
        if unit(host) in {unit(self.where[one]) for slot in mine for one in slot.members if one != self.vm.id}:
            return "rule-4"
        if self.apart(host):
            return "kept-apart"
        step, code, _ = self.refusal(host, reuse=False)
        if code in ("zero-size", "no-answer"):
            return "zero-size" if code == "zero-size" else "placement-unavailable"
        if step:
            return "no-capacity" if "capacity" in step else "refused-by-placement"
        free = self.free(host) or (0, 0)
        if free[0] < self.size.cpu_milli or free[1] < self.size.memory_bytes:
            return "no-capacity"
        return self.last()

    def slot_word(self, name: str) -> str:
        """The same about a slot."""
        slot = self.slots[name]
        if self.vm.id in slot.members:
            return "already-member"
        if slot.ready is False:
            return "slot-not-ready"
        if slot.cpu_milli < self.vm.cpu_milli or slot.memory_bytes < self.vm.memory_bytes:
            return "slot-too-small"
        if self.clashing(name):
            return "members-clash"
        rules = self.joining(name)
        if rules:
            return f"rule-{min(rules)}"
        if self.apart(slot.host):
            return "kept-apart"
        step, code, _ = self.refusal(slot.host, reuse=True)
        if code in ("zero-size", "no-answer"):
            return "zero-size" if code == "zero-size" else "placement-unavailable"
        if step:
            return "no-capacity" if "capacity" in step else "refused-by-placement"
        return self.last()


def check_host(truth: Truth, reason: CandidateReason) -> None:
    assert reason.reason == truth.host_word(reason.host), reason
    if reason.reason.startswith("rule-"):
        assert int(reason.reason[-1]) == min(truth.opening(reason.host))
        unit = truth.topology.unit_of_host
        assert unit(reason.other_host) == unit(reason.host)
        if reason.other_vm:
            slot = truth.slots[reason.other_slot]
            assert {truth.vm.id, reason.other_vm} <= slot.members.keys()
            assert truth.where[reason.other_vm] == reason.other_host
        elif reason.other_slot:
            assert truth.slots[reason.other_slot].host == reason.other_host
    if reason.reason == "refused-by-placement":
        step, code, message = truth.refusal(reason.host, reuse=False)
        assert (reason.step, reason.code) == (step, code)
        assert message in reason.message


def check_slot(truth: Truth, reason: CandidateReason) -> None:
    assert reason.reason == truth.slot_word(reason.slot), reason
    if reason.reason.startswith("rule-") and reason.other_vm in truth.slots[reason.slot].members:
        # It is the named member that breaks the rule: the others need not be in the slot.
        assert int(reason.reason[-1]) in truth.joining(reason.slot, only={reason.other_vm}), reason
    if reason.reason.startswith("rule-") and reason.other_slot:
        # And the named slot: no other needs to have members.
        found = truth.joining(reason.slot, rest={reason.other_slot})
        assert int(reason.reason[-1]) in found, reason
    if reason.reason == "refused-by-placement":
        step, code, message = truth.refusal(reason.host, reuse=True)
        assert (reason.step, reason.code) == (step, code)
        assert message in reason.message


def uncovered(gathered: Snapshot) -> list[str]:
    return [one.vm for one in coverage_of(gathered, gathered.observation.slots).uncovered]


def clean_input(gathered: Snapshot) -> CleanInput:
    seen = gathered.observation
    return CleanInput(
        vms=seen.vms,
        hosts=seen.hosts,
        slots=seen.slots,
        topology=gathered.topology,
        brake_share=gathered.settings.upkeep.brake_share,
        brake_number=gathered.settings.upkeep.brake_number,
    )


def carried_out(cloud: SmallCloud, reported: CoverageExplanation) -> bool:
    """The remedy done to the resources, then a clean-up, then the planner for this VM alone: is it covered?"""
    assert reported.remedy is not None
    after = cloud.gathered(apply(reported.remedy, cloud.resources))
    seen, slots = after.observation, clean(clean_input(after)).slots
    alone = msgspec.structs.replace(
        after,
        required={reported.vm: after.required[reported.vm]},
        observation=msgspec.structs.replace(seen, slots=slots),
    )
    result = coverage_of(alone, plan(cloud.plan_input(alone)).slots)
    return result.covered == 1


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as one:
        yield one


@pytest.mark.slow
@pytest.mark.parametrize("start", BLOCKS)
def test_every_reason_is_true_and_every_remedy_works(start: int, runner: asyncio.Runner) -> None:
    kinds: Counter[RemedyKind] = Counter()
    for seed in range(start, start + BLOCK):
        random = Random(seed)
        cloud = (tight_cloud if seed % 4 == 3 else small_cloud)(random, runner)
        gathered = cloud.gathered()
        missing = uncovered(gathered)
        if not missing:
            continue
        explainer = explainer_of(gathered)
        views = {vm.id: vm for vm in gathered.vms}
        for vm in missing if len(missing) < 3 else [random.choice(missing), random.choice(missing)]:
            reported = explainer.explain(vm)
            truth = Truth(gathered, views[vm])
            assert not reported.covered
            for reason in reported.hosts:
                check_host(truth, reason)
            for reason in reported.slots:
                check_slot(truth, reason)
            assert reported.remedy is not None
            kinds[reported.remedy.kind] += 1
            if reported.remedy.tried:
                assert carried_out(cloud, reported), (seed, vm, reported.remedy)
    assert kinds[RemedyKind.NONE] <= sum(kinds.values()) // 10, kinds


# One thing at a time.


class Small:
    """Hosts, VMs and slots that a test names, all in one zone."""

    def __init__(self, runner: asyncio.Runner, *, k: int = 1, **upkeep: object) -> None:
        self.hosts: list[Hypervisor] = []
        self.vms: list[VirtualMachine] = []
        self.slots: list[Reservation] = []
        self.settings = RoleSettings(upkeep=msgspec.convert(upkeep, FailoverUpkeepSettings))
        self.k, self.runner = k, runner

    def host(self, name: str, cpu: int = 0, *traits: str, rack: str = "") -> None:
        """A host with so many cores free besides what it runs."""
        domains = {"rack": rack} if rack else {}
        made = make_host(name, cpu=cpu * 1000, memory=cpu * 2 * GIB, domains=domains, traits=traits)
        self.hosts.append(made)

    def vm(self, name: str, host: str, cpu: int = 1, **specs: str) -> None:
        resources = Amounts(cpu=cpu * 1000, memory=cpu * 2 * GIB)
        extra = {f"trait:{trait}": word for trait, word in specs.items()}
        self.vms.append(make_vm(name, host, **resources, flavor=f"f{cpu}", extra_specs=extra))
        at = next(number for number, one in enumerate(self.hosts) if one.name == host)
        status = self.hosts[at].status
        grown = {
            key: Amounts({name: getattr(status, key)[name] + resources[name] for name in resources})
            for key in ("capacity", "allocation")
        }
        running = (*status.instances, Instance(id=name, name=name))
        changed = msgspec.structs.replace(status, instances=running, **grown)
        self.hosts[at] = msgspec.structs.replace(self.hosts[at], status=changed)

    def slot(self, name: str, host: str, cpu: int, /, *, ready: bool = True, **members: str) -> None:
        """A slot, for which its host has the room."""
        self.slots.append(make_slot(name, host, members, cpu=cpu * 1000, memory=cpu * 2 * GIB, ready=ready))
        at = next(number for number, one in enumerate(self.hosts) if one.name == host)
        status = self.hosts[at].status
        assert status.capacity is not None
        size = {"cpu": cpu * 1000, "memory": cpu * 2 * GIB}
        capacity = Amounts({key: status.capacity[key] + size[key] for key in size})
        self.hosts[at] = msgspec.structs.replace(
            self.hosts[at], status=msgspec.structs.replace(status, capacity=capacity)
        )

    def cloud(self) -> SmallCloud:
        settings = msgspec.structs.replace(self.settings, failover=self.settings.failover.apply_defaults())
        resources = Resources(hypervisors=tuple(self.hosts), vms=tuple(self.vms), reservations=tuple(self.slots))
        return SmallCloud(resources=resources, settings=settings, k=self.k, runner=self.runner)

    def reported(self, vm: str) -> CoverageExplanation:
        """The explanation, whose remedy works if it says that it was tried."""
        cloud = self.cloud()
        reported = explainer_of(cloud.gathered()).explain(vm)
        if reported.remedy is not None and reported.remedy.tried:
            assert carried_out(cloud, reported)
        return reported


def changed_status(host: Hypervisor, **changes: object) -> Hypervisor:
    return msgspec.structs.replace(host, status=msgspec.structs.replace(host.status, **changes))


def by_name(reasons: Iterable[CandidateReason]) -> dict[str, tuple[str, str]]:
    return {reason.slot or reason.host: (reason.reason, reason.message) for reason in reasons}


def test_a_membership_of_another_vm_that_can_move_is_the_remedy(runner: asyncio.Runner) -> None:
    small = Small(runner)
    for name in ("h1", "h2", "h3", "h4", "h5"):
        small.host(name)
    small.vm("v", "h1", 4)
    small.vm("w", "h1", 1)
    small.vm("x", "h4", 1)
    small.vm("y", "h5", 1)
    small.slot("large", "h2", 4, w="h1", y="h5")
    small.slot("little", "h3", 1, x="h4")
    reported = small.reported("v")
    assert by_name(reported.slots)["large"] == (
        "rule-3",
        "rule 3 would be broken: VMs v and w both run on h1 and are members of slot large",
    )
    assert by_name(reported.slots)["little"][0] == "slot-too-small"
    assert reported.remedy is not None
    assert reported.remedy.text == "move VM w from slot large to slot little"
    assert reported.otherwise is not None
    assert reported.otherwise.text == "add 1 host in zone z, with at least 4 cpu and 8Gi memory free"


def test_room_is_to_be_freed_on_the_host_that_lacks_least(runner: asyncio.Runner) -> None:
    small = Small(runner)
    small.host("h1", 1)
    small.host("h2", 1)
    small.host("h3", 2)
    small.vm("v", "h1", 3)
    small.vm("other", "h2", 3)
    small.vm("another", "h3", 3)
    reported = small.reported("v")
    assert by_name(reported.hosts)["h3"] == ("no-capacity", "needs 3 cpu and 6Gi memory, has 2 cpu and 4Gi memory free")
    assert reported.reason == "no-capacity"
    assert reported.remedy is not None
    assert reported.remedy.text == "free 1 cpu and 2Gi memory on h3"
    assert reported.summary[0] == (
        "of 3 hosts 1 is its own and 2 have less than 3 cpu and 6Gi memory free; "
        "the most room is on h3 with 2 cpu and 4Gi memory"
    )


def test_a_host_that_is_down_is_never_proposed_and_one_that_is_overbooked_is_said_to_be(runner: asyncio.Runner) -> None:
    small = Small(runner)
    for name, cpu in (("h1", 1), ("h2", 1), ("h3", 2)):
        small.host(name, cpu)
    small.vm("v", "h1", 3)
    down = Condition(type="Ready", status="False", reason="disabled")
    small.hosts[2] = changed_status(small.hosts[2], conditions=(down,))
    small.host("h4", 0)
    small.hosts[3] = changed_status(
        small.hosts[3], capacity=Amounts(cpu=64_000, memory=128 * GIB), allocation=Amounts(cpu=88_000, memory=64 * GIB)
    )
    reported = small.reported("v")
    assert by_name(reported.hosts)["h4"] == (
        "no-capacity",
        "needs 3 cpu and 6Gi memory, and 24 cpu more than it has are taken already",
    )
    assert by_name(reported.hosts)["h3"][0] != "nothing"
    assert "the most room is on h2" in reported.summary[0]
    assert reported.remedy is not None
    assert reported.remedy.text == "free 27 cpu on h4"


def test_a_missing_trait_asks_for_hosts_that_have_it(runner: asyncio.Runner) -> None:
    small = Small(runner, k=2)
    small.host("h1", 8, "CUSTOM_GOLD")
    small.host("h2", 8, "CUSTOM_GOLD")
    small.host("h3", 8)
    small.vm("v", "h1", 1, CUSTOM_GOLD="required")
    reported = small.reported("v")
    assert by_name(reported.hosts)["h3"] == (
        "refused-by-placement",
        "filter_has_requested_traits: trait CUSTOM_GOLD is required and missing",
    )
    assert reported.remedy is not None
    text = "add 1 host in zone z with trait CUSTOM_GOLD, with at least 1 cpu and 2Gi memory free"
    assert reported.remedy.text == text
    assert reported.summary[-1] == "1 slot could be given now, 1 could not beside that"


def test_a_slot_that_is_not_ready_is_to_be_made_ready(runner: asyncio.Runner) -> None:
    small = Small(runner)
    small.host("h1")
    small.host("h2")
    small.vm("v", "h1")
    small.slot("s", "h2", 1, ready=False, v="h1")
    reported = small.reported("v")
    assert [(one.slot, one.counts) for one in reported.promises] == [("s", False)]
    assert reported.remedy is not None
    assert reported.remedy.text == "make slot s ready (see the condition Ready of Reservation/s)"


def test_a_slot_without_room_on_its_host_is_not_to_be_made_ready(runner: asyncio.Runner) -> None:
    small = Small(runner)
    small.host("h1")
    small.host("h2")
    small.vm("v", "h1", 1)
    small.slot("s", "h2", 1, v="h1")
    full = small.hosts[1]
    status = msgspec.structs.replace(full.status, capacity=Amounts(cpu=0, memory=0))
    small.hosts[1] = msgspec.structs.replace(full, status=status)
    reported = small.reported("v")
    assert by_name(reported.slots)["s"] == (
        "already-member",
        "it is a member, but the slot is not ready: h2 holds more than it has",
    )
    assert reported.remedy is not None
    assert reported.remedy.text == "add 1 host in zone z, with at least 1 cpu and 2Gi memory free"


def test_a_covered_vm_is_told_what_its_slots_promise(runner: asyncio.Runner) -> None:
    small = Small(runner)
    for name in ("h1", "h2", "h3"):
        small.host(name)
    small.vm("v", "h1")
    small.vm("w", "h2")
    small.slot("s", "h3", 1, v="h1", w="h2")
    reported = small.reported("v")
    assert (reported.covered, reported.remedy) == (True, None)
    assert reported.text == "v is covered: 1 of 1 slot, so that it survives the failure of any host"
    assert reported.promises[0].text == "1 cpu and 2Gi memory on h3, shared with w on h2"


def test_the_decision_says_the_same_as_the_command(runner: asyncio.Runner) -> None:
    small = Small(runner, k=2)
    small.host("h1", 2)
    small.host("h2", 2)
    small.host("h3", 2)
    small.vm("v", "h1", 1)
    small.slot("s", "h2", 1, gone="h1")
    gathered = small.cloud().gathered()
    state = state_of(gathered)
    answer = EngineAnswers(gathered).find_answer({one.id: one for one in state.vms}["v"], gathered.sizes["v"])
    fields = {name: getattr(state, name) for name in ExplainedFleet.__struct_fields__}
    given = encode(ExplainInput(vm="v", answers={"": answer}, **fields))
    decided = DecisionTable(DECISIONS).decide("failover.explain", given)
    assert decided == encode(explainer_of(gathered).explain("v"))


def test_only_the_closest_are_shown_where_not_all_are_wanted(runner: asyncio.Runner) -> None:
    small = Small(runner)
    for number in range(9):
        small.host(f"h{number}", 4 if number == 7 else 0)
    small.vm("v", "h0")
    reported = explainer_of(small.cloud().gathered()).explain("v", shown=2)
    assert [(one.host, one.reason) for one in reported.hosts] == [("h7", "nothing"), ("h1", "no-capacity")]
    reported = explainer_of(small.cloud().gathered()).explain("v", shown=5)
    assert [one.host for one in reported.hosts] == ["h7", "h1", "h2", "h3", "h0"], "an example of everything"


def test_a_fleet_is_grouped_by_what_helps(runner: asyncio.Runner) -> None:
    small = Small(runner)
    small.host("h1", 4)
    small.host("h2", 2)
    small.host("gold", 8, "CUSTOM_GOLD")
    for number in range(6):
        small.vm(f"gold-{number}", "gold", 2, CUSTOM_GOLD="required")
    small.vm("plain", "h1", 1)
    reported = explain_fleet(explainer_of(small.cloud().gathered()))
    assert reported.text == "7 of 7 VMs that need slots miss some"
    first, second = reported.groups
    assert (first.count, first.covers, first.reason) == (6, 6, "refused-by-placement")
    assert first.text.startswith("add 1 host in zone z with trait CUSTOM_GOLD")
    assert first.text.endswith("covers 6 of 6")
    assert (second.vms, second.reason) == (("plain",), "waiting-for-a-cycle")


@pytest.mark.parametrize("braked", [False, True])
def test_whether_clean_up_takes_a_clash_away_is_told_of_a_vm_and_of_a_fleet(
    braked: bool, runner: asyncio.Runner
) -> None:
    brake = {"brakeShare": 0.0, "brakeNumber": 0} if braked else {}
    small = Small(runner, **brake)
    small.host("h1", 4)
    small.host("h2", 4)
    small.vm("v", "h1", 1)
    small.slot("own", "h1", 1, v="h1")
    small.slot("other", "h2", 1, v="h1")
    explainer = explainer_of(small.cloud().gathered())
    reported = explainer.explain("v")
    (group,) = explain_fleet(explainer).groups
    assert reported.remedy is not None
    assert reported.reason == group.reason == "memberships-clash"
    assert reported.remedy.kind == group.remedy.kind == (RemedyKind.NONE if braked else RemedyKind.CYCLE)
    assert reported.remedy.text == group.text
    assert "plan --apply" not in group.text, "a plan takes nobody out of a slot"
    assert group.covers == (0 if braked else 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_hosts_that_a_fleet_asks_for_cover_as_many_as_said(seed: int, runner: asyncio.Runner) -> None:
    cloud = small_cloud(Random(seed), runner)
    explainer = explainer_of(cloud.gathered())
    before = [slot.members for slot in explainer.model.slots.values()]
    reported = explain_fleet(explainer)
    assert [slot.members for slot in explainer.model.slots.values()] == before
    for name, slot in explainer.model.slots.items():
        assert explainer.model.index.members_of(name) == sorted(slot.members), "everything is taken back"
    assert sorted(vm for group in reported.groups for vm in group.vms) == uncovered(cloud.gathered())
    for group in reported.groups:
        if group.remedy.kind is not RemedyKind.ADD_HOSTS:
            continue
        after = cloud.gathered(apply(group.remedy, cloud.resources))
        slots = clean(clean_input(after)).slots
        everybody = msgspec.structs.replace(after, observation=msgspec.structs.replace(after.observation, slots=slots))
        covered = coverage_of(everybody, plan(cloud.plan_input(everybody)).slots).covered
        without = cloud.gathered()
        slots = clean(clean_input(without)).slots
        bare = msgspec.structs.replace(without, observation=msgspec.structs.replace(without.observation, slots=slots))
        assert covered >= coverage_of(bare, plan(cloud.plan_input(bare)).slots).covered
