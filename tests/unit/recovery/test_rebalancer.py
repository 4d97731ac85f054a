"""Moves for balance are carried out one after the other, and it is seen whether each happened."""

from __future__ import annotations

from tests.support.node_worlds import play, vm_of

from outlive.base.ids import SeededIds
from outlive.base.random import Random
from outlive.failover.rebalance import BalancingMove
from outlive.recovery.rebalancer import is_moved, request_move
from outlive.simulation.world import World


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
