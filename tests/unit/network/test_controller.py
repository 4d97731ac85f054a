"""What the network controller does with rows of others, and with those of VMs that it refuses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.support.loops import run_by
from tests.support.network_controllers import MAC, Controlled, control, host, interface, network, port, vm

from outlive.base import as_datetime
from outlive.network import DHCP, PORTS, ROUTER_PORTS, ROUTES, SWITCHES, Rows, delete
from outlive.resources import (
    Assigned,
    Cluster,
    ClusterStatus,
    Event,
    Fault,
    Hypervisor,
    Migration,
    MigrationPhase,
    ObjectMeta,
    ObjectRef,
    Pause,
    Subnet,
    VirtualMachine,
    VirtualMachinePort,
    VirtualNetwork,
    find_condition,
)
from outlive.simulation.network import OvnFault
from outlive.store import list_all

pytestmark = pytest.mark.slow

OTHER = "0a:58:c0:a8:28:0a"
FOREIGN = {"k8s.ovn.org/owner-controller": "green-network-controller"}


async def events(controlled: Controlled) -> set[tuple[str, str, str]]:
    """Kind, name and reason of all that was told."""
    found = [one async for one in list_all(controlled.store, Event)]
    return {(one.regarding.kind, one.regarding.name, one.reason) for one in found}


def test_a_switch_of_another_controller_stays_as_it_is_and_other_networks_are_served() -> None:
    async def story(controlled: Controlled) -> None:
        theirs = {"name": "green_ovn_layer2_switch", "external_ids": FOREIGN}
        controlled.write(SWITCHES, theirs)
        await controlled.start()
        assert controlled.rows(SWITCHES)["green_ovn_layer2_switch"] == theirs
        assert set(controlled.rows()) == {interface(2)}
        assert await controlled.problem_of(VirtualNetwork, "green") == "foreign-row"
        assert await controlled.problem_of(VirtualMachinePort, "web.0") == "foreign-row"
        assert await controlled.problem_of(VirtualMachinePort, "db.0") == ""
        await controlled.settle()
        assert ("VirtualNetwork", "green", "NotProgrammed") in await events(controlled)
        assert ("VirtualMachinePort", "web.0", "NotProgrammed") in await events(controlled)

    objects = (host("kvm-1"), network(), network("blue", cidr="192.168.41.0/24"), vm(), port())
    control(story, *objects, vm("db", ports=(interface(2),)), port("db.0", "blue"), starts=False)


LABELS = {"rack": "a"}


def moving(source: str, target: str) -> Migration:
    return Migration(id="m-1", source=source, target=target, mode="live", phase=MigrationPhase.REQUESTED)


@pytest.mark.parametrize("first", ["zone", "area"])
def test_of_two_networks_that_overlap_the_older_one_keeps_its_rows_whatever_their_names(first: str) -> None:
    async def story(controlled: Controlled) -> None:
        before = controlled.rows()
        assert before
        await controlled.create(network("mid", "routed", "10.44.0.0/16"))
        await controlled.settle()
        assert controlled.rows() == before
        assert await controlled.problem_of(VirtualMachinePort, "web.0") == ""
        assert await controlled.problem_of(VirtualNetwork, "mid") == "subnets-overlap"

    control(story, host("kvm-1"), network(first, "routed", "10.44.0.0/16"), vm(), port(network=first))


async def _overlap(controlled: Controlled) -> None:
    await controlled.change(VirtualNetwork, "old", spec={"subnets": (Subnet(cidr="10.44.0.0/16"),)})


async def _same_mac(controlled: Controlled) -> None:
    await controlled.change(VirtualMachinePort, "old.0", spec={"network": "net", "mac": MAC})


async def _no_network(controlled: Controlled) -> None:
    await controlled.delete(VirtualNetwork, "net")


async def _no_interface(controlled: Controlled) -> None:
    await controlled.change(VirtualMachine, "web", spec={"ports": ()})


async def _bad_network(controlled: Controlled) -> None:
    await controlled.change(VirtualNetwork, "net", spec={"subnets": (Subnet(cidr="10.44.0.0/16", host_prefix=8),)})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_overlap, "subnets-overlap"),
        (_same_mac, "mac-twice"),
        (_no_network, "network-missing"),
        (_no_interface, "no-interface"),
        (_bad_network, "network-invalid"),
    ],
)
@pytest.mark.parametrize("where", ["kvm-1", "kvm-2"])
def test_a_refusal_takes_nothing_from_a_vm_that_runs(
    change: Callable[[Controlled], Awaitable[None]], why: str, where: str
) -> None:
    async def story(controlled: Controlled) -> None:
        await controlled.change(VirtualMachine, "web", status={"assigned": Assigned(hypervisor=where)})
        before = controlled.ovn.rows
        assert len(before.get(ROUTES, ())) == (where == "kvm-2")
        await change(controlled)
        await controlled.clock.sleep(3000.0)
        assert await controlled.problem_of(VirtualMachinePort, "web.0") == why
        for table in (PORTS, DHCP, ROUTES, SWITCHES, ROUTER_PORTS):
            kept = [row for row in controlled.ovn.rows.get(table, ()) if "old" not in str(row)]
            assert kept == [row for row in before.get(table, ()) if "old" not in str(row)], table
        await controlled.delete(VirtualMachinePort, "web.0")
        assert interface() not in str(controlled.rows()), "a port that is deleted goes all the same"

    old = (network("old", "routed", "10.45.0.0/16"), vm("old", ports=(interface(2),)), port("old.0", "old", mac=OTHER))
    hosts = (host("kvm-1", labels=LABELS), host("kvm-2", labels=LABELS))
    control(story, *hosts, *old, network("net", "routed", "10.44.0.0/16"), vm(), port(network="net"))


@run_by(control, host("kvm-1"), network(), vm(), port())
async def test_rows_of_a_network_that_is_deleted_go_once_nobody_is_on_it(controlled: Controlled) -> None:
    await controlled.delete(VirtualNetwork, "green")
    await controlled.clock.sleep(3000.0)
    assert set(controlled.rows(SWITCHES)) == {"green_ovn_layer2_switch"}
    await controlled.delete(VirtualMachinePort, "web.0")
    await controlled.clock.sleep(3000.0)
    assert controlled.rows(SWITCHES) == {}


@run_by(control, host("kvm-1", labels=LABELS), host("kvm-2"), network(host_labels=LABELS), vm(), port())
async def test_a_target_that_the_network_does_not_reach_is_never_prepared_and_the_source_keeps_its_port(
    controlled: Controlled,
) -> None:
    before = controlled.rows()
    await controlled.change(VirtualMachine, "web", status={"migration": moving("kvm-1", "kvm-2")})
    assert controlled.rows() == before
    found = (await controlled.store.get(VirtualMachinePort, "web.0")).status
    assert found.migration is not None
    assert (found.migration.id, found.migration.prepared, found.migration.reason) == (
        "m-1",
        False,
        "host-not-reached",
    )
    assert await controlled.problem_of(VirtualMachinePort, "web.0") == ""


@pytest.mark.parametrize("stays_bound", [True, False])
@pytest.mark.parametrize(("kind", "mode"), [("layer2", None), ("layer2", "twin"), ("routed", None)])
def test_a_network_that_ceases_to_reach_a_target_that_is_prepared_keeps_the_move_and_the_vm_there(
    kind: str, mode: Any, stays_bound: bool
) -> None:
    async def story(controlled: Controlled) -> None:
        await controlled.change(VirtualMachine, "web", status={"migration": moving("kvm-1", "kvm-2")})
        interfaces = (await controlled.store.get(VirtualMachinePort, "web.0")).status.interfaces
        for name, one in interfaces.items():
            controlled.ovn.plug(one, name)
        await controlled.settle()
        before = controlled.rows()
        assert await prepared(controlled)
        if not stays_bound:
            controlled.ovn.unplug(interfaces["kvm-2"], "kvm-2")
            await controlled.settle()
        await controlled.change(Hypervisor, "kvm-2", metadata={"labels": {}})
        assert controlled.rows() == before
        assert await prepared(controlled) is stays_bound
        await assign(controlled, "kvm-2", migration=None)
        assert bound(controlled) == ["kvm-2"]
        await controlled.stop()
        await controlled.start()
        assert bound(controlled) == ["kvm-2"]
        assert await controlled.problem_of(VirtualMachinePort, "web.0") == ""

    hosts = (host("kvm-1", labels=LABELS), host("kvm-2", labels=LABELS))
    cidr = "10.44.0.0/16" if kind == "routed" else "192.168.40.0/24"
    net = network("net", kind, cidr, host_labels=LABELS)
    control(story, *hosts, net, vm(), port(network="net", port_mode=mode))


async def prepared(controlled: Controlled) -> bool:
    """Whether the target of the VM's move was told that it can have its port."""
    move = (await controlled.store.get(VirtualMachinePort, "web.0")).status.migration
    return move is not None and move.prepared


def bound(controlled: Controlled) -> list[str]:
    """The chassis of the VM's ports that are enabled."""
    rows = [row for row in controlled.rows().values() if not row.get("type") and row.get("enabled") is not False]
    return [row["options"]["requested-chassis"] for row in rows]


@pytest.mark.parametrize("where", ["kvm-1", "kvm-2"])
def test_a_network_that_ceases_to_reach_the_host_of_a_vm_that_runs_serves_it_and_says_so(where: str) -> None:
    async def story(controlled: Controlled) -> None:
        await assign(controlled, where)
        before = controlled.ovn.rows
        await controlled.change(VirtualNetwork, "net", spec={"host_labels": {"rack": "b"}})
        await controlled.clock.sleep(3000.0)
        assert {table: controlled.ovn.rows[table] for table in before} == before
        assert await controlled.problem_of(VirtualMachinePort, "web.0") == ""
        found = (await controlled.store.get(VirtualMachinePort, "web.0")).status
        notice = find_condition(found.conditions, "AddressesReserved")
        assert notice is not None
        assert (notice.status, notice.reason) == ("False", "host-not-reached")
        assert ("VirtualMachinePort", "web.0", "NotChanged") in await events(controlled)

    hosts = (host("kvm-1", labels=LABELS), host("kvm-2", labels=LABELS))
    control(story, *hosts, network("net", "routed", "10.44.0.0/16"), vm(), port(network="net"))


@run_by(control, host("kvm-1", labels=LABELS), host("kvm-2"), network(host_labels=LABELS), vm(), port())
async def test_a_port_follows_its_vm_to_a_host_that_the_network_does_not_reach(controlled: Controlled) -> None:
    await assign(controlled, "kvm-2")
    assert bound(controlled) == ["kvm-2"]


@run_by(control, host("kvm-1"), host("kvm-2"), network(), vm(), port())
async def test_the_move_of_a_vm_whose_port_is_refused_waits_and_is_told_why(controlled: Controlled) -> None:
    await controlled.delete(VirtualNetwork, "green")
    await controlled.change(VirtualMachine, "web", status={"migration": moving("kvm-1", "kvm-2")})
    found = (await controlled.store.get(VirtualMachinePort, "web.0")).status
    assert found.migration is not None
    assert (found.migration.id, found.migration.reason) == ("m-1", "network-missing")


@run_by(control, host("kvm-1"), network(), vm(), port())
async def test_a_host_that_is_another_chassis_now_has_its_ports_bound_there_at_once(controlled: Controlled) -> None:
    await controlled.change(Hypervisor, "kvm-1", spec={"chassis": "kvm-3"})
    assert controlled.rows()[interface()]["options"] == {"requested-chassis": "kvm-3"}


@run_by(control, network(), vm(), port())
async def test_a_host_that_gets_its_record_late_is_found_by_the_chassis_that_it_names(controlled: Controlled) -> None:
    await controlled.create(host("kvm-1", chassis="kvm-3"))
    await controlled.settle()
    assert controlled.rows()[interface()]["options"] == {"requested-chassis": "kvm-3"}


@run_by(control, host("kvm-1"), network(host_labels=LABELS), vm(), port())
async def test_a_host_that_is_labelled_is_reached_at_once(controlled: Controlled) -> None:
    assert await controlled.problem_of(VirtualMachinePort, "web.0") == "host-not-reached"
    await controlled.change(Hypervisor, "kvm-1", metadata={"labels": LABELS})
    assert set(controlled.rows()) == {interface()}


@pytest.mark.parametrize("version", ["25.03.0", "22.09.0"])
def test_a_routed_network_of_many_hosts_is_made_in_parts(version: str) -> None:
    async def story(controlled: Controlled) -> None:
        controlled.ovn.version = version
        await controlled.start()
        await controlled.settle()
        assert len(controlled.rows(SWITCHES)) == len(controlled.rows(ROUTER_PORTS)) == 150
        assert len(controlled.rows()) == 151
        assert await controlled.problem_of(VirtualNetwork, "blue") == ""
        await controlled.delete(VirtualMachinePort, "web.0")
        await controlled.delete(VirtualNetwork, "blue")
        await controlled.clock.sleep(3000.0)
        assert controlled.rows(SWITCHES) == {}

    hosts = (host(f"kvm-{number}") for number in range(150))
    objects = (*hosts, network("blue", "routed", "10.0.0.0/8"), vm(on="kvm-149"), port(network="blue"))
    control(story, *objects, starts=False)


def cluster(incarnation: str = "i-1", *, paused: bool = False) -> Cluster:
    pause = Pause(waits_for=("kvm-1",)) if paused else None
    status = ClusterStatus(store_incarnation=incarnation, pause=pause)
    return Cluster(metadata=ObjectMeta(name="default"), status=status)


async def pause_in(controlled: Controlled, incarnation: str) -> None:
    """The store went back."""
    status = {"store_incarnation": incarnation, "pause": Pause(waits_for=("kvm-1",))}
    await controlled.change(Cluster, "default", status=status)


async def resume(controlled: Controlled) -> None:
    await controlled.change(Cluster, "default", status={"pause": None})


async def assign(controlled: Controlled, to: str, **status: Any) -> None:
    await controlled.change(VirtualMachine, "web", status={"assigned": Assigned(hypervisor=to), **status})


KINDS = pytest.mark.parametrize(
    ("kind", "mode"), [("layer2", None), ("layer2", "twin"), ("localnet", None), ("routed", None)]
)


def three_hosts(kind: str, mode: Any) -> list[Any]:
    """A VM on the first of three hosts, and another one that says nothing."""
    cidr = "10.44.0.0/16" if kind == "routed" else "192.168.40.0/24"
    found = [host(f"kvm-{number}") for number in (1, 2, 3)]
    net = network("net", kind, cidr, physical_network="physnet" if kind == "localnet" else "")
    return [*found, cluster(), net, vm(), port(network="net", port_mode=mode)]


@KINDS
def test_while_the_cluster_is_paused_no_row_is_deleted_and_no_port_gets_another_host(kind: str, mode: Any) -> None:
    async def story(controlled: Controlled) -> None:
        before = controlled.ovn.rows
        await pause_in(controlled, "i-2")
        await assign(controlled, "kvm-2")
        await assign(controlled, "kvm-1", migration=moving("kvm-1", "kvm-3"))
        await assign(controlled, "", migration=None)
        await controlled.delete(VirtualMachinePort, "web.0")
        await controlled.delete(VirtualMachine, "web")
        await controlled.delete(VirtualNetwork, "net")
        await controlled.delete(Hypervisor, "kvm-3")
        await controlled.clock.sleep(3000.0)
        assert controlled.ovn.rows == before

    control(story, *three_hosts(kind, mode))


@KINDS
def test_once_the_pause_is_over_rows_follow_what_the_store_says(kind: str, mode: Any) -> None:
    async def story(controlled: Controlled) -> None:
        await pause_in(controlled, "i-2")
        await assign(controlled, "kvm-2")
        before = controlled.ovn.rows
        await resume(controlled)
        (row,) = controlled.rows(PORTS) if kind == "layer2" else [one for one in controlled.rows() if "net" not in one]
        assert controlled.rows()[row]["options"]["requested-chassis"] == "kvm-2"
        assert controlled.ovn.rows != before

    control(story, *three_hosts(kind, mode))


@run_by(control, host("kvm-1"), host("kvm-2"), cluster(), network(), vm(), port())
async def test_a_vm_that_has_no_row_yet_gets_one_while_the_cluster_is_paused(controlled: Controlled) -> None:
    await pause_in(controlled, "i-2")
    await controlled.create(
        vm("db", "kvm-2", ports=(interface(2),)), port("db.0", mac=OTHER, addresses=("192.168.40.77",))
    )
    await controlled.settle()
    assert set(controlled.rows()) == {interface()}, "whether the address is free is not known"
    await controlled.change(VirtualMachinePort, "db.0", status={"addresses": ("192.168.40.77/24",)})
    assert set(controlled.rows()) == {interface(), interface(2)}


@KINDS
def test_a_move_that_ends_at_its_target_while_the_cluster_is_paused_switches_over(kind: str, mode: Any) -> None:
    async def story(controlled: Controlled) -> None:
        await assign(controlled, "kvm-1", migration=moving("kvm-1", "kvm-2"))
        await pause_in(controlled, "i-2")
        await assign(controlled, "kvm-2", migration=None)
        chassis = [row["options"].get("requested-chassis") for row in controlled.rows().values() if not row.get("type")]
        assert chassis == ["kvm-2"]
        assert [row["output_port"] for row in controlled.ovn.rows.get(ROUTES, ())] == ["rtos-net_kvm-2"] * (
            kind == "routed"
        )

    control(story, *three_hosts(kind, mode))


@KINDS
def test_a_move_that_ends_while_no_controller_runs_and_the_cluster_is_paused_switches_over_with_the_next_one(
    kind: str, mode: Any
) -> None:
    async def story(controlled: Controlled) -> None:
        await assign(controlled, "kvm-1", migration=moving("kvm-1", "kvm-2"))
        await pause_in(controlled, "i-2")
        await controlled.stop()
        await assign(controlled, "kvm-2", migration=None)
        await controlled.start()
        assert bound(controlled) == ["kvm-2"]
        move = (await controlled.store.get(VirtualMachinePort, "web.0")).status.migration
        assert move is not None
        assert (move.target, move.incarnation) == ("", ""), "it is noted no longer than needed"
        await assign(controlled, "kvm-1")
        assert bound(controlled) == ["kvm-2"], "the cluster is still paused"

    control(story, *three_hosts(kind, mode))


@KINDS
def test_a_move_that_a_store_which_went_back_twice_noted_before_changes_nothing(kind: str, mode: Any) -> None:
    async def story(controlled: Controlled) -> None:
        await assign(controlled, "kvm-1", migration=moving("kvm-1", "kvm-2"))
        await pause_in(controlled, "i-2")
        before = controlled.rows()
        await controlled.stop()
        await assign(controlled, "kvm-2", migration=None)
        await pause_in(controlled, "i-3")
        await controlled.start()
        assert controlled.rows() == before

    control(story, *three_hosts(kind, mode))


@KINDS
@pytest.mark.parametrize("back_to", ["kvm-1", "kvm-2", "kvm-3"])
def test_a_move_of_which_a_restored_store_says_that_it_has_ended_changes_nothing(
    kind: str, mode: Any, back_to: str
) -> None:
    async def story(controlled: Controlled) -> None:
        await assign(controlled, "kvm-1", migration=moving("kvm-1", "kvm-2"))
        before = controlled.rows()
        await controlled.change_at_once(
            (Cluster, "default", {"store_incarnation": "i-2", "pause": Pause(waits_for=("kvm-1",))}),
            (VirtualMachine, "web", {"assigned": Assigned(hypervisor=back_to), "migration": None}),
        )
        assert controlled.rows() == before

    control(story, *three_hosts(kind, mode))


@pytest.mark.parametrize("kind", ["layer2", "localnet", "routed"])
def test_a_vm_that_runs_and_that_a_restored_store_lacks_keeps_its_rows_until_it_has_ended(kind: str) -> None:
    async def story(controlled: Controlled) -> None:
        before = controlled.ovn.rows
        await pause_in(controlled, "i-2")
        await controlled.delete(VirtualMachinePort, "web.0")
        await controlled.delete(VirtualMachine, "web")
        await controlled.delete(VirtualNetwork, "net")
        about, at = ObjectRef(kind="VirtualMachine", name="web"), as_datetime(controlled.clock.now())
        metadata = ObjectMeta(name="unknown-vm.web")
        fault = Fault(metadata=metadata, code="unknown-vm", subject=about, message="", first_seen=at, last_seen=at)
        await controlled.create(fault)
        await resume(controlled)
        await controlled.clock.sleep(3000.0)
        kept = {PORTS: before[PORTS][-1:], SWITCHES: before[SWITCHES][:1]} if kind == "routed" else before
        for table, rows in kept.items():
            assert [row for row in controlled.ovn.rows[table] if row in rows] == rows
        await controlled.store.replace(
            msgspec.structs.replace(await controlled.store.get(Fault, fault.name), ended=True)
        )
        await controlled.clock.sleep(3000.0)
        assert controlled.rows() == controlled.rows(SWITCHES) == {}

    control(story, *three_hosts(kind, None))


@run_by(control, host("kvm-2"), network("blue", "routed", "10.44.0.0/16"))
async def test_hosts_of_a_restored_store_keep_the_subnets_that_their_switches_have(controlled: Controlled) -> None:
    await controlled.create(host("kvm-1"))
    await controlled.settle()
    before = (await controlled.store.get(VirtualNetwork, "blue")).status.host_subnets
    assert list(map(before.get, ("kvm-2", "kvm-1"))) == [("10.44.0.0/24",), ("10.44.1.0/24",)]
    ports = controlled.rows(ROUTER_PORTS)
    await controlled.change(VirtualNetwork, "blue", status={"host_subnets": {}})
    await controlled.settle()
    assert (await controlled.store.get(VirtualNetwork, "blue")).status.host_subnets == before
    assert controlled.rows(ROUTER_PORTS) == ports


async def subnets(controlled: Controlled) -> dict[str, tuple[str, ...]]:
    """Host → its parts of the network."""
    return (await controlled.store.get(VirtualNetwork, "net")).status.host_subnets


def test_a_family_that_is_added_renumbers_no_host() -> None:
    async def story(controlled: Controlled) -> None:
        await controlled.delete(Hypervisor, "kvm-1")
        before = await subnets(controlled)
        assert before == {"kvm-2": ("10.44.1.0/24",), "kvm-3": ("10.44.2.0/24",)}
        both = (Subnet(cidr="10.44.0.0/16"), Subnet(cidr="fd44::/48"))
        await controlled.change(VirtualNetwork, "net", spec={"subnets": both})
        assert await subnets(controlled) == {
            "kvm-2": ("10.44.1.0/24", "fd44::/64"),
            "kvm-3": ("10.44.2.0/24", "fd44:0:0:1::/64"),
        }
        await controlled.change(VirtualNetwork, "net", spec={"subnets": both[:1]})
        assert await subnets(controlled) == before

    hosts = (host("kvm-1"), host("kvm-2"), host("kvm-3"))
    control(story, *hosts, network("net", "routed", "10.44.0.0/16"), vm(on="kvm-2"), port(network="net"))


@run_by(control, host("kvm-1"), host("kvm-2"), network("net", "routed", "10.44.0.0/23"), vm(), port(network="net"))
async def test_a_host_without_a_part_of_a_subnet_takes_nothing_from_the_others(controlled: Controlled) -> None:
    before = await subnets(controlled)
    await controlled.create(host("kvm-3"))
    await controlled.settle()
    assert await subnets(controlled) == before
    assert await controlled.problem_of(VirtualNetwork, "net") == "network-invalid"
    ports = controlled.rows(ROUTER_PORTS)
    await controlled.stop()
    controlled.ovn.commit([delete(ROUTER_PORTS, {"name": "rtos-net_kvm-1"})], "somebody")
    await controlled.start()
    assert controlled.rows(ROUTER_PORTS) == ports, "the network is mended all the same"
    await controlled.delete(Hypervisor, "kvm-2")
    assert await subnets(controlled) == {"kvm-1": ("10.44.0.0/24",), "kvm-3": ("10.44.1.0/24",)}
    assert await controlled.problem_of(VirtualNetwork, "net") == ""


@run_by(control, host("kvm-1"), host("kvm-2"), network("net", "routed", "10.44.0.0/23"), vm(), port(network="net"))
async def test_a_host_that_is_removed_by_force_keeps_its_part_until_no_vm_has_a_port_there(
    controlled: Controlled,
) -> None:
    before, rows = await subnets(controlled), controlled.ovn.rows
    controlled.ovn.commit([delete(ROUTER_PORTS, {"name": "rtos-net_kvm-1"})], "somebody")
    await controlled.delete(Hypervisor, "kvm-1")
    await controlled.create(host("kvm-3"))
    await controlled.settle()
    assert await subnets(controlled) == before, "the new host does not get it"
    assert controlled.rows(ROUTER_PORTS).keys() == {row["name"] for row in rows[ROUTER_PORTS]}
    assert controlled.rows(PORTS) == {row["name"]: row for row in rows[PORTS]}
    await assign(controlled, "kvm-2")
    await controlled.clock.sleep(60.0)
    assert await subnets(controlled) == {"kvm-2": ("10.44.1.0/24",), "kvm-3": ("10.44.0.0/24",)}
    assert sorted(controlled.rows(SWITCHES)) == ["net_kvm-2", "net_kvm-3"]


@run_by(control, host("kvm-1"), host("kvm-2"), network("net", "routed", "10.44.0.0/23"), vm(), port(network="net"))
async def test_a_host_that_a_restored_store_lacks_keeps_its_part_while_vms_have_ports_there(
    controlled: Controlled,
) -> None:
    before, ports = await subnets(controlled), controlled.rows(ROUTER_PORTS)
    await controlled.delete(Hypervisor, "kvm-1")
    await controlled.change(VirtualNetwork, "net", status={"host_subnets": {}})
    assert await subnets(controlled) == before
    assert controlled.rows(ROUTER_PORTS) == ports


TWO = (interface(), interface(2))
"""Interfaces of a VM with two ports."""


@pytest.mark.parametrize("ports", [1, 2])
def test_a_vm_that_runs_keeps_rows_of_a_port_that_a_restored_store_lacks_until_it_is_stopped(ports: int) -> None:
    async def story(controlled: Controlled) -> None:
        before = controlled.ovn.rows
        assert len(before[PORTS]) == ports
        await pause_in(controlled, "i-2")
        await controlled.delete(VirtualMachinePort, f"web.{ports - 1}")
        await resume(controlled)
        await controlled.clock.sleep(3000.0)
        assert controlled.ovn.rows == before
        assert ("VirtualMachine", "web", "PortMissing") in await events(controlled)
        await controlled.change(VirtualMachine, "web", spec={"power_state": "stopped"})
        assert set(controlled.rows()) == {interface()} - ({interface()} if ports == 1 else set())

    more = [port("web.1", mac=OTHER)] if ports == 2 else []
    control(story, host("kvm-1"), cluster(), network(), vm(ports=TWO[:ports]), port(), *more)


def test_rows_of_a_port_that_was_deleted_while_no_controller_ran_stay_until_it_is_made_and_deleted_again() -> None:
    async def story(controlled: Controlled) -> None:
        before = controlled.ovn.rows
        await controlled.stop()
        await controlled.delete(VirtualMachinePort, "web.1")
        await controlled.start()
        await controlled.clock.sleep(3000.0)
        assert controlled.ovn.rows == before
        assert await told_of_ports(controlled) == 1, "it is told once"
        await assign(controlled, "kvm-1", migration=moving("kvm-1", "kvm-2"))
        await assign(controlled, "kvm-2", migration=None)
        assert controlled.rows()[interface()]["options"]["requested-chassis"] == "kvm-2"
        assert controlled.rows()[interface(2)] == before[PORTS][-1]
        await controlled.create(port("web.1", mac=OTHER))
        await controlled.settle()
        assert controlled.rows()[interface(2)]["options"]["requested-chassis"] == "kvm-2"
        await controlled.delete(VirtualMachinePort, "web.1")
        assert set(controlled.rows()) == {interface()}

    hosts = (host("kvm-1"), host("kvm-2"), cluster())
    control(story, *hosts, network(), vm(ports=TWO), port(), port("web.1", mac=OTHER))


async def told_of_ports(controlled: Controlled) -> int:
    """How often it was told that a VM has rows without a port."""
    return sum([one.count async for one in list_all(controlled.store, Event) if one.reason == "PortMissing"])


@pytest.mark.parametrize(
    ("kind", "table", "name"),
    [
        ("layer2", SWITCHES, "net_ovn_layer2_switch"),
        ("localnet", PORTS, "net_ovn_localnet_switch_localnet"),
        ("routed", SWITCHES, "net_kvm-2"),
        ("routed", ROUTER_PORTS, "rtos-net_kvm-1"),
        ("routed", PORTS, "stor-net_kvm-2"),
    ],
)
def test_a_part_of_a_network_that_somebody_deletes_is_made_again(kind: str, table: str, name: str) -> None:
    async def story(controlled: Controlled) -> None:
        before = rows_by_name(controlled.ovn.rows)
        controlled.ovn.commit([delete(PORTS, {"switch": name}), delete(table, {"name": name})], "somebody")
        assert rows_by_name(controlled.ovn.rows) != before
        await controlled.clock.sleep(60.0)
        assert rows_by_name(controlled.ovn.rows) == before

    control(story, *three_hosts(kind, None))


def rows_by_name(rows: Rows) -> dict[str, list[Any]]:
    """Rows of all tables, in the order of their names."""
    return {table: sorted(found, key=str) for table, found in rows.items() if found}


@run_by(control, *three_hosts("layer2", None))
async def test_a_network_that_the_store_lacks_is_not_taken_away_because_somebody_wrote_its_switch(
    controlled: Controlled,
) -> None:
    switch = controlled.rows(SWITCHES)["net_ovn_layer2_switch"]
    await controlled.stop()
    for kind, name in ((VirtualMachinePort, "web.0"), (VirtualMachine, "web"), (VirtualNetwork, "net")):
        await controlled.delete(kind, name)
    await controlled.start()
    controlled.write(SWITCHES, {**switch, "other_config": {"note": "1"}})
    await controlled.settle()
    assert set(controlled.rows(SWITCHES)) == {"net_ovn_layer2_switch"}


@pytest.mark.parametrize("fault", [None, OvnFault.LOST_BEFORE, OvnFault.LOST_AFTER])
def test_the_proxy_of_an_old_ovn_follows_a_vm_that_leaves_home_and_returns_though_an_answer_is_lost(
    fault: OvnFault | None,
) -> None:
    async def story(controlled: Controlled) -> None:
        controlled.ovn.version = "22.09.0"
        await controlled.start()
        for to, proxies in (("kvm-2", {"kvm-1": "", "kvm-2": " 10.44.0.1"}), ("kvm-1", {"kvm-1": "", "kvm-2": ""})):
            controlled.ovn.faults.transactions += [fault] if fault is not None else []
            await assign(controlled, to)
            rows = {name: row["options"]["arp_proxy"] for name, row in controlled.rows().items() if "stor-" in name}
            assert rows == {f"stor-net_{name}": f"169.254.1.1{more}" for name, more in proxies.items()}

    hosts = (host("kvm-1"), host("kvm-2"))
    control(story, *hosts, network("net", "routed", "10.44.0.0/16"), vm(), port(network="net"), starts=False)
