"""A BMC proves something only of a system that no other host is, and that firmware did not make up."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from tests.support.fencing import site
from tests.support.loops import run_by
from tests.support.node_worlds import at, faults, play

from outlive.node.fencing import SystemIndex, board_problem, identity_problem, is_unset, system_key
from outlive.resources import FencingSpec, Hypervisor, HypervisorSpec, MemberRecord, Membership, ObjectMeta
from outlive.resources.reasons import FaultCode
from outlive.simulation import World
from outlive.simulation.verbs import change_spec

OWN = "4c4c4544-0042-4a10-8051-b2c04f4e4332"
DEFAULTS = (
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
    "03000200-0400-0500-0006-000700080009",
    "00020003-0004-0005-0006-000700080009",
    "{03000200-0400-0500-0006-000700080009}",
    "03000200040005000006000700080009",
    "Not Settable",
    "To Be Filled By O.E.M.",
)


@pytest.mark.parametrize("uuid", DEFAULTS)
def test_what_firmware_says_by_default_is_no_identity(uuid: str) -> None:
    assert is_unset(uuid)
    assert "default" in identity_problem(uuid, uuid)


def test_own_uuid_in_any_spelling_is_the_hosts() -> None:
    assert not is_unset(OWN)
    assert identity_problem(OWN.upper(), f" {{{OWN}}} ") == ""
    assert identity_problem(OWN.replace("-", ""), OWN) == ""


def test_nothing_said_or_recorded_or_another_one_is_a_problem() -> None:
    for said, expected in (("", OWN), (OWN, ""), ("", ""), (OWN[:-1] + "3", OWN)):
        assert identity_problem(said, expected)
    assert "kvm-7" in identity_problem(OWN, OWN, ("kvm-7",))


def _host(name: str, uuid: str) -> Hypervisor:
    return Hypervisor(metadata=ObjectMeta(name=name), spec=HypervisorSpec(fencing=FencingSpec(system_uuid=uuid)))


def test_index_follows_documents() -> None:
    index = SystemIndex()
    a, b, c = _host("a", OWN), _host("b", OWN.upper()), _host("c", "")
    for one in (a, b, c):
        index.on_hypervisor(None, one)
    assert (index.shared_by(a), index.shared_by(b), index.shared_by(c)) == (("b",), ("a",), ())
    changed = _host("b", OWN[:-1] + "3")
    index.on_hypervisor(b, changed)
    assert (index.shared_by(a), index.shared_by(changed)) == ((), ())
    index.on_hypervisor(changed, b)
    index.on_hypervisor(b, None)
    assert index.shared_by(a) == ()


def _member(name: str, machine: str) -> Membership:
    return Membership(metadata=ObjectMeta(name=name), record=MemberRecord(machine_id=machine, boot_id="b"))


def test_host_of_which_nothing_is_recorded_is_the_board_that_it_joined_with() -> None:
    index, board = SystemIndex(), system_key(OWN)
    a, b = _host("a", ""), _host("b", OWN)
    assert index.with_system(a) == a
    index.on_hypervisor(None, a)
    first = _member("a", f"i.{board}")
    index.on_membership(None, first)
    assert index.with_system(a).spec.fencing.system_uuid == board
    index.on_hypervisor(None, b)
    assert (index.shared_by(a), index.shared_by(b)) == (("b",), ("a",)), "one of them is recorded as the other"
    other = _member("a", f"i.{board[:-1]}f")
    index.on_membership(first, other)
    assert (index.shared_by(a), index.shared_by(b)) == ((), ())
    index.on_membership(other, None)
    assert index.with_system(a) == a
    assert index.with_system(b) == b, "what operators say counts"


def test_hosts_whose_controllers_are_crossed_are_no_hosts_of_their_own() -> None:
    """What is recorded of each was asked at the address of the other, so that controller and record agree."""
    index, left, right = SystemIndex(), system_key(OWN), system_key(OWN[:-1] + "3")
    a, b = _host("a", right), _host("b", left)
    for host, board in ((a, left), (b, right)):
        index.on_hypervisor(None, host)
        index.on_membership(None, _member(host.name, f"i.{board}"))
    assert (index.shared_by(a), index.shared_by(b)) == (("b",), ("a",))


def test_board_is_what_firmware_says_and_no_other_text() -> None:
    assert _member("a", f"i.{system_key(OWN)}").record.board == system_key(OWN)
    for machine in ("", "i", "i.", "i.rack 7", f"i.{OWN}", f"i.{system_key(OWN)}0"):
        assert _member("a", machine).record.board == ""


def test_record_that_is_not_the_boards_is_a_problem_in_whatever_order_of_bytes() -> None:
    board = system_key(OWN)
    assert board_problem("", board) == board_problem(OWN, "") == board_problem(OWN.upper(), board) == ""
    assert board_problem("44454c4c-4200-104a-8051-b2c04f4e4332", board) == "", "as SMBIOS has it"
    assert OWN in board_problem(OWN[:-1] + "3", board)


@run_by(play)
async def test_host_that_is_recorded_as_another_system_than_its_firmware_says_has_a_fault(world: World) -> None:
    async def record(system: str) -> None:
        await change_spec(
            world,
            Hypervisor,
            "kvm-1",
            lambda spec: replace(spec, fencing=replace(spec.fencing, system_uuid=system)),
        )

    assert not [name for name in faults(world) if FaultCode.SYSTEM_DIFFERS in name]
    await record(OWN)
    await at(world, 20)
    assert [name for name in faults(world) if FaultCode.SYSTEM_DIFFERS in name]
    await record("")
    await at(world, 40)
    assert not [name for name in faults(world) if FaultCode.SYSTEM_DIFFERS in name]


async def test_host_is_proven_dead_by_the_controller_of_the_board_that_it_joined_with() -> None:
    async with site() as s:
        await s.hosts("a", "b")
        for name, said in (("c", OWN), ("d", OWN[:-1] + "3")):
            await s.host(name, system_uuid="", board=system_key(OWN[:-1] + ("2" if name == "c" else "4")))
            s.power.controllers[name].system = said
        s.watch("a")
        await asyncio.sleep(20)
        s.silence("c")
        await s.until("c", lambda record: record.fence.phase == "proven")
        s.silence("d")
        await s.until("d", lambda record: record.fence.phase == "unconfirmed")
        assert "speaks of system" in (await s.record("d")).fence.unproven_why
        assert s.power.controllers["d"].offs == []


@pytest.mark.parametrize("uuids", [(DEFAULTS[3], OWN), (OWN, OWN)])
async def test_no_command_is_sent_to_a_controller_that_may_be_anothers(uuids: tuple[str, str]) -> None:
    async with site() as s:
        await s.hosts("a", "b")
        for name, uuid in zip(("c", "d"), uuids, strict=True):
            await s.host(name, system_uuid=uuid)
            s.power.controllers[name].system = uuid
        s.watch("a")
        await asyncio.sleep(20)
        s.silence("c")
        await s.until("c", lambda record: record.fence.phase == "unconfirmed")
        assert s.power.controllers["c"].offs == []
        assert (await s.record("c")).dead_through == 0
