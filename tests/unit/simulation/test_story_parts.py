"""Parts of stories as plain data: what is wanted of facts, sentences that are printed together, figures at the end."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from tests.support.loops import run

from outlive.base import BadInput
from outlive.node.membership import NOBODYS
from outlive.resources import MemberRecord, Membership, ObjectMeta, Problems
from outlive.runtime import Duration
from outlive.simulation import (
    OUTSIDE,
    Act,
    Expectations,
    HeldVm,
    HistoryEvent,
    HostSpec,
    PlayedStory,
    RunSummary,
    Scenario,
    Story,
    WorldSpec,
    format_sentence,
    group_events,
    inventory_scenario,
    is_match,
    narrate,
    narrate_end,
    narrate_guard,
    percentile_of,
    read_expectations,
    read_scenario,
    read_timeline,
)
from outlive.simulation.verbs import VERBS


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (3, 3),
        (True, True),
        ("kvm-1", ("kvm-1",)),
        (["b", "a"], ("a", "b")),
        ([], ()),
        (None, ""),
        (None, None),
        ("~room", "no-room: nobody has room"),
        (">= 2", 2),
        ("<= 2", 2),
    ],
)
def test_a_fact_is_as_wanted(wanted: object, found: object) -> None:
    assert is_match(wanted, found)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [(1, True), (True, 1), ("kvm-1", ("kvm-1", "kvm-2")), (">= 2", 1), ("~room", "nothing"), (None, "x"), ([], None)],
)
def test_a_fact_is_not_as_wanted(wanted: object, found: object) -> None:
    assert not is_match(wanted, found)


def event(subject: str, at_s: float, key: str = "runs") -> HistoryEvent:
    text, many = f"{subject} runs on kvm-1", "{n} VMs run on {where}"
    return HistoryEvent(kind="runs", subject=subject, text=text, key=key, many=many, where="kvm-1", at_s=at_s)


def test_equal_sentences_close_together_are_one() -> None:
    lines = group_events([event("vm-a", 1.0), event("other", 1.1, key=""), event("vm-b", 1.2), event("vm-c", 9.0)])
    assert [one.text for one in lines] == [
        "2 VMs run on kvm-1: vm-a, vm-b",
        "other runs on kvm-1",
        "vm-c runs on kvm-1",
    ]


def test_many_names_are_a_number() -> None:
    (line,) = group_events([event(f"vm-{number}", 1.0) for number in range(15)])
    assert line.text == "15 VMs run on kvm-1"


def test_percentiles_are_values_that_were_seen() -> None:
    values = tuple(float(number) for number in range(1, 101))
    assert [percentile_of(values, share) for share in (50, 99, 100)] == [50.0, 99.0, 100.0]
    assert percentile_of((7.0,), 1) == 7.0
    assert percentile_of((), 50) is None


def test_a_share_is_of_those_that_were_lost() -> None:
    def unmet(share: str | int, lost: int, took: int) -> list[str]:
        summary = RunSummary(seed=1, virtual_s=9, lost=lost, took_s=(7.0,) * took)
        return Expectations(recovered_within={"8s": share}).find_unmet(summary, ())

    assert unmet("all", 3, 3) == []
    assert unmet("80%", 4, 3) == ["recovered within 8s: 3 of 4, less than 80 %"]
    assert unmet(2, 9, 1) == ["recovered within 8s: 1, fewer than 2"]


def test_vms_that_wait_are_expected_by_name_and_reason() -> None:
    problems = Problems()
    expect = read_expectations({"held": {"vm-a": "no-room"}}, "expect.yaml", problems)
    assert not problems.shown
    waits = RunSummary(seed=1, virtual_s=9, held_vms=(HeldVm(vm="vm-a", reason="no-room: full", remedy="add a host"),))
    assert expect.find_unmet(waits, ()) == []
    without = RunSummary(seed=1, virtual_s=9, held_vms=(HeldVm(vm="vm-a", reason="no-room: full"),))
    assert expect.find_unmet(without, ()) == ["vm-a is held without a remedy"]
    assert expect.find_unmet(RunSummary(seed=1, virtual_s=9), ()) == ["vm-a is not held"]


@pytest.mark.parametrize(
    ("verb", "given", "hosts", "said"),
    [
        ("power-off", {"domain": "rack=r4"}, ("kvm-7", "kvm-8"), "rack r4 loses power: kvm-7 and kvm-8"),
        ("power-off", {"hosts": ("kvm-7", "kvm-8")}, ("kvm-7", "kvm-8"), "kvm-7 and kvm-8 lose power"),
        ("move", {"vm": "vm-1", "to": "kvm-2"}, (), "somebody moves vm-1 to kvm-2"),
        (
            "cut",
            {"network": "store", "hosts": ("kvm-1",), "direction": "in"},
            ("kvm-1",),
            "kvm-1 cannot reach the store network any more (direction in)",
        ),
        ("set-policy", {"policy": {"fencesLimit": 2}}, (), "the policy of fencing changes: policy {'fencesLimit': 2}"),
    ],
)
def test_what_somebody_does_is_a_sentence_with_all_its_arguments(
    verb: str, given: dict[str, object], hosts: tuple[str, ...], said: str
) -> None:
    assert format_sentence(VERBS[verb].sentence, given, hosts) == said


def test_an_act_waits_or_has_a_time_and_not_both() -> None:
    problems = Problems()
    entry = {"at": "1s", "when": {"fleet": {"running": 3}}, "release": {}}
    read_timeline([entry], "timeline.yaml", problems)
    assert [one.message for one in problems.shown] == ["has both at and when"]


def test_names_are_told_in_the_order_in_which_people_count() -> None:
    (line,) = group_events([event(f"vm-{number}", 1.0) for number in (10, 9, 2)])
    assert line.text == "3 VMs run on kvm-1: vm-2, vm-9, vm-10"


def test_what_guards_and_watchdogs_did_is_told() -> None:
    events = [event for one in (1, 2) for event in narrate_guard(f"kvm-{one}", "close-gate", 25.0)]
    lines = [one.text for one in group_events(events)]
    narrated = "the guards of 2 hosts let nothing start and kill their VMs: no renewal was acknowledged for 25 s"
    assert lines == [f"{narrated} [kvm-1, kvm-2]"]
    assert events[0].text.startswith("the guard of kvm-1 lets nothing start and kills its VMs")
    assert narrate_guard("kvm-1", "feed", 25.0) == []
    assert narrate_end("kvm-1", "was reset by its watchdog").loud
    assert not narrate_end("kvm-1", "lost power").loud


def complaints(cluster: str, timeline: str = "[]", expect: str = "") -> list[str]:
    with TemporaryDirectory() as place:
        folder = Path(place)
        for name, text in (("README", "A story."), ("cluster.yaml", cluster)):
            (folder / name).write_text(text)
        for name, text in (("timeline.yaml", timeline), ("expect.yaml", expect)):
            (folder / name).write_text(text)
        with pytest.raises(BadInput) as caught:
            read_scenario(folder)
    return [str(one).removeprefix(f"{folder}/") for one in getattr(caught.value, "problems", [caught.value])]


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ("hosts: {count: -3}", "cluster.yaml: hosts.count"),
        ("hosts: []", "hosts: there are none"),
        ("hosts: {count: 2, cpu: many}", "hosts: cpu: 'many' is not a quantity"),
        ("hosts: {count: 2}\nvms: {perHost: 1, memory: -4Gi}", "vms: memory: is '-4Gi'"),
        ("hosts: {count: 2}\ncontrollers: -1", "controllers: Expected"),
        ("hosts: {count: 2}\nsettings: {failover: {nonsense: 1}}", "settings: failover.nonsense: Object contains"),
        ("hosts: {count: 2}\nsettings: {failoer: {}}", "there is no section 'failoer'"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused_with_its_place(cluster: str, words: str) -> None:
    assert any(words in one for one in complaints(cluster))


def test_all_mistakes_of_a_cluster_are_told_at_once() -> None:
    said = complaints(
        "hosts:\n  - {name: a, armed: maybe}\n  - {cpu: 4}\nvms: {perHost: x}\nlatencyS: soon\ncolour: red\n"
    )
    for words in (
        "hosts[0].armed: Expected `bool`",
        "hosts[1]: Object missing required field `name`",
        "vms.perHost: Expected `int`",
        "latencyS: Expected `float`",
        "colour: Object contains unknown field",
    ):
        assert any(words in one for one in said), words


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{at: 1s, clock: {hosts: [kvm-1], rate: -7}}", "entry 1: clock: rate: Expected `float` >= 0.5"),
        ("{at: 1s, store-outage: {for: -7s}}", "entry 1: store-outage: for: '-7s' is negative"),
        ("{at: 1s, lost-answers: {hosts: [kvm-1], rate: 2}}", "rate: Expected `float` <= 1.0"),
        ("{at: 30h, release: {}}", "entry 1: at: '30h' is longer than a day"),
        ("{at: 1s, power-off: {}}", "power-off: needs one of host, hosts, domain"),
        ("{at: 1s, bmc: {hosts: [kvm-1], mode: odd}}", "'odd' (arguments of bmc: host, hosts, domain, mode (ok, dead"),
        ("{at: 1s, power-of: {}}", "'power-of' is no verb (do you mean power-off?)"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(entry: str, words: str) -> None:
    assert any(words in one for one in complaints("hosts: {count: 2}", f"[{entry}]"))


def test_clocks_may_jump_back() -> None:
    problems = Problems()
    (act,) = read_timeline([{"at": "1s", "clock": {"hosts": ["kvm-1"], "jump": "-1h"}}], "t", problems)
    assert (act.arguments["jump"], problems.total) == (-3600.0, 0)


def test_nothing_is_left_out_because_the_end_comes_first() -> None:
    (narrated,) = complaints("hosts: {count: 2}", "[{at: 20s, release: {}}]", "until: 8s")
    assert "it ends at 8 s, and release is at 20 s" in narrated


@pytest.mark.slow
async def test_a_vm_that_was_lost_a_moment_before_the_end_is_no_broken_promise() -> None:
    host = {"count": 4, "perRack": 0}
    spec = msgspec.convert({"hosts": host, "vms": {"perHost": 1}}, WorldSpec)
    acts = (Act(verb="power-off", arguments={"hosts": ("kvm-4",)}, at_s=10.0),)
    scenario = Scenario(name="short", line="Short.", spec=spec, acts=acts, expect=Expectations(until=Duration(12)))
    ended = await Story(scenario, seed=1, replay="again").play()
    assert ended.summary.violations == ()
    assert [(one.vm, one.reason) for one in ended.summary.held_vms] == [
        ("vm-4-1", "the end came too soon after its loss")
    ]


def test_nobody_is_fenced_who_is_named_as_the_fencer_of_a_host_that_lives() -> None:
    spec = msgspec.convert({"hosts": {"count": 3}}, WorldSpec)
    acts = (Act(verb="power-off", arguments={"hosts": ("fencer-of:kvm-3",)}, at_s=2.0, place="timeline: entry 1"),)
    scenario = Scenario(name="nobody", line="Nobody.", spec=spec, acts=acts)

    async def play() -> PlayedStory:
        return await Story(scenario, seed=1, replay="again").play()

    with pytest.raises(BadInput, match=r"timeline: entry 1: at 2\.0 s nobody fences kvm-3"):
        run(play())


def test_a_membership_that_is_made_for_a_lost_one_is_no_host_that_joins() -> None:
    meta = ObjectMeta(name="kvm-4")
    joined = Membership(metadata=meta, record=MemberRecord(machine_id="m", boot_id="b"))
    (said,) = narrate(None, joined, OUTSIDE)
    assert said.text == "kvm-4 joins"
    (said,) = narrate(None, Membership(metadata=meta, record=MemberRecord(machine_id=NOBODYS, boot_id="")), OUTSIDE)
    assert said.text == "kvm-4 gets a membership again, which is dead until the host takes it"


@pytest.mark.parametrize(
    ("dead", "line"),
    [
        (("kvm-1",), "mine: 1 of 2 hosts loses power, 0 VMs in all."),
        (("kvm-1", "kvm-2"), "mine: 2 of 2 hosts lose power, 0 VMs in all."),
        ((), "mine: nothing fails, 0 VMs in all."),
    ],
)
def test_the_story_of_an_inventory_says_how_much_of_it_fails(dead: tuple[str, ...], line: str) -> None:
    spec = WorldSpec(hosts=(HostSpec(name="kvm-1"), HostSpec(name="kvm-2")))
    acts = (Act(at_s=10.0, verb="power-off", arguments={"hosts": dead}),) if dead else ()
    assert inventory_scenario("mine", spec, acts, 60.0).line == line


@pytest.mark.parametrize(
    ("recovered", "in_slots", "moved", "said"),
    [
        (1, 1, 0, "1 elsewhere, in its promised slot"),
        (3, 3, 0, "3 elsewhere, each in a slot that was promised to it"),
        (3, 2, 0, "3 elsewhere, 2 of 3 in a slot that was promised to it"),
        (3, 2, 1, "3 elsewhere, 2 of 3 in a slot that was promised to it, 1 where it was being moved to"),
        (1, 0, 1, "1 elsewhere, where it was being moved to"),
        (2, 0, 2, "2 elsewhere, each where it was being moved to"),
    ],
)
def test_summary_says_where_those_that_were_lost_run_again(
    recovered: int, in_slots: int, moved: int, said: str
) -> None:
    took_s = (9.0,) * recovered
    summary = RunSummary(
        seed=1,
        virtual_s=9,
        vms=9,
        lost=recovered,
        recovered=recovered,
        in_promised_slot=in_slots,
        moved_there=moved,
        took_s=took_s,
    )
    assert f"back       {said}" in summary.format_lines()
    assert summary.to_document()["movedThere"] == moved


def test_summary_tells_slots_that_others_had_a_claim_to_from_promised_ones() -> None:
    summary = RunSummary(
        seed=1, virtual_s=9, vms=9, lost=3, recovered=3, in_promised_slot=2, in_contested_slot=1, took_s=(9.0,) * 3
    )
    said = "2 of 3 in a slot that was promised to it, 1 of these in one to which others had a claim as well"
    assert f"back       3 elsewhere, {said}" in summary.format_lines()
    assert summary.to_document()["inContestedSlot"] == 1
