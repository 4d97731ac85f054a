"""The fleet: capacity follows what is opened, closed and moved, and everything can be taken back."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from outlive.failover import FleetIndex, FreeAmounts, SlotView, Topology
from outlive.placement import VmView

HOSTS = ("a", "b", "c", "d")
FREE = {host: {"cpu": 10, "memory": 20, "gpu": 1} for host in HOSTS[:3]}


def slot(name: str, host: str, target: str = "") -> SlotView:
    """A slot of 2 by 3."""
    return SlotView(name=name, host=host, target_host=target or host, cpu_milli=2, memory_bytes=3)


def vm(name: str, host: str) -> VmView:
    """A VM of 1 by 2 with a device, in a group with all others."""
    return VmView(
        id=name,
        host=host,
        cpu_milli=1,
        memory_bytes=2,
        also_needs={"gpu": 1},
        server_group="g",
        group_policy="anti-affinity",
    )


def fleet() -> FleetIndex:
    """Three hosts with figures and one without, a VM on each of two."""
    made = FleetIndex.build([slot("s", "a")], [vm("x", "a"), vm("y", "b")], topology=Topology(server_groups=True))
    for view in (vm("x", "a"), vm("y", "b")):
        made.separation.put(view, 1)
    made.set_free(FreeAmounts.from_resources(FREE))
    return made


def test_what_is_not_counted_is_missing() -> None:
    one = fleet()
    assert one.missing_amounts("a", {"cpu": 12, "memory": 20, "tpu": 1}) == {"cpu": 2, "tpu": 1}
    assert one.missing_amounts("d", {"cpu": 1}) == {"cpu": 1}
    assert not one.knows_room("d")
    assert one.has_room("a", {"tpu": 0})


def test_without_figures_nothing_is_limited() -> None:
    one = FleetIndex()
    assert one.knows_room("a")
    assert one.has_room("a", {"cpu": 2**40, "tpu": 3})
    one.open(slot("s", "a"))
    assert one.have_slot_room(np.array([one.host_number("a")]), 2**40, 2**40).all()


def test_a_slot_holds_room_where_it_is_and_where_it_is_wanted() -> None:
    one = fleet()
    one.open(slot("t", "a", "b"))
    assert one.free_on("a") == one.free_on("b") == {"cpu": 8, "memory": 17, "gpu": 1}
    one.close(slot("t", "a", "b"))
    assert one.free_on("a") == one.free_on("b") == FREE["a"]


def test_a_vm_takes_its_room_and_its_group_along() -> None:
    one = fleet()
    one.move(vm("x", "a"), "c")
    assert one.free_on("c") == {"cpu": 9, "memory": 18, "gpu": 0}
    assert one.free_on("a") == {"cpu": 11, "memory": 22, "gpu": 2}
    assert not one.separation.allows("y", "c")
    assert one.separation.allows("y", "a")


def test_granted_room_is_known() -> None:
    one = fleet()
    with one.begin_trial():
        one.grant("d", 5, 6)
        assert one.has_room("d", {"cpu": 5, "memory": 6})
    assert not one.knows_room("d")


@given(st.lists(st.tuples(st.sampled_from(["open", "close", "move", "join", "leave", "free"]), st.integers(0, 11))))
def test_a_trial_leaves_no_trace(steps: list[tuple[str, int]]) -> None:
    one = fleet()
    one.join("y", "s")
    views = {"x": vm("x", "a"), "y": vm("y", "b")}
    before = _state(one)
    with one.begin_trial():
        for what, number in steps:
            _step(one, views, what, number)
    assert _state(one) == before


def _step(one: FleetIndex, views: dict[str, VmView], what: str, number: int) -> None:
    name, host, who = f"s{number % 3}", HOSTS[number % 4], "xy"[number % 2]
    match what:
        case "open" if not one.has_slot(name):
            one.open(slot(name, host))
        case "close" if one.has_slot(name):
            one.close(slot(name, one.host_of_slot(name)))
        case "move":
            one.move(views[who], host)
        case "join" if one.has_slot(name):
            one.join(who, name)
        case "leave" if one.has_slot(name):
            one.leave(who, name)
        case "free":
            one.set_free(FreeAmounts.from_table({"d": (number, number)}))
        case _:
            pass


def _state(one: FleetIndex) -> object:
    return (
        {host: one.free_on(host) for host in HOSTS},
        {
            name: (one.host_of_slot(name), one.members_of(name))
            for name in ("s", "s0", "s1", "s2")
            if one.has_slot(name)
        },
        {who: (one.location_of(who), one.list_faulty()) for who in "xy"},
        {who: [host for host in HOSTS if one.separation.allows(who, host)] for who in "xy"},
    )
