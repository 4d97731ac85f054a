"""A power controller proves something only of a system that no other host is, and that firmware did not make up."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fencing import site
from tests.support.loops import run

from outlive.node.fencing.identity import SystemIndex, identity_problem, is_unset
from outlive.resources import FencingSpec, Hypervisor, HypervisorSpec, ObjectMeta

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
        index.changed(None, one)
    assert (index.shared_by(a), index.shared_by(b), index.shared_by(c)) == (("b",), ("a",), ())
    changed = _host("b", OWN[:-1] + "3")
    index.changed(b, changed)
    assert (index.shared_by(a), index.shared_by(changed)) == ((), ())
    index.changed(changed, b)
    index.changed(b, None)
    assert index.shared_by(a) == ()


@pytest.mark.parametrize("uuids", [(DEFAULTS[3], OWN), (OWN, OWN)])
def test_no_command_is_sent_to_a_controller_that_may_be_anothers(uuids: tuple[str, str]) -> None:
    async def story() -> None:
        async with site() as s:
            for name in ("a", "b"):
                await s.host(name)
            for name, uuid in zip(("c", "d"), uuids, strict=True):
                await s.host(name, system_uuid=uuid)
                s.power.controllers[name].system = uuid
            s.watch("a")
            await asyncio.sleep(20)
            s.silence("c")
            await s.until("c", lambda record: record.fence.phase == "unconfirmed")
            assert s.power.controllers["c"].offs == []
            assert (await s.record("c")).dead_through == 0

    run(story())
