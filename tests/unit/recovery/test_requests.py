"""Requests of users for VMs whose host is not there."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec
import pytest
from tests.support.loops import run_by
from tests.support.recovery import GIB, RecoveryCloud, play

from outlive.recovery import PROOF_S, SILENT_S, HostHealth, Responder, turn_of
from outlive.resources import Membership, RecoveryPolicy, Request, RequestVerb

H = HostHealth
_replace = msgspec.structs.replace


@pytest.mark.parametrize(
    ("health", "verb", "not_fenced", "unconfirmed", "waited_s", "turn"),
    [
        (H.LIVE, "start", True, False, 900.0, Responder.HOST),
        (H.SILENT, "stop", True, False, 0.0, Responder.LATER),
        (H.SILENT, "stop", True, False, SILENT_S, Responder.RECOVERY),
        (H.SILENT, "move", True, False, SILENT_S, Responder.LATER),
        (H.REVOKED, "start", True, False, 0.0, Responder.RECOVERY),
        (H.REVOKED, "move", True, False, 0.0, Responder.LATER),
        (H.REVOKED, "move", True, False, PROOF_S, Responder.RECOVERY),
        (H.REVOKED, "move", True, True, 0.0, Responder.RECOVERY),
        (H.DEAD, "move", False, False, 0.0, Responder.RECOVERY),
        (H.RELEASED, "unmigrate", False, False, 0.0, Responder.RECOVERY),
        (H.UNKNOWN, "migrate", True, False, 0.0, Responder.RECOVERY),
    ],
)
def test_recovery_answers_where_the_host_does_not(
    health: HostHealth, verb: str, not_fenced: bool, unconfirmed: bool, waited_s: float, turn: Responder
) -> None:
    assert turn_of(health, verb, not_fenced=not_fenced, unconfirmed=unconfirmed, waited_s=waited_s) is turn


@pytest.mark.parametrize("verb", get_args(RequestVerb))
@pytest.mark.parametrize("fate", ["dead", "unconfirmed", "released", "unknown"])
@run_by(play)
async def test_every_request_is_answered_within_seconds_of_the_limit_and_nothing_runs_before_it_is_safe(
    cloud: RecoveryCloud, *, verb: RequestVerb, fate: str
) -> None:
    await cloud.hosts("a", "b", "c", management="node")
    await cloud.vm("v", "a", status={"holders": ()} if fate == "released" else None)
    cloud.lose_power("a")
    match fate:
        case "dead":
            await cloud.prove("a")
        case "unconfirmed":
            await cloud.condemn("a", "unconfirmed")
        case "released":
            await cloud.release("a")
        case _:
            await cloud.memory.delete((await cloud.memory.get(Membership, "a")).ref)
    vm = await cloud.get("v")
    request = Request(id="r1", verb=verb, target="b" if verb in ("migrate", "move") else "")
    await cloud.memory.replace(_replace(vm, spec=_replace(vm.spec, request=request)))
    await cloud.clock.sleep(5)
    vm = await cloud.get("v")
    assert vm.status.answered is not None
    assert vm.status.answered.id == "r1"
    if verb in ("migrate", "move"):
        assert vm.status.answered.code == ("accepted" if fate in ("dead", "released") else "not_fenced")
    elif verb in ("flush-locks", "attach", "detach"):
        assert vm.status.answered.code == "node_not_ready"
    elif verb != "unmigrate":
        assert vm.status.answered.code == "accepted"
    runs = verb in ("start", "restart", "migrate", "move") and fate in ("dead", "released")
    runs = runs or (
        verb in ("unmigrate", "flush-locks", "attach", "detach") and fate in ("dead", "released")
    )  # refused, and recovered
    await cloud.clock.sleep(5)
    assert len(cloud.running.get("v", set())) == int(runs)
    if runs and verb in ("migrate", "move") and fate == "released":
        assert await cloud.where("v") == "b"


@run_by(play)
async def test_a_start_that_is_answered_while_nothing_proves_its_host_dead_is_carried_out_after_the_proof(
    cloud: RecoveryCloud,
) -> None:
    await cloud.hosts("a", "b", management="node")
    await cloud.vm("v", "a", status={"phase": "stop", "holders": ()})
    cloud.lose_power("a")
    await cloud.condemn("a", "unconfirmed")
    vm = await cloud.get("v")
    await cloud.memory.replace(_replace(vm, spec=_replace(vm.spec, request=Request(id="r1", verb="start"))))
    await cloud.clock.sleep(5)
    record = await cloud.recovery("v")
    assert (record.phase, record.cause, record.host) == ("recovered", "asked", "b"), "nobody held it"
    assert cloud.running["v"] == {"b"}


@pytest.mark.parametrize("mode", ["ignore", "hold"])
@run_by(play)
async def test_a_move_of_a_vm_that_is_not_recovered_by_itself_is_carried_out_once_a_user_asks(
    cloud: RecoveryCloud, *, mode: Literal["ignore", "hold"]
) -> None:
    await cloud.hosts("a", "b", "c", management="node")
    await cloud.vm("v", "a", recovery=RecoveryPolicy(mode=mode))
    cloud.lose_power("a")
    await cloud.prove("a")
    await cloud.clock.sleep(5)
    vm = await cloud.get("v")
    request = Request(id="r1", verb="move", target="c")
    await cloud.memory.replace(_replace(vm, spec=_replace(vm.spec, request=request)))
    await cloud.clock.sleep(10)
    vm = await cloud.get("v")
    assert vm.status.answered is not None
    assert vm.status.answered.code == "accepted"
    assert cloud.running["v"] == {"c"}


ACCEPTED: dict[str, str] = {"start": "accepted", "stop": "accepted", "disable": "accepted"}


@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize("verb", ["start", "stop", "shutdown", "restart", "disable", "migrate", "unmigrate", "move"])
@run_by(play)
async def test_request_for_a_vm_that_is_assigned_to_no_host_is_answered_and_a_start_places_it(
    cloud: RecoveryCloud, *, verb: RequestVerb, room: bool
) -> None:
    await cloud.hosts("a", "b", management="node")
    memory = 4 * GIB if room else 4096 * GIB
    await cloud.vm("v", "a", memory=memory, status={"phase": "stop", "assigned": None, "holders": ()})
    vm = await cloud.get("v")
    request = Request(id="r1", verb=verb, target="b" if verb == "move" else "")
    await cloud.memory.replace(_replace(vm, spec=_replace(vm.spec, request=request)))
    await cloud.clock.sleep(10)
    vm = await cloud.get("v")
    assert vm.status.answered is not None
    refused = {"shutdown": "not_running", "restart": "not_running", "unmigrate": "not_migrated"}
    room_is_needed = {"migrate": "accepted" if room else "no_target", "move": "accepted"}
    assert vm.status.answered.code == {**ACCEPTED, **refused, **room_is_needed}[verb]
    if verb == "start":
        record = await cloud.recovery("v")
        assert (record.phase, record.reason) == (("recovered", "") if room else ("held", "no-room"))
        assert record.cause == "asked"
    assert len(cloud.running.get("v", set())) == int(verb == "start" and room)
    if verb == "move":
        assert (vm.host, vm.status.phase) == ("b", "stop")


@run_by(play)
async def test_request_for_a_vm_that_is_assigned_to_no_host_is_left_to_those_who_manage_all_hosts(
    cloud: RecoveryCloud,
) -> None:
    await cloud.hosts("a", "b", management="nova")
    await cloud.vm("v", "a", status={"phase": "SHUTOFF", "assigned": None, "holders": ()})
    vm = await cloud.get("v")
    await cloud.memory.replace(_replace(vm, spec=_replace(vm.spec, request=Request(id="r1", verb="start"))))
    await cloud.clock.sleep(30)
    assert (await cloud.get("v")).status.answered is None
