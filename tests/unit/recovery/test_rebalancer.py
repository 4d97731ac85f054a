"""Moves for balance are carried out one after the other, and it is seen whether each happened."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.support.loops import run_by
from tests.support.node_worlds import play, vm_of
from tests.support.remembering_log import RememberingLog

from outlive.base import Conflict, Random, Refused, SeededIds, Unavailable
from outlive.failover import (
    FAIL_BACK,
    REBALANCE,
    BalancingMove,
    Documents,
    FailoverConfig,
    FailoverSettings,
    FailoverUpkeepSettings,
    Inline,
    VmMove,
    gather,
)
from outlive.failover.planner import Action
from outlive.failover.reconciler import ApplyOutcome
from outlive.recovery import (
    FAILBACK_INDEX,
    LOOK_S,
    PLANNED,
    BalancingPlan,
    BalancingState,
    Rebalancer,
    build_in_flight,
    encode_state,
    fail_back_input,
    group_moves,
    groups_in,
    is_moved,
    move_together,
    rebalance_input,
    request_move,
)
from outlive.resources import (
    CLUSTER,
    AffinityRule,
    Amounts,
    Cluster,
    Hypervisor,
    ObjectMeta,
    ObjectRef,
    RebalancePolicy,
    Request,
    VirtualMachine,
    decode_as,
    encode_canonical,
)
from outlive.runtime import Decision, Informer
from outlive.simulation import VmSpec, World
from outlive.store import compare_and_swap, list_all


def to(host: str) -> BalancingMove:
    return BalancingMove(
        vm="vm-1", source="kvm-1", host=host, source_before=0.5, source_after=0.4, host_before=0.0, host_after=0.1
    )


@run_by(play)
async def test_move_that_was_carried_out_is_seen_and_one_that_was_refused_is_not_waited_for(world: World) -> None:
    store, clock, ids = world.store, world.clock, SeededIds(Random(7))
    assert await request_move(store, clock, ids, to("kvm-9"))
    begun_s = clock.monotonic()
    assert not await is_moved(store, clock, to("kvm-9"))
    assert clock.monotonic() - begun_s < 30
    assert await request_move(store, clock, ids, to("kvm-2"))
    assert await is_moved(store, clock, to("kvm-2"))
    assert vm_of(world).host == "kvm-2"
    assert not await request_move(store, clock, ids, to("kvm-2")), "it is not where the plan saw it"


@run_by(play)
async def test_a_group_moves_as_one_and_those_that_moved_come_back_where_another_does_not(world: World) -> None:
    store, clock, ids = world.store, world.clock, SeededIds(Random(7))
    moves = [VmMove(vm="vm-1", source="kvm-1", host="kvm-2"), VmMove(vm="vm-9", source="kvm-1", host="kvm-2")]
    assert await move_together(store, clock, ids, moves) == "vm-9"
    assert vm_of(world).host == "kvm-1"
    assert await move_together(store, clock, ids, moves[:1]) == ""
    assert vm_of(world).host == "kvm-2"


@run_by(play)
async def test_a_group_move_is_checked_for_all_of_it_first(world: World) -> None:
    store, clock = world.store, world.clock

    async def planned(**spec: Any) -> list[VmMove]:
        def ruled(vm: VirtualMachine | None) -> VirtualMachine:
            assert vm is not None
            return msgspec.structs.replace(vm, spec=msgspec.structs.replace(vm.spec, affinity=RULES, **spec))

        await compare_and_swap(store, VirtualMachine, "vm-1", ruled, clock=clock, half="spec")
        gathered = await gather(store, FailoverSettings(), in_flight=build_in_flight)
        vms = {vm.name: vm async for vm in list_all(store, VirtualMachine)}
        return list(group_moves(gathered, vms, "web", "kvm-2"))

    assert await planned() == [VmMove(vm="vm-1", source="kvm-1", host="kvm-2")]
    with pytest.raises(Refused, match="not all of group web may be on kvm-2: vm-1 may not run on kvm-2"):
        await planned(host_limit=("kvm-1",))
    with pytest.raises(Refused, match="placement does not offer kvm-2 for vm-1"):
        await planned(host_limit=(), resources=Amounts.parse({"cpu": "1", "memory": "9Ti"}))
    await compare_and_swap(store, Hypervisor, "kvm-2", full, clock=clock)
    with pytest.raises(Refused, match="kvm-2 has no room for all of group web"):
        await planned(resources=Amounts.parse({"cpu": "1", "memory": "1Gi"}))
    gathered = await gather(store, FailoverSettings(), in_flight=build_in_flight)
    vm = vm_of(world)
    asked = msgspec.structs.replace(vm, spec=msgspec.structs.replace(vm.spec, request=Request(id="r", verb="stop")))
    with pytest.raises(Conflict, match="vm-1 is being recovered or moved, or has an open request"):
        group_moves(gathered, {"vm-1": asked}, "web", "kvm-2")


@run_by(play, vms=(VmSpec(name="vm-1", host="kvm-1"), VmSpec(name="vm-2", host="kvm-1")))
async def test_a_group_that_is_planned_runs_together_on_its_new_host_after_the_move(world: World) -> None:
    store, clock, ids = world.store, world.clock, SeededIds(Random(7))

    def ruled(vm: VirtualMachine | None) -> VirtualMachine:
        assert vm is not None
        return msgspec.structs.replace(vm, spec=msgspec.structs.replace(vm.spec, affinity=RULES))

    for name in ("vm-1", "vm-2"):
        await compare_and_swap(store, VirtualMachine, name, ruled, clock=clock, half="spec")
    gathered = await gather(store, FailoverSettings(), in_flight=build_in_flight)
    vms = {vm.name: vm async for vm in list_all(store, VirtualMachine)}
    moves = group_moves(gathered, vms, "web", "kvm-2")
    assert [one.vm for one in moves] == ["vm-1", "vm-2"]
    assert await move_together(store, clock, ids, moves) == ""
    (group,) = groups_in([vm_of(world, "vm-1"), vm_of(world, "vm-2")])
    assert (group.hosts, group.together) == (("kvm-2",), True)
    assert {name: world.running_hosts(name) for name in ("vm-1", "vm-2")} == {
        "vm-1": ("kvm-2",),
        "vm-2": ("kvm-2",),
    }


def full(host: Hypervisor | None) -> Hypervisor:
    assert host is not None
    status = msgspec.structs.replace(host.status, allocation=host.effective_capacity())
    return msgspec.structs.replace(host, status=status)


RULES = (AffinityRule(group="web", policy="affinity"),)


@run_by(play)
async def test_what_a_plan_is_made_from_is_computed_elsewhere(world: World) -> None:
    store, clock = world.store, world.clock
    settings, policy = FailoverSettings(), RebalancePolicy(mode="auto", threshold=0.1)
    gathered = await gather(store, settings, in_flight=build_in_flight)
    vms = {vm.name: vm async for vm in list_all(store, VirtualMachine)}
    documents = Documents(
        hypervisors=tuple([one async for one in list_all(store, Hypervisor)]), vms=tuple(vms.values())
    )
    for back in (None, ("vm-1",)):
        given = BalancingState(documents=documents, settings=settings, policy=policy, back=back)
        plan = decode_as(BalancingPlan, await Inline().compute(PLANNED, *await encode_state(given, clock)))
        if back is None:
            balance = rebalance_input(gathered, vms, policy, ours_only=True)
            assert balance.vms
            assert plan.input == encode_canonical(balance)
            assert plan.result == REBALANCE.function(balance)
        else:
            home = fail_back_input(gathered, vms, back)
            assert home.vms
            assert plan.input == encode_canonical(home)
            assert plan.back == FAIL_BACK.function(home)
    assert pickle.loads(pickle.dumps(PLANNED)) == PLANNED


async def no_exchange(actions: Sequence[Action]) -> ApplyOutcome:
    """Nobody changes slots here."""
    raise AssertionError(actions)


class NoEvents:
    """Nobody listens."""

    def emit(self, regarding: ObjectRef, reason: str, note: str, *, type: str = "Normal", action: str = "") -> None:
        """Nothing."""


class Listening(Inline):
    """Remembers what it was sent; refuses the first time as a child process would."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def compute(self, decision: Decision[Any, Any], *raw: bytes) -> bytes:
        self.sent.append(b"".join(raw))
        if len(self.sent) == 1:
            raise Unavailable("it cannot be sent to a child process")
        return await super().compute(decision, *raw)


@run_by(play)
async def test_plan_in_the_background_is_sent_no_address_and_no_secret_and_goes_on_after_an_error(world: World) -> None:
    store, clock, computer = world.store, world.clock, Listening()
    await compare_and_swap(
        store,
        Cluster,
        CLUSTER,
        lambda now: _with_policy(now or Cluster(metadata=ObjectMeta(name=CLUSTER))),
        clock=clock,
        half="spec",
    )
    vms = Informer(
        store,
        VirtualMachine,
        clock=clock,
        random=Random(1),
        indexes={FAILBACK_INDEX: lambda vm: (vm.spec.failback,)},
    )
    upkeep = FailoverUpkeepSettings(
        database_url="postgresql://user:secret@host/db",
        data_sources={"other": "postgresql://user:secret@other/db"},
        scheduler_token="secret",
        failure_unit="rack",
    )
    settings = FailoverSettings(failover=FailoverConfig(scheduler_url="http://secret"), upkeep=upkeep)
    log = RememberingLog(clock)
    rebalancer = Rebalancer(
        store,
        settings,
        computer=computer,
        decisions=log,
        events=NoEvents(),
        clock=clock,
        ids=SeededIds(Random(7)),
        vms=vms,
        exchange=no_exchange,
    )
    tasks = [asyncio.create_task(vms.run()), asyncio.create_task(rebalancer.run())]
    await clock.sleep(3 * LOOK_S)
    assert len(computer.sent) == 2
    assert not any(b"secret" in sent for sent in computer.sent)
    assert b'"failureUnit":"rack"' in computer.sent[0]
    assert [use.name for use in log.uses()] == [REBALANCE.name]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _with_policy(cluster: Cluster) -> Cluster:
    spec = msgspec.structs.replace(cluster.spec, rebalance=RebalancePolicy(mode="auto", threshold=0.1))
    return msgspec.structs.replace(cluster, spec=spec)
