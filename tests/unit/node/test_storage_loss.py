"""Virtual machines whose disks do not serve them: what is seen, what is decided, what their host does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.loops import run_by
from tests.support.node_decisions import decide
from tests.support.node_worlds import at, faults, host_of, play, vm_of

from outlive.base import Unavailable
from outlive.node import PUBLISHED_LIMIT, StuckRequests, next_places, published_places
from outlive.node.ports import PLACES_LIMIT, DiskIo
from outlive.resources import CLUSTER, Cluster, ObjectMeta, RecoveryPolicy
from outlive.simulation import ONE_PLACE, StorageClient, VmSpec, World
from outlive.store import compare_and_swap

STUCK_S = 8.0


def io(done: int | None, pending: int = 1, run_id: str = "r1") -> tuple[DiskIo, ...]:
    return (DiskIo(vm="web", run_id=run_id, pending=pending, done=done),)


def looks(*seen: tuple[DiskIo, ...]) -> list[bool]:
    """Whether it is stuck, at looks two seconds apart."""
    stuck = StuckRequests(STUCK_S)
    return [bool(stuck.find_stuck(one, 2.0 * number)) for number, one in enumerate(seen)]


class TestStuckRequests:
    def test_guest_is_stuck_once_nothing_was_answered_for_long_while_something_waits(self) -> None:
        assert looks(*[io(5)] * 6) == [False] * 4 + [True] * 2

    def test_guest_that_does_nothing_or_is_answered_is_not(self) -> None:
        assert not any(looks(*[io(5, pending=0)] * 9))
        assert not any(looks(*[io(number) for number in range(9)]))
        assert not any(looks(io(5), io(5), io(5), io(5, pending=0), io(5), io(5), io(5), io(5)))

    def test_another_run_begins_anew(self) -> None:
        assert looks(io(5), io(5), io(5), io(5, run_id="r2"), io(5, run_id="r2"), io(5, run_id="r2"))[-1] is False

    def test_process_that_says_nothing_is_taken_to_have_answered_nothing(self) -> None:
        assert looks(io(5), io(None), io(None), io(None), io(None)) == [False] * 4 + [True]
        assert looks(io(5), io(None), io(6), io(None), io(None), io(None))[-1] is False

    @given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
    def test_a_request_that_is_answered_within_the_limit_is_never_stuck(self, pauses: list[int]) -> None:
        seen = [io(number) for number, pause in enumerate(pauses) for _ in range(1 + pause)]
        assert not any(looks(*seen))


def lost(vm: str = "db", **more: Any) -> dict[str, Any]:
    return {"vm": vm, "kind": "unreached", "lost_for": 40, "action": "restart", **more}


def peer(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "coordinator": True, **more}


PEERS = [peer(f"hv{number}") for number in range(2, 10)]


def storage(*guests: dict[str, Any], peers: list[dict[str, Any]] = PEERS, **more: Any) -> dict[str, Any]:
    return decide("host.storage", host="hv1", guests=guests, peers=peers, **more)


def test_every_place_has_its_turn_however_many_there_are_and_however_many_are_lost() -> None:
    places = [f"file:/mnt/{number:03}" for number in range(200)]
    lost, asked_s = places[:100], dict[str, float]()
    for look in range(40):
        asked = next_places(places, lost, asked_s)
        assert len(set(asked)) == len(asked) == PLACES_LIMIT
        asked_s.update(dict.fromkeys(asked, float(look)))
    assert min(asked_s[place] for place in places) > 20.0


def test_what_was_not_reached_is_asked_again_first() -> None:
    places = [f"file:/mnt/{number:03}" for number in range(200)]
    asked = next_places(places, {"file:/mnt/150"}, dict.fromkeys(places, 1.0))
    assert asked[0] == "file:/mnt/150"


def test_too_many_lost_places_are_published_as_their_kind() -> None:
    few, many = ["rbd:vms"], [f"drbd:vm-{number}" for number in range(PUBLISHED_LIMIT + 1)]
    assert published_places([*few, *many]) == ("drbd:", "rbd:vms")


class TestDeciding:
    def test_those_whose_policy_says_so_are_restarted(self) -> None:
        answer = storage(lost("a"), lost("b", action="report"), lost("c", recovers=False), lost("d", lost_for=29))
        assert (answer["restart"], answer["fence"], answer["why"]) == (["a"], False, "")

    @pytest.mark.parametrize(
        ("guests", "more", "why"),
        [
            ((), {}, "well"),
            ((lost(action="report"),), {}, "off"),
            ((lost(),), {"resting": True}, "maintenance"),
            ((lost(lost_for=29.9),), {}, "unsettled"),
            ((lost(),), {"peers": []}, "alone"),
            ((lost(),), {"peers": [peer("hv2", works=False)]}, "alone"),
            ((lost(),), {"peers": [peer("hv2", storage_lost=True)]}, "common_cause"),
            ((lost(places=["rbd:vms"]),), {}, "unconfirmed"),
            ((lost(places=["rbd:vms"]),), {"peers": [*PEERS, peer("hv10", reaches=["rbd:web"])]}, "unconfirmed"),
            (
                (lost(places=["rbd:vms"]),),
                {"peers": [*PEERS, peer("hv0", works=False, reaches=["rbd:vms"])]},
                "unconfirmed",
            ),
            (
                (lost(),),
                {"peers": [*PEERS[2:], peer("hv2", storage_lost=True), peer("hv3", storage_lost=True)]},
                "common_cause",
            ),
        ],
    )
    def test_reasons_to_do_nothing(self, guests: tuple[Any, ...], more: dict[str, Any], why: str) -> None:
        answer = storage(*guests, **more)
        assert (answer["why"], answer["restart"], answer["fence"]) == (why, [], False)

    def test_only_those_are_restarted_whose_storage_another_host_has_said_to_reach(self) -> None:
        peers = [*PEERS, peer("hv10", reaches=["rbd:vms"])]
        guests = lost("a", places=["rbd:vms"]), lost("b", places=["rbd:vms", "rbd:web"]), lost("c", kind="stuck")
        answer = storage(*guests, peers=peers)
        assert (answer["restart"], answer["why"]) == (["a", "c"], "")

    def test_host_is_fenced_only_where_it_cannot_end_a_protected_vm_whose_storage_it_does_not_reach(self) -> None:
        hangs = lost(action="fence", hangs=True)
        assert storage(hangs)["fence"]
        for other in ({"action": "restart"}, {"hangs": False}, {"required": 0}, {"kind": "stuck"}):
            assert not storage({**hangs, **other})["fence"]
        assert not storage(hangs, peers=[{**one, "coordinator": False} for one in PEERS])["fence"]

    @given(st.integers(0, 8), st.floats(0, 1))
    def test_nothing_is_done_where_more_than_the_share_has_lost_storage(self, others: int, share: float) -> None:
        peers = [{**one, "storage_lost": number < others} for number, one in enumerate(PEERS)]
        answer = storage(lost(action="fence", hangs=True), peers=peers, common_share=share)
        common = others == 8 or (others > 0 and others + 1 > share * 9)
        assert (answer["restart"] == [] and not answer["fence"]) == common


@run_by(play)
async def test_guest_that_somebody_paused_stays_so(world: World) -> None:
    hypervisor = world.hosts["kvm-1"].hypervisor
    domain = hypervisor.domains["vm-1"]
    hypervisor._set_state(domain, domain.state.PAUSED, "somebody paused it")
    await at(world, 60)
    assert world.running_hosts("vm-1") == ()
    assert "vm-storage-lost.vm-1" not in faults(world)


@pytest.mark.parametrize("network", ["reached", "cut"])
@run_by(play)
async def test_stuck_guest_is_told_within_fifteen_seconds(world: World, *, network: str) -> None:
    if network == "cut":
        await world.do("cut", {"network": "storage", "hosts": ["kvm-1"]})
    else:
        world.hosts["kvm-1"].hypervisor.lose_storage("stall")
    began = world.clock.monotonic()
    while vm_of(world).status.reason != "storage-lost":
        await world.clock.sleep(0.5)
        assert world.clock.monotonic() - began < 15
    await world.clock.sleep(1)
    assert {"vm-storage-lost.vm-1", "host-storage-lost.kvm-1"} & faults(world)


@pytest.mark.slow
@run_by(
    play,
    hosts=3,
    vms=(VmSpec(name="vm-1", host="kvm-1", recovery=RecoveryPolicy(mode="hold", storage_lost="restart")),),
)
async def test_vm_that_is_held_by_its_own_policy_is_not_ended(world: World) -> None:
    await world.do("cut", {"network": "storage", "hosts": ["kvm-1"]})
    await at(world, 120)
    assert world.running_hosts("vm-1") == ("kvm-1",)


async def have_all_asked(world: World) -> None:
    """Name the place that is lost to all hosts, as recovery does."""

    def change(cluster: Cluster | None) -> Cluster:
        cluster = cluster or Cluster(metadata=ObjectMeta(name=CLUSTER))
        return replace(cluster, status=replace(cluster.status, lost_places=(ONE_PLACE,)))

    await compare_and_swap(world.store, Cluster, CLUSTER, change, clock=world.clock)


def test_storage_that_hangs_hangs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(self: StorageClient, places: tuple[str, ...]) -> dict[str, str]:
        await asyncio.sleep(3600.0)
        return {}

    async def story(world: World) -> None:
        monkeypatch.setattr(StorageClient, "check_reach", hangs)
        world.hosts["kvm-1"].hypervisor.lose_storage("pause")
        await at(world, 14)
        assert {"vm-storage-lost.vm-1", "host-storage-lost.kvm-1"} & faults(world)

    play(story)


@run_by(play)
async def test_guests_that_cannot_be_asked_are_not_taken_for_stuck(
    world: World, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    hypervisor = world.hosts["kvm-1"].hypervisor
    hypervisor.lose_storage("stall")
    await at(world, 3)  # one look sees requests on their way

    async def unable() -> tuple[DiskIo, ...]:
        raise Unavailable("the processes of this host cannot be read")

    monkeypatch.setattr(hypervisor, "disk_io", unable)
    hypervisor.regain_storage()
    for second in range(4, 60):
        await at(world, second)
        assert (vm_of(world).status.reason, faults(world)) == ("", set())


@pytest.mark.slow
@run_by(play, hosts=3, vms=(VmSpec(name="vm-1", host="kvm-1", recovery=RecoveryPolicy(storage_lost="restart")),))
async def test_host_that_was_left_says_so_until_the_storage_answers_also_after_a_restart_of_its_daemon(
    world: World,
) -> None:
    await world.do("cut", {"network": "storage", "hosts": ["kvm-1"]})
    await have_all_asked(world)
    await at(world, 60)
    assert world.running_hosts("vm-1") == ()
    await world.do("kill-daemon", {"hosts": ["kvm-1"]})
    for second in range(61, 90):
        await at(world, second)
        assert host_of(world).status.storage_lost is not None
    await world.do("heal", {"network": "storage", "hosts": ["kvm-1"]})
    await at(world, 120)
    assert host_of(world).status.storage_lost is None
