"""The example of docs/concepts/coverage.md, read from the page and judged by the product."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import msgspec

from outlive.failover import CheckInput, HostView, SlotView, ViolationKind
from outlive.failover.analysis import BoundInput, ToleranceInput, compute_bound, compute_tolerance
from outlive.failover.check import check
from outlive.placement import VmView

PAGE = (Path(__file__).parents[3] / "docs/concepts/coverage.md").read_text()
GIB = 2**30
HOSTS = tuple(HostView(name=f"h{n}") for n in range(1, 8))
VMS = tuple(VmView(id=f"v{n}", host=f"h{n}", cpu_milli=2000, memory_bytes=4 * GIB) for n in range(1, 8))
LOCATION = {vm.id: vm.host for vm in VMS}
REQUIRED = {vm.id: 2 for vm in VMS}


def page_slots() -> tuple[SlotView, ...]:
    rows = re.findall(r"^\| (s\d) \| (h\d) \| (v\d), (v\d) \|$", PAGE, re.MULTILINE)
    return tuple(
        SlotView(
            name=name, host=host, cpu_milli=2000, memory_bytes=4 * GIB, members={vm: LOCATION[vm] for vm in members}
        )
        for name, host, *members in rows
    )


SLOTS = page_slots()


def test_the_slots_of_the_page_obey_all_rules() -> None:
    assert len(SLOTS) == 7
    assert check(CheckInput(vms=VMS, slots=SLOTS)).holds


def test_each_line_of_the_proof_says_who_is_where() -> None:
    lines = re.findall(r"^\| (v\d) \| (h\d) \| (s\d): (h\d), (h\d) \| (s\d): (h\d), (h\d) \|$", PAGE, re.MULTILINE)
    by_name = {slot.name: slot for slot in SLOTS}
    assert [line[0] for line in lines] == [vm.id for vm in VMS]
    for vm, own, *pairs in lines:
        assert own == LOCATION[vm]
        for name, host, rival in (pairs[:3], pairs[3:]):
            slot = by_name[name]
            assert slot.host == host
            assert {LOCATION[member] for member in slot.members} == {own, rival}
        hosts = [own, pairs[1], pairs[2], pairs[4], pairs[5]]
        assert len(set(hosts)) == 5


def own_slots(vm: VmView, failed: set[str], slots: tuple[SlotView, ...] = SLOTS) -> list[str]:
    return [
        slot.name
        for slot in slots
        if vm.id in slot.members
        and slot.host not in failed
        and not any(host in failed for other, host in slot.members.items() if other != vm.id)
    ]


def test_the_failures_of_the_page_come_out_as_it_says() -> None:
    v = {vm.id: vm for vm in VMS}
    assert own_slots(v["v1"], {"h1", "h2"}) == ["s7"]
    assert own_slots(v["v2"], {"h1", "h2"}) == ["s2"]
    assert own_slots(v["v1"], {"h1", "h4"}) == ["s7"]
    assert own_slots(v["v4"], {"h1", "h4"}) == ["s3", "s4"]
    assert own_slots(v["v1"], {"h7", "h1", "h2"}) == []
    pairs = list(combinations(sorted(LOCATION.values()), 2))
    assert len(pairs) == 21
    assert all(own_slots(vm, set(pair)) for pair in pairs for vm in VMS if vm.host in pair)


def test_two_failures_are_survived_and_no_plan_has_fewer_than_five_slots() -> None:
    assert compute_tolerance(ToleranceInput(vms=VMS, required=REQUIRED, slots=SLOTS)).fleet == 2
    assert compute_bound(BoundInput(vms=VMS, required=REQUIRED, hosts=HOSTS)).slots == 5


def test_a_move_of_v3_to_h1_leaves_v2_with_one_failure() -> None:
    moved = tuple(msgspec.structs.replace(vm, host="h1") if vm.id == "v3" else vm for vm in VMS)
    faults = {
        violation.fault for violation in check(CheckInput(vms=moved, slots=SLOTS)).violations if violation.vm == "v2"
    }
    assert ViolationKind.RULE_5 in faults
    assert compute_tolerance(ToleranceInput(vms=moved, required=REQUIRED, slots=SLOTS)).vms["v2"] == 1
