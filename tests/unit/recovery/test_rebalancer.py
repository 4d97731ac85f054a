"""Moves for balance are carried out one after the other, and it is seen whether each happened."""

from __future__ import annotations

import pickle

from tests.support.node_worlds import play, vm_of

from outlive.base.ids import SeededIds
from outlive.base.random import Random
from outlive.failover.config import FailoverSettings
from outlive.failover.ports import Inline
from outlive.failover.rebalance import BalancingMove
from outlive.failover.snapshot import Documents, gather
from outlive.recovery.balance import GATHERED, BalancingState, encoded, is_moved, rebalance_input, request_move
from outlive.recovery.in_flight import in_flight
from outlive.resources import Hypervisor, VirtualMachine
from outlive.resources.cluster import RebalancePolicy
from outlive.resources.codec import encode_canonical
from outlive.simulation.world import World
from outlive.store import list_all


def to(host: str) -> BalancingMove:
    return BalancingMove(
        vm="vm-1", source="kvm-1", host=host, source_before=0.5, source_after=0.4, host_before=0.0, host_after=0.1
    )


def test_move_that_was_carried_out_is_seen_and_one_that_was_refused_is_not_waited_for() -> None:
    async def story(world: World) -> None:
        store, clock, ids = world.store, world.clock, SeededIds(Random(7))
        assert await request_move(store, clock, ids, to("kvm-9"))
        begun_s = clock.monotonic()
        assert not await is_moved(store, clock, to("kvm-9"))
        assert clock.monotonic() - begun_s < 30
        assert await request_move(store, clock, ids, to("kvm-2"))
        assert await is_moved(store, clock, to("kvm-2"))
        assert vm_of(world).host == "kvm-2"
        assert not await request_move(store, clock, ids, to("kvm-2")), "it is not where the plan saw it"

    play(story)


def test_what_a_plan_is_made_from_is_computed_elsewhere() -> None:
    async def story(world: World) -> None:
        store, clock = world.store, world.clock
        settings, policy = FailoverSettings(), RebalancePolicy(mode="auto", threshold=0.1)
        gathered = await gather(store, settings, in_flight=in_flight)
        vms = {vm.name: vm async for vm in list_all(store, VirtualMachine)}
        documents = Documents(
            hypervisors=tuple([one async for one in list_all(store, Hypervisor)]), vms=tuple(vms.values())
        )
        for back in (None, ("vm-1",)):
            given = BalancingState(documents=documents, settings=settings, policy=policy, back=back)
            raw = await Inline().compute(GATHERED, await encoded(given, clock))
            asked = rebalance_input(gathered, vms, policy, ours_only=True, back=back)
            assert asked.vms
            assert raw == encode_canonical(asked)
        assert pickle.loads(pickle.dumps(GATHERED)) == GATHERED

    play(story)
