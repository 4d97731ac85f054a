"""Live moves of VMs on networks that fail in each phase, whose ends die, and whose controller dies at each write.

Whatever happens: at every moment at most one host answers, in the end exactly one does, no row is left over, and a
second move succeeds.
"""

from __future__ import annotations

from itertools import product

import pytest
from tests.support.network_worlds import HOSTS, KINDS, answers, fabric_of, network_world, play
from tests.swarm.operator import heal

from outlive.resources import MigrationPhase, PortMode
from outlive.simulation import PHASES, World
from outlive.simulation.network import OvnFault

pytestmark = pytest.mark.slow
Kind = tuple[str, PortMode | None]
MOVING = (
    MigrationPhase.REQUESTED,
    MigrationPhase.TARGET_READY,
    MigrationPhase.TRANSFERRING,
    MigrationPhase.TRANSFERRED,
    None,
)
"""Phases of a live move; ``None``: it is over."""
WRITES = range(3)
"""Transactions of one move, and one more."""
POWER = tuple(product(KINDS[:3], MOVING, ("h1", "h2")))
HANGING = tuple(product((KINDS[1], KINDS[4]), MOVING[::2], ("h1", "h2")))
"""Old flows harm most on a physical network."""
LOOK_S = 0.05


async def move(world: World, to: str = "h2") -> None:
    await world.do("move", {"vm": "vm-1", "to": to, "live": True})


async def wait_for(world: World, phase: MigrationPhase | None) -> None:
    """Until the move is in that phase, or over."""
    for _ in range(int(40.0 / LOOK_S)):
        await world.clock.sleep(LOOK_S)
        vm = world.truth.find_vm("vm-1")
        assert vm is not None
        now = vm.status.migration.phase if vm.status.migration is not None else None
        if now is phase:
            return


async def end_well(world: World) -> None:
    """Everything is healed and a second move succeeds; nothing was ever violated."""
    await heal(world)
    await world.clock.sleep(60.0)
    (host,) = world.running_hosts("vm-1")
    assert answers(world) == [host]
    target = next(one for one in HOSTS if one != host)
    await move(world, target)
    await world.clock.sleep(40.0)
    assert answers(world) == [target]
    world.judge.judge_rest()
    assert world.violations == []


@pytest.mark.parametrize(("kind", "phase"), tuple(product(KINDS, PHASES)))
def test_a_move_that_fails_leaves_one_that_answers(kind: Kind, phase: str) -> None:
    async def story(world: World) -> None:
        await world.do("migration-fails", {"hosts": ("h1",), "phase": phase})
        await move(world)
        await world.clock.sleep(40.0)
        await end_well(world)

    play(story, lambda: network_world(*kind))


@pytest.mark.parametrize(("kind", "phase", "host"), POWER)
def test_an_end_that_loses_power_leaves_one_that_answers(kind: Kind, phase: MigrationPhase | None, host: str) -> None:
    async def story(world: World) -> None:
        await move(world)
        await wait_for(world, phase)
        await world.do("power-off", {"hosts": (host,)})
        await world.clock.sleep(40.0)
        assert len(answers(world)) == 1
        await end_well(world)

    play(story, lambda: network_world(*kind))


@pytest.mark.parametrize(("kind", "phase", "host"), HANGING)
def test_an_end_whose_ovn_controller_hangs_leaves_one_that_answers(
    kind: Kind, phase: MigrationPhase | None, host: str
) -> None:
    async def story(world: World) -> None:
        await move(world)
        await wait_for(world, phase)
        await world.do("stop-ovn-controller", {"hosts": (host,)})
        await world.clock.sleep(40.0)
        await end_well(world)

    play(story, lambda: network_world(*kind))


@pytest.mark.parametrize(
    ("kind", "write", "fault"), tuple(product(KINDS[:3], WRITES, (OvnFault.CRASH_BEFORE, OvnFault.CRASH_AFTER)))
)
def test_a_controller_that_dies_at_a_write_is_followed_by_one_that_goes_on(
    kind: Kind, write: int, fault: OvnFault
) -> None:
    async def story(world: World) -> None:
        fabric_of(world).ovn.faults.transactions = [*[None] * write, fault]
        await move(world)
        await world.clock.sleep(40.0)
        await end_well(world)

    play(story, lambda: network_world(*kind, controllers=2))


@pytest.mark.parametrize(("kind", "at_s"), tuple(product(KINDS[:3], (0.5, 6.0))))
def test_a_northbound_database_that_goes_back_in_a_move_is_made_right(kind: Kind, at_s: float) -> None:
    async def story(world: World) -> None:
        await world.do("ovn-snapshot", {})
        await move(world)
        await world.clock.sleep(at_s)
        await world.do("ovn-restore", {})
        await world.clock.sleep(40.0)
        assert len(answers(world)) == 1
        await end_well(world)

    play(story, lambda: network_world(*kind))
