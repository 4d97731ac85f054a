"""The whole cluster is disarmed for planned work, and whose guard has not followed is said."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.loops import run

from outlive.base import LoopClock, Random, Refused, SeededIds, Usage
from outlive.node import arm_cluster, disarm_cluster, enforcing_hosts, follow_guards, request_vm, set_drain
from outlive.resources import (
    Cluster,
    FencingSpec,
    GuardRecord,
    Hypervisor,
    HypervisorSpec,
    MemberRecord,
    Membership,
    ObjectMeta,
)
from outlive.store import MemoryStore

CLOCK = LoopClock()


async def test_resting_is_maintenance_or_disarmed_and_ends_by_itself() -> None:
    store = MemoryStore(clock=CLOCK, ids=SeededIds(Random(1)))
    await disarm_cluster(store, CLOCK, "freeze", for_s=60.0)
    first = await store.get(Cluster, "default")
    await CLOCK.sleep(10.0)
    await disarm_cluster(store, CLOCK, "ignore", for_s=120.0)
    second = await store.get(Cluster, "default")
    assert first.spec.disarmed_since == second.spec.disarmed_since
    since, spec = second.spec.disarmed_since, second.spec
    assert since is not None
    at = since.timestamp()
    assert spec.disarmed_mode(at + 100.0) == "ignore"
    assert spec.resting_reason(at + 100.0) == "the cluster being disarmed (ignore)"
    assert spec.resting_reason(at + 200.0) == spec.disarmed_mode(at + 200.0) == ""


def test_end_that_is_over_and_arming_what_is_armed_are_refused() -> None:
    with pytest.raises(Usage):
        run(disarm_cluster(MemoryStore(clock=CLOCK, ids=SeededIds(Random(1))), CLOCK, "freeze", for_s=-1.0))
    with pytest.raises(Refused, match="not disarmed"):
        run(arm_cluster(MemoryStore(clock=CLOCK, ids=SeededIds(Random(1))), CLOCK))


async def test_requests_and_drains_are_refused_while_frozen_only() -> None:
    store = MemoryStore(clock=CLOCK, ids=SeededIds(Random(1)))
    await store.create(Hypervisor(metadata=ObjectMeta(name="h1"), spec=HypervisorSpec(management="node")))
    await disarm_cluster(store, CLOCK, "freeze")
    for refused in (
        set_drain(store, CLOCK, "h1", True),
        request_vm(store, CLOCK, SeededIds(Random(1)), "a", "start"),
    ):
        with pytest.raises(Refused, match="disarmed"):
            await refused
    await disarm_cluster(store, CLOCK, "ignore")
    with pytest.raises(Refused, match="daemon"):
        await set_drain(store, CLOCK, "h1", True)
    assert "armed" in await arm_cluster(store, CLOCK)


def test_a_host_that_is_dead_is_waited_for_by_nobody() -> None:
    dead = MemberRecord(
        machine_id="m", boot_id="b", state="Revoked", epoch=2, dead_through=2, guard=GuardRecord(armed=True)
    )
    condemned = msgspec.structs.replace(dead, dead_through=1)
    members = [Membership(metadata=ObjectMeta(name=name), record=one) for name, one in (("a", dead), ("b", condemned))]
    assert enforcing_hosts(members) == ["b"]


@pytest.mark.parametrize("armed", [False, True])
def test_hosts_that_did_not_follow_are_named_and_the_others_reported_once(armed: bool) -> None:
    store, said = MemoryStore(clock=CLOCK, ids=SeededIds(Random(1))), list[str]()

    async def story() -> tuple[str, ...]:
        for name, enforces in (("h1", True), ("h2", False)):
            spec = HypervisorSpec(management="node", fencing=FencingSpec(armed=True))
            await store.create(Hypervisor(metadata=ObjectMeta(name=name), spec=spec))
            record = MemberRecord(machine_id="m", boot_id="b", guard=GuardRecord(armed=enforces))
            await store.create(Membership(metadata=ObjectMeta(name=name), record=record))
        return await follow_guards(store, CLOCK, armed=armed, report=said.append, limit_s=5.0)

    assert run(story()) == (("h2",) if armed else ("h1",))
    assert said == (["h1: its guard enforces"] if armed else ["h2: its guard is disarmed"])
