"""Recovery on virtual time: hosts die, and their VMs run again in the slots that were promised to them."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest
from tests.support.loops import run_by
from tests.support.recovery import RecoveryCloud, join_before, play

from outlive.failover import Caller
from outlive.placement import VmView
from outlive.recovery import SEARCHES, RecoveryAction, RecoveryActions
from outlive.resources import Cluster, FunctionNeed, Hypervisor, Membership, ObjectMeta, VirtualFunction

_replace = msgspec.structs.replace


@run_by(play)
async def test_vm_of_a_dead_host_runs_again_in_its_slot(cloud: RecoveryCloud) -> None:
    await cloud.hosts("h1", "h2", "h3")
    await cloud.vm("a", "h1")
    await cloud.slot("s1", "h2", {"a": "h1"})
    await cloud.clock.sleep(5)
    assert await cloud.recovery("a") is None
    await cloud.die("h1")
    await cloud.clock.sleep(3)
    record = await cloud.recovery("a")
    assert (record.phase, record.slot, record.host, record.promised) == ("recovered", "s1", "h2", True)
    assert [one.kind for one in record.proofs] == ["power"]
    assert [one.what for one in record.steps] == ["fenced", "claimed", "assigned", "seen-running"]
    assert cloud.running["a"] == {"h2"}
    assert await cloud.consumers() == {"s1": "a"}


@run_by(play)
async def test_slot_on_a_host_in_maintenance_is_passed_over_and_the_reason_is_recorded(cloud: RecoveryCloud) -> None:
    await cloud.hosts("h1", "h3", "h4", cpu=1_000)
    await cloud.hosts("h2", maintenance="manual")
    await cloud.vm("a", "h1")
    await cloud.vm("b", "h1")
    await cloud.slot("s1", "h2", {"a": "h1"})
    await cloud.slot("s2", "h3", {"a": "h1"})
    await cloud.slot("s3", "h2", {"b": "h1"})
    await cloud.clock.sleep(5)
    await cloud.die("h1")
    await cloud.clock.sleep(5)
    record = await cloud.recovery("a")
    assert (record.phase, record.slot, record.host) == ("recovered", "s2", "h3")
    held = await cloud.recovery("b")
    assert (held.phase, "h2 is in maintenance (manual)" in held.message) == ("held", True), held


@run_by(play)
async def test_target_that_neither_starts_nor_refuses_is_given_up_after_its_time(cloud: RecoveryCloud) -> None:
    await cloud.hosts("h1", "h2", "h3")
    await cloud.vm("a", "h1")
    await cloud.slot("s1", "h2", {"a": "h1"})
    await cloud.slot("s2", "h3", {"a": "h1"})
    cloud.dawdles.add("h2")
    await cloud.clock.sleep(5)
    await cloud.die("h1")
    await cloud.clock.sleep(55)
    assert await cloud.where("a") == "h2"
    await cloud.clock.sleep(15)
    assert (await cloud.recovery("a")).slot == "s2"


@pytest.mark.slow
@run_by(play)
async def test_vms_that_placement_refuses_do_not_keep_others_from_being_asked_about(cloud: RecoveryCloud) -> None:
    await cloud.hosts("h1")
    await cloud.hosts("h2", allowed_projects=("known",))
    for number in range(SEARCHES + 20):
        await cloud.vm(f"refused-{number:03}", "h1", cpu=10, memory=2**20, project="other")
    await cloud.vm("welcome", "h1", cpu=10, memory=2**20, restart_priority=-1, project="known")
    await cloud.clock.sleep(5)
    await cloud.die("h1")
    await cloud.clock.sleep(10)
    assert (await cloud.recovery("refused-000")).reason == "no-room"
    assert (await cloud.recovery("welcome")).phase == "recovered"


@run_by(play)
async def test_host_that_comes_back_before_its_vms_were_sent_away_starts_them_itself(cloud: RecoveryCloud) -> None:
    await cloud.hosts("h1", "h2", cpu=2_000, memory=4 * 2**30)
    await cloud.vm("a", "h1")
    await cloud.vm("b", "h2")
    await cloud.clock.sleep(5)
    await cloud.die("h1")
    await cloud.clock.sleep(4)
    assert (await cloud.recovery("a")).phase == "held"
    assert (await cloud.memory.get(Hypervisor, "h1")).status.lost
    await cloud.come_back("h1")
    await cloud.clock.sleep(4)
    record = await cloud.recovery("a")
    assert (record.phase, record.host, record.promised) == ("recovered", "h1", False)
    assert not (await cloud.memory.get(Hypervisor, "h1")).status.lost


@run_by(play)
async def test_hosts_that_join_for_the_first_time_are_no_restored_backup(cloud: RecoveryCloud) -> None:
    await cloud.cluster()
    await cloud.hosts("h1", "h2")
    await cloud.clock.sleep(60)
    cluster = await cloud.memory.get(Cluster, "default")
    assert cluster.status.store_incarnation == cloud.memory.incarnation
    assert cluster.status.pause is None
    assert cloud.faults.open == {}


@run_by(play)
async def test_a_cluster_that_was_deleted_is_made_anew_and_paused_until_every_host_has_joined(
    cloud: RecoveryCloud,
) -> None:
    await cloud.cluster()
    await cloud.hosts("h1", "h2")
    await cloud.vm("a", "h1")
    await cloud.slot("s1", "h2", {"a": "h1"})
    await cloud.clock.sleep(5)
    await join_before(cloud, "h1", "h2")
    await cloud.memory.delete((await cloud.memory.get(Cluster, "default")).ref)
    await cloud.die("h1")
    await cloud.clock.sleep(15)
    cluster = await cloud.memory.get(Cluster, "default")
    assert (cluster.status.store_incarnation, cluster.paused) == (cloud.memory.incarnation, True)
    assert (await cloud.recovery("a")).reason == "store-restored"
    spec = msgspec.structs.replace(cluster.spec, confirmed_incarnation=cloud.memory.incarnation)
    await cloud.memory.replace(msgspec.structs.replace(cluster, spec=spec))
    await cloud.clock.sleep(5)
    assert (await cloud.recovery("a")).phase == "recovered"


@run_by(play)
async def test_vm_whose_host_registered_anew_under_another_membership_is_held_and_says_what_to_do(
    cloud: RecoveryCloud,
) -> None:
    await cloud.hosts("h1", "h2")
    await cloud.vm("a", "h1")
    await cloud.clock.sleep(5)
    gone = await cloud.memory.get(Membership, "h1")
    await cloud.memory.delete(gone.ref)
    await cloud.memory.create(Membership(metadata=ObjectMeta(name="h1"), record=gone.record))
    await cloud.clock.sleep(3)
    record = await cloud.recovery("a")
    assert (record.phase, record.reason) == ("held", "membership-missing")
    assert "outlive fence h1 --confirm-off" in record.remedy


class Deaf:
    """A store that never answers the first reading, or the first write, of one VM or host."""

    def __init__(self, inner: Any, call: str) -> None:
        self._inner = inner
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def get(self, kind: type, name: str, **how: Any) -> Any:
        if (kind.__name__, name, self._call) in (("VirtualMachine", "a", "get"), ("Hypervisor", "h1", "get host")):
            await self._never()
        return await self._inner.get(kind, name, **how)

    async def replace_status(self, obj: Any) -> Any:
        if (obj.name, self._call) in (("a", "replace_status"), ("h1", "replace_status host")):
            await self._never()
        return await self._inner.replace_status(obj)

    async def _never(self) -> None:
        self._call = ""
        await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("call", ["get", "replace_status", "get host", "replace_status host"])
def test_call_that_is_never_answered_holds_up_no_other_vm_for_long(call: str) -> None:
    async def story(cloud: RecoveryCloud) -> None:
        await cloud.hosts("h1", "h2", "h3", "h4")
        await cloud.vm("a", "h1")
        await cloud.vm("b", "h2")
        await cloud.slot("s1", "h3", {"a": "h1"})
        await cloud.slot("s2", "h4", {"b": "h2"})
        await cloud.clock.sleep(5)
        await cloud.die("h1")
        await cloud.clock.sleep(2)
        await cloud.die("h2")
        await cloud.clock.sleep(20)
        assert (await cloud.recovery("b")).phase == "recovered"
        assert (await cloud.recovery("a")).phase == "recovered"

    play(story, wrap=lambda store: Deaf(store, call))


@pytest.mark.slow
def test_vm_whose_recovery_crashes_keeps_no_other_from_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    true_act, tries = RecoveryActions.carry_out, list[float]()

    async def story(cloud: RecoveryCloud) -> None:
        async def broken(self: RecoveryActions, action: RecoveryAction) -> None:
            if action.vm == "a" and len(tries) < 4:
                tries.append(cloud.clock.monotonic())
                raise RuntimeError("a defect")
            await true_act(self, action)

        monkeypatch.setattr(RecoveryActions, "carry_out", broken)
        await cloud.hosts("h1", "h2", "h3")
        for name in ("a", "b"):
            await cloud.vm(name, "h1")
            await cloud.slot(f"s-{name}", "h2", {name: "h1"})
        await cloud.clock.sleep(5)
        await cloud.die("h1")
        await cloud.clock.sleep(5)
        assert (cloud.running["a"], cloud.running["b"]) == (set(), {"h2"})
        assert list(cloud.faults.open) == [("worker-crashed", "a")]
        await cloud.clock.sleep(30)
        pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
        assert all(pause_s >= least_s for pause_s, least_s in zip(pauses, (1, 2, 4), strict=True)), pauses
        assert (cloud.running["a"], cloud.faults.open) == ({"h2"}, {})

    play(story)


@pytest.mark.slow
def test_vm_whose_place_cannot_be_worked_out_keeps_no_other_from_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    validate = Caller.validate

    def crash(self: Caller, vm: VmView, *args: Any, **how: Any) -> Any:
        if vm.id == "a":
            raise KeyError("a bug")
        return validate(self, vm, *args, **how)

    async def story(cloud: RecoveryCloud) -> None:
        monkeypatch.setattr(Caller, "validate", crash)
        await cloud.hosts("h1", "h2")
        for vm in ("a", "b"):
            await cloud.vm(vm, "h1")
        await cloud.clock.sleep(5)
        await cloud.die("h1")
        await cloud.clock.sleep(10)
        assert cloud.running["b"] == {"h2"}
        assert list(cloud.faults.open) == [("worker-crashed", "a")]
        monkeypatch.undo()
        await cloud.clock.sleep(30)
        assert (cloud.running["a"], list(cloud.faults.open)) == ({"h2"}, [])

    play(story)


@run_by(play)
async def test_function_that_a_host_has_not_booked_yet_is_of_the_vm_that_was_sent_there_before(
    cloud: RecoveryCloud,
) -> None:
    """Two hosts die one after the other, and the host that takes their VMs writes its books late."""
    await cloud.hosts("h1", "h2", "h3", "h4")
    for host in ("h1", "h2", "h3", "h4"):
        found = await cloud.memory.get(Hypervisor, host)
        functions = (VirtualFunction(name="eth0v0", physical_function="eth0"),)
        await cloud.memory.replace_status(_replace(found, status=_replace(found.status, virtual_functions=functions)))
    for vm, host, other in (("a", "h1", "h4"), ("b", "h2", "h4")):
        await cloud.vm(vm, host, functions=(FunctionNeed(name="eth0v0"),))
        await cloud.slot(f"{vm}-first", "h3", {vm: host})
        await cloud.slot(f"{vm}-other", other, {vm: host})
    await cloud.clock.sleep(5)
    await cloud.die("h1")
    await cloud.clock.sleep(3)
    first = await cloud.where("a")
    await cloud.die("h2")
    await cloud.clock.sleep(5)
    assert sorted((first, await cloud.where("b"))) == ["h3", "h4"]
