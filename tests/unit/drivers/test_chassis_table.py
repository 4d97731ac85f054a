"""Which chassis a host is, and which hosts are off."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.loops import run

from outlive.base import LoopClock, NotFound, Random, SeededIds
from outlive.drivers.ovn.chassis_table import chassis_table
from outlive.network import ChassisTable, unclear_chassis
from outlive.resources import Cut, Hypervisor, HypervisorSpec, HypervisorStatus, MemberRecord, Membership, ObjectMeta
from outlive.simulation.network import SimulatedOvn, SimulatedSouthbound
from outlive.store import MemoryStore


def read_table(
    ovn: SimulatedOvn, *, records: dict[str, MemberRecord] | None = None, **hosts: tuple[str, str | None]
) -> ChassisTable:
    """The table of hosts with what their records and they themselves say; those without a record take part."""

    async def story() -> ChassisTable:
        store = MemoryStore(LoopClock(), SeededIds(Random(1)))
        for name, (named, said) in hosts.items():
            spec = HypervisorSpec(management="node", chassis=named)
            made: Any = await store.create(Hypervisor(metadata=ObjectMeta(name=name), spec=spec))
            await store.replace_status(msgspec.structs.replace(made, status=HypervisorStatus(chassis=said)))
            record = (records or {}).get(name, MemberRecord(machine_id="m", boot_id="b", epoch=1))
            await store.create(Membership(metadata=ObjectMeta(name=name), record=record))
        return await chassis_table(store, SimulatedSouthbound(ovn, LoopClock(), Random(1)))()

    return run(story())


def test_a_host_is_the_chassis_that_its_record_names_else_what_it_says_else_what_ovn_knows() -> None:
    table = read_table(SimulatedOvn("c"), a=("x", None), b=("", "y"), c=("", None))
    assert [table.find(one) for one in "abc"] == ["x", "y", "c"]
    assert table.find_others("a") == {"y", "c"}
    assert table.find_expected("a") == {"y"}, "a host that never said that it runs OVN may run none"


@pytest.mark.parametrize(
    ("record", "is_expected"),
    [
        (MemberRecord(machine_id="m", boot_id="b", epoch=2, state="Held", dead_through=1), True),
        (MemberRecord(machine_id="m", boot_id="b", epoch=2, state="Revoked", dead_through=1), True),
        (
            MemberRecord(machine_id="m", boot_id="b", epoch=2, state="Revoked", dead_through=1, cut=Cut(through=2)),
            False,
        ),
        (MemberRecord(machine_id="m", boot_id="b", epoch=2, state="Held", dead_through=1, cut=Cut(through=1)), True),
        (MemberRecord(machine_id="m", boot_id="b", epoch=2, state="Released", dead_through=2), False),
    ],
    ids=["takes part", "is condemned", "is isolated", "was isolated", "left cleanly"],
)
def test_ovn_has_to_know_the_chassis_of_hosts_that_take_part_and_are_not_isolated(
    record: MemberRecord, is_expected: bool
) -> None:
    table = read_table(SimulatedOvn("a"), a=("", "a"), b=("", "b"), records={"b": record})
    assert table.find_expected("a") == ({"b"} if is_expected else set())


def test_a_host_that_says_that_it_runs_no_ovn_is_none() -> None:
    table = read_table(SimulatedOvn("a", "b"), a=("", ""), b=("", "b"))
    with pytest.raises(NotFound, match="a is no chassis"):
        table.find("a")
    assert table.find_others("b") == set()


def test_a_host_that_is_another_chassis_than_its_record_says_is_not_known() -> None:
    with pytest.raises(NotFound, match="a says that it is chassis y, and its record that it is x"):
        read_table(SimulatedOvn(), a=("x", "y")).find("a")


def test_two_hosts_of_one_chassis_are_both_unknown_and_it_is_off_when_both_are() -> None:
    table = read_table(SimulatedOvn(), a=("x", None), b=("", "x"), c=("", "z"))
    for one in "ab":
        with pytest.raises(NotFound, match="x is the chassis of"):
            table.find(one)
    assert table.find("c") == "z"
    for off, known in (({"a"}, set()), ({"a", "b"}, {"x"})):
        hosts = {name: msgspec.structs.replace(one, is_off=name in off) for name, one in table.hosts.items()}
        assert ChassisTable(hosts=hosts).find_off("c") == known


def test_what_could_not_be_isolated_is_a_fault_before_it_has_to_be() -> None:
    def host(name: str, named: str, said: str | None) -> Hypervisor:
        return Hypervisor(
            metadata=ObjectMeta(name=name),
            spec=HypervisorSpec(management="node", chassis=named),
            status=HypervisorStatus(chassis=said),
        )

    hosts = [host("a", "x", None), host("b", "", "x"), host("c", "y", "z"), host("d", "", "d"), host("e", "", "")]
    found = {one.subject.name: one.message.text for one in unclear_chassis(hosts)}
    assert list(found) == ["a", "b", "c"]
    assert "x is the chassis of a and of b" in found["a"]
    assert "c says that it is chassis z, and its record that it is y" in found["c"]
