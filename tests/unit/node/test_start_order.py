"""Whether a virtual machine may start now, or waits for those that it starts after: on plain data, and in a world."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.judges import judged, make_holder, make_member, make_vm
from tests.support.loops import run_by
from tests.support.node_worlds import at, play, set_status, vm_of
from tests.support.virtual_hosts import Bench

from outlive.node.vm import LINK_S, NamedVm, OrderMemory, StartOrderInput, StartOrderResult, find_cycle, sort_by_order
from outlive.node.vm.start_order import _is_running, start_order
from outlive.resources import Holder, Migration, MigrationPhase, RecoveryPolicy
from outlive.simulation import VmSpec, World

COMING = "is to start on h2"


def asked(vm: str, *after: str, known: tuple[NamedVm, ...] = (), **how: Any) -> StartOrderResult:
    return start_order(StartOrderInput(vm=vm, after=after, known=known, **how))


def coming(vm: str, *after: str) -> NamedVm:
    return NamedVm(vm=vm, state="coming", why=COMING, after=after)


def test_a_vm_that_names_no_other_starts_at_once() -> None:
    assert asked("a") == StartOrderResult(start=True, limit=180)


def test_it_waits_for_those_that_do_not_run_and_says_what_is_known_of_them() -> None:
    found = asked("a", "b", "c", known=(coming("b"), NamedVm(vm="c", state="running")))
    assert (found.start, found.waits_for, found.without) == (False, ("b",), ())
    assert found.detail == "starts after b, which is to start on h2; it waits for at most 180 s"


def test_who_is_missing_or_stopped_is_not_waited_for() -> None:
    known = (NamedVm(vm="b", state="missing", why="does not exist"), NamedVm(vm="c", state="stopped", why="rests"))
    found = asked("a", "b", "c", known=known)
    assert (found.start, found.without) == (True, ("b", "c"))
    assert found.detail == "starts without b, which does not exist; c, which rests"


def test_after_the_limit_it_starts_and_says_without_whom() -> None:
    assert not asked("a", "b", known=(coming("b"),), waited=179).start
    found = asked("a", "b", known=(coming("b"),), waited=180)
    assert (found.start, found.without) == (True, ("b",))
    assert "was not seen running within 180 s (it is to start on h2)" in found.detail


def test_without_a_limit_nobody_is_waited_for() -> None:
    assert asked("a", "b", known=(coming("b"),), limit=0).start


def test_a_vm_higher_in_a_chain_waits_longer_so_that_it_still_starts_in_order() -> None:
    chain = (coming("b", "c"), coming("c", "d"), coming("d"))
    limits = [
        asked("a", "b", known=chain).limit,
        asked("b", "c", known=chain).limit,
        asked("c", "d", known=chain).limit,
    ]
    assert limits == [180 + 2 * LINK_S, 180 + LINK_S, 180]


def test_of_those_in_a_circle_the_first_by_name_goes_and_the_others_wait() -> None:
    around = (coming("a", "b"), coming("b", "c"), coming("c", "a"))
    first = asked("a", "b", known=around[1:])
    assert first.start
    assert "a, b and c wait for each other, and the first by name goes" in first.detail
    assert asked("b", "c", known=(around[2], around[0])).waits_for == ("c",)
    assert asked("c", "a", known=(around[0], around[1])).waits_for == ("a",)


def test_the_first_of_a_circle_still_waits_for_those_outside_of_it() -> None:
    assert asked("a", "b", "z", known=(coming("b", "a"), coming("z"))).waits_for == ("z",)


def test_a_vm_that_waits_for_a_circle_that_it_is_not_in_waits() -> None:
    assert asked("a", "b", known=(coming("b", "c"), coming("c", "b"))).waits_for == ("b",)


def test_a_vm_that_names_itself_does_not_wait_for_itself() -> None:
    assert asked("a", "a").start


def test_circles_are_found_where_they_are() -> None:
    after = {"a": ["b"], "b": ["c"], "c": ["b"], "d": ["d"]}
    assert find_cycle(after, "a") == ()
    assert find_cycle(after, "b") == find_cycle(after, "c") == ("b", "c")
    assert find_cycle(after, "d") == ("d",)


NAMES = ("a", "b", "c", "d", "e", "f")
GRAPHS = st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=4, unique=True))


@pytest.mark.slow
@given(graph=GRAPHS)
@settings(max_examples=300, deadline=None)
def test_whatever_they_name_all_start_and_nobody_before_another_without_saying_why(graph: dict[str, list[str]]) -> None:
    running: list[str] = []
    while len(running) < len(NAMES):
        started = []
        for vm in NAMES:
            if vm in running:
                continue
            known = [NamedVm(vm=one, state="running") for one in running]
            known += [coming(one, *graph.get(one, ())) for one in NAMES if one not in running and one != vm]
            found = asked(vm, *graph.get(vm, ()), known=tuple(known))
            if found.start:
                early = {one for one in graph.get(vm, ()) if one not in running and one != vm}
                assert early == set(found.without)
                assert early <= set(find_cycle(graph, vm))
                started.append(vm)
        assert started, f"nobody starts after {running}"
        running += started


def test_names_come_as_they_are_but_none_before_those_that_it_is_after() -> None:
    assert sort_by_order(("a", "b", "c"), {"a": ("c",), "c": ("nobody",)}) == ["c", "a", "b"]
    assert sort_by_order(("b", "a"), {}) == ["b", "a"]
    assert sorted(sort_by_order(("a", "b"), {"a": ("b",), "b": ("a",)})) == ["a", "b"]


# In a world


def order_of(world: World, vm: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    said = vm_of(world, vm).status.start_order
    return ((), ()) if said is None else (said.waits_for, said.without)


CHAIN = (
    VmSpec(name="vm-1", host="kvm-1"),
    VmSpec(name="vm-2", host="kvm-1", start_after=("vm-1",)),
)


async def change_order(world: World, vm: str, *after: str) -> None:
    found = vm_of(world, vm)
    spec = msgspec.structs.replace(found.spec, start_after=after)
    await world.store.replace(msgspec.structs.replace(found, spec=spec))


@run_by(play, vms=CHAIN)
async def test_vm_that_is_not_to_be_waited_for_any_more_lets_the_other_start_at_once(world: World) -> None:
    await world.do("start-fails", {"vms": ["vm-1"], "reason": "no image", "times": 1000})
    await world.do("guest-crash", {"vms": ["vm-1", "vm-2"]})
    await at(world, 12)
    assert order_of(world, "vm-2") == (("vm-1",), ())
    assert world.running_hosts("vm-2") == ()
    await change_order(world, "vm-2")
    await at(world, 15)
    assert world.running_hosts("vm-2") == ("kvm-1",)
    assert vm_of(world, "vm-2").status.start_order is None


@run_by(play, vms=(msgspec.structs.replace(CHAIN[0], recovery=RecoveryPolicy(mode="hold")), *CHAIN[1:]))
async def test_vm_that_has_failed_for_good_is_not_waited_for(world: World) -> None:
    await world.do("start-fails", {"vms": ["vm-1"], "reason": "no image", "times": 1000})
    await world.do("guest-crash", {"vms": ["vm-1", "vm-2"]})
    await at(world, 40)
    assert vm_of(world, "vm-1").status.phase == "fail"
    assert world.running_hosts("vm-2") == ("kvm-1",)
    assert order_of(world, "vm-2") == ((), ("vm-1",))
    said = vm_of(world, "vm-2").status.start_order
    assert said is not None
    assert "has failed" in said.detail


def test_host_that_died_and_that_nobody_has_condemned_yet_is_not_believed_to_run_anything() -> None:
    async def story(world: World) -> None:
        await world.do("power-off", {"hosts": ["kvm-2"]})
        await world.do("guest-crash", {"vms": ["vm-2"]})
        await at(world, 24)
        assert [one.seen for one in vm_of(world, "vm-1").status.holders] == ["running"]
        assert order_of(world, "vm-2") == (("vm-1",), ())
        assert world.running_hosts("vm-2") == ()
        await at(world, 30)
        assert world.running_hosts("vm-2") == ("kvm-1",)
        assert order_of(world, "vm-2") == ((), ("vm-1",))

    vms = (VmSpec(name="vm-1", host="kvm-2"), VmSpec(name="vm-2", host="kvm-1", start_after=("vm-1",)))
    play(story, vms=vms, node={"startAfterLimit": "20s"})


@pytest.mark.slow
def test_vm_between_two_hosts_is_not_believed_to_run() -> None:
    async def story(world: World) -> None:
        await at(world, 10)
        await world.do("move", {"vm": "vm-1", "to": "kvm-3", "live": True})
        await _until_phase(world, "transferring")
        await world.do("pause-daemon", {"hosts": ["kvm-3"], "for": 30})
        await world.do("guest-crash", {"vms": ["vm-2"]})
        await _until_phase(world, "transferred")
        await world.clock.sleep(10)
        assert [(one.hypervisor, one.seen) for one in vm_of(world, "vm-1").status.holders if not one.role] == [
            ("kvm-2", "running")
        ]
        assert (order_of(world, "vm-2"), world.running_hosts("vm-2")) == ((("vm-1",), ()), ())
        await at(world, 90)
        assert (world.running_hosts("vm-1"), world.running_hosts("vm-2")) == (("kvm-3",), ("kvm-1",))

    vms = (VmSpec(name="vm-1", host="kvm-2"), VmSpec(name="vm-2", host="kvm-1", start_after=("vm-1",)))
    play(story, hosts=3, vms=vms)


@pytest.mark.parametrize(("phase", "runs"), [("requested", True), ("transferring", False), ("transferred", False)])
def test_source_of_a_move_is_believed_that_its_guest_runs_until_the_transfer(phase: str, runs: bool) -> None:
    async def story(bench: Bench) -> None:
        move = Migration(id="m", source="h2", target="h3", phase=MigrationPhase(phase))
        vm = make_vm(msgspec.structs.replace(make_holder("h2"), seen="running"), migration=move)
        node: Any = SimpleNamespace(host="h1", store=bench.store)
        memory = OrderMemory(fence="", since_s=0.0)
        for seq in (1, 2):
            bench.store.load([make_member("h2", epoch=1, seq=seq)])
            found = await _is_running(node, vm, memory)
        assert found is runs

    judged(story)


@pytest.mark.parametrize(("reason", "runs"), [("", True), ("storage-lost", False)])
def test_guest_whose_disks_do_not_serve_it_is_not_believed_to_run(reason: str, runs: bool) -> None:
    async def story(bench: Bench) -> None:
        vm = make_vm(msgspec.structs.replace(make_holder("h2"), seen="running"), reason=reason)
        node: Any = SimpleNamespace(host="h1", store=bench.store)
        memory = OrderMemory(fence="", since_s=0.0)
        for seq in (1, 2):
            bench.store.load([make_member("h2", epoch=1, seq=seq)])
            found = await _is_running(node, vm, memory)
        assert found is runs

    judged(story)


async def _until_phase(world: World, phase: str) -> None:
    while (move := vm_of(world, "vm-1").status.migration) is None or move.phase != phase:
        await world.clock.sleep(0.01)


@run_by(play, vms=CHAIN)
async def test_vm_that_runs_is_not_stopped_when_those_that_it_starts_after_end(world: World) -> None:
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 30)
    assert (world.running_hosts("vm-1"), world.running_hosts("vm-2")) == ((), ("kvm-1",))


@run_by(play, vms=CHAIN)
async def test_vm_that_waits_for_others_no_more_and_is_still_held_elsewhere_does_not_say_that_it_waits(
    world: World,
) -> None:
    await world.do("start-fails", {"vms": ["vm-1"], "reason": "no image", "times": 1})
    await world.do("guest-crash", {"vms": ["vm-1", "vm-2"]})
    await at(world, 8)
    assert order_of(world, "vm-2") == (("vm-1",), ())
    stranger = Holder(hypervisor="kvm-2", member_uid="somebody", epoch=1, run_id="other")
    await set_status(world, "vm-2", holders=(*vm_of(world, "vm-2").status.holders, stranger))
    await at(world, 40)
    assert (world.running_hosts("vm-1"), world.running_hosts("vm-2")) == (("kvm-1",), ())
    assert vm_of(world, "vm-2").status.start_order is None
