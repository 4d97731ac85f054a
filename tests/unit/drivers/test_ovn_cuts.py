"""Ports of a condemned host are cut, and only what has arrived is reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outlive.base import LoopClock, NotFound, Random, SeededIds, Unavailable, Unknown
from outlive.drivers.ovn import OvnCuts
from outlive.drivers.storage import Cuts
from outlive.network import (
    CLUSTER_ROUTER,
    INTERFACE_KEY,
    ISOLATED_KEY,
    NETWORK_KEY,
    NOBODY,
    OWN_CONTROLLER,
    OWNER_KEY,
    PORTS,
    ROUTERS,
    SWITCHES,
    Chassis,
    ChassisTable,
    HostChassis,
    OwnNetwork,
    OwnPort,
    OwnVmInput,
    Receipt,
    Rows,
    plan_own_vm,
    upsert,
)
from outlive.node.fencing import Isolation
from outlive.node.ports import CutPort, CutReport
from outlive.resources import interface_id
from outlive.simulation.network import SimulatedNorthbound, SimulatedOvn, SimulatedSouthbound
from outlive.store import MemoryStore

PORT = "b3a4f0d0-0000-4000-8000-000000000002"
SCOPE = (f"port:{PORT}",)
DISK = "disk:rbd:pool/cart"
GREEN = OwnNetwork(name="green", type="layer2")
WIRE = OwnNetwork(name="wire", type="localnet")
BLUE = OwnNetwork(name="blue", type="routed", host_subnets={"kvm-1": ("10.44.0.0/24",)})


class Cloud:
    """Three chassis, and a VM on the first one."""

    def __init__(self, network: OwnNetwork = GREEN, off: tuple[str, ...] = ()) -> None:
        clock = LoopClock()
        self.ovn = SimulatedOvn("kvm-1", "kvm-2", "kvm-3")
        self.network = network
        names = ("green_ovn_layer2_switch", "wire_ovn_localnet_switch", "blue_kvm-1", "blue_kvm-2")
        for one in names:
            ids = {OWNER_KEY: OWN_CONTROLLER, NETWORK_KEY: one.partition("_")[0]}
            self.ovn.commit([upsert(SWITCHES, {"name": one}, {"name": one, "external_ids": ids})], None)
        self.ovn.commit([upsert(ROUTERS, {"name": CLUSTER_ROUTER}, {"name": CLUSTER_ROUTER})], None)
        self.place("kvm-1")
        mode = "twin" if network.type == "routed" else "shared"
        self.interface = interface_id(PORT, "twin" if mode == "twin" else "shared", "kvm-1")
        self.ovn.plug(self.interface, "kvm-1")
        self.off = off
        self.isolated: set[str] = set()
        self.chassis = {host: host for host in ("kvm-1", "kvm-2", "kvm-3")}
        self.cuts = self.driver()
        self.clock = clock

    def driver(self) -> OvnCuts:
        clock, random = LoopClock(), Random(1)

        return OvnCuts(
            SimulatedNorthbound(self.ovn, clock, random), SimulatedSouthbound(self.ovn, clock, random), self.read_table
        )

    async def read_table(self) -> ChassisTable:
        return ChassisTable(
            hosts={
                host: HostChassis(
                    name=name, reported=name, is_expected=host not in self.isolated, is_off=host in self.off
                )
                for host, name in self.chassis.items()
            }
        )

    def place(self, host: str) -> Rows:
        """The controller plans the VM for a host."""
        port = OwnPort(
            interface=PORT,
            network=self.network,
            mode="twin" if self.network.type == "routed" else "shared",
            mac="0a:58:c0:a8:28:09",
            addresses=("10.44.0.9/24",),
        )
        given = OwnVmInput(vm="cart", host=host, ports=(port,), strategies=("rarp",), rows=self.ovn.rows)
        self.ovn.commit(list(plan_own_vm(given).ops), None)
        return self.ovn.rows

    def port(self) -> dict[str, Any]:
        return next(row for row in self.ovn.rows[PORTS] if row["name"] == self.interface)

    async def cut(self) -> tuple[str, ...]:
        await self.cuts.cut("kvm-1", 3, SCOPE)
        return (await self.cuts.read_back("kvm-1", 3)).scope


async def test_a_host_whose_ovn_controller_obeys_is_isolated_and_stays_registered() -> None:
    cloud = Cloud()
    assert await cloud.cut() == SCOPE
    assert cloud.port()["options"]["requested-chassis"] == NOBODY
    assert "kvm-1" in {one.name for one in cloud.ovn.list_chassis()}
    assert await cloud.cuts.list_hosts() == {"kvm-1": 3}


async def test_a_host_whose_ovn_controller_hangs_is_taken_off_the_overlay() -> None:
    cloud = Cloud()
    cloud.ovn.freeze("kvm-1")
    assert await cloud.cut() == SCOPE
    assert "kvm-1" not in {one.name for one in cloud.ovn.list_chassis()}


@pytest.mark.parametrize("network", [WIRE, BLUE], ids=["sends without a tunnel", "may be a gateway"])
async def test_on_a_network_that_leads_out_of_the_host_that_is_no_proof(network: OwnNetwork) -> None:
    cloud = Cloud(network)
    cloud.ovn.freeze("kvm-1")
    assert await cloud.cut() == ()


async def test_while_another_chassis_has_not_confirmed_nothing_is_proven_unless_its_host_is_off() -> None:
    cloud = Cloud()
    cloud.ovn.freeze("kvm-1")
    cloud.ovn.kill("kvm-3")
    assert await cloud.cut() == ()
    assert "kvm-3" in (await cloud.cuts.read_back("kvm-1", 3)).unanswered
    cloud.off = ("kvm-3",)
    assert (await cloud.cuts.read_back("kvm-1", 3)).scope == SCOPE


async def test_a_number_that_a_chassis_reported_before_the_database_was_restored_confirms_nothing() -> None:
    cloud = Cloud(WIRE)
    backup = cloud.ovn.make_backup()
    for number in range(20):
        row = {"external_ids": {"n": str(number)}}
        cloud.ovn.commit([upsert(PORTS, {"name": cloud.interface}, row)], None)
    cloud.ovn.freeze("kvm-1")
    cloud.ovn.restore(backup)
    assert cloud.ovn.nb_cfg < cloud.ovn.chassis["kvm-1"].nb_cfg, "it reports a later change than there is"
    assert await cloud.cut() == ()
    for number in range(40):
        row = {"external_ids": {"m": str(number)}}
        cloud.ovn.commit([upsert(PORTS, {"name": cloud.interface}, row)], None)
        assert (await cloud.cuts.read_back("kvm-1", 3)).scope == ()
    assert (await cloud.driver().read_back("kvm-1", 3)).scope == (), "nor to another process"


async def test_the_twin_of_a_host_is_read_back_as_cut_also_when_its_vm_is_elsewhere() -> None:
    cloud = Cloud(BLUE)
    assert await cloud.cut() == SCOPE
    cloud.place("kvm-2")
    assert (await cloud.driver().read_back("kvm-1", 3)).scope == SCOPE
    await cloud.cuts.lift("kvm-1", 3)
    cloud.place("kvm-2")
    assert [row["name"] for row in cloud.ovn.rows[PORTS]] == [interface_id(PORT, "twin", "kvm-2")]


async def test_a_late_order_to_let_a_host_in_leaves_a_newer_isolation_alone() -> None:
    cloud = Cloud()
    await cloud.cuts.cut("kvm-1", 5, SCOPE)
    await cloud.cuts.lift("kvm-1", 3)
    assert await cloud.cuts.list_hosts() == {"kvm-1": 5}
    await cloud.cuts.lift("kvm-1", 5)
    assert await cloud.cuts.list_hosts() == {}


async def test_a_host_whose_chassis_is_not_known_for_sure_is_not_isolated() -> None:
    cloud = Cloud()
    cloud.chassis["kvm-2"] = "kvm-1"
    with pytest.raises(NotFound, match="kvm-1 is the chassis of kvm-1 and of kvm-2"):
        await cloud.cut()
    assert ISOLATED_KEY + "kvm-1" not in cloud.port()["external_ids"]
    del cloud.chassis["kvm-1"]
    with pytest.raises(NotFound, match="kvm-1 is no chassis of OVN"):
        await cloud.cut()


async def test_a_port_that_a_chassis_of_no_other_host_binds_is_not_isolated() -> None:
    cloud = Cloud()
    cloud.ovn.freeze("kvm-1")  # it still has the port
    cloud.chassis["kvm-1"] = "kvm-1-old"  # its record was changed meanwhile
    assert await cloud.cut() == ()
    cloud.chassis["kvm-1"] = "kvm-1"
    assert await cloud.cut() == SCOPE


async def test_a_port_that_requests_the_host_by_its_own_name_no_longer_does() -> None:
    cloud = Cloud()
    cloud.chassis["kvm-1"] = "chassis-of-kvm-1"
    cloud.ovn.add_chassis("chassis-of-kvm-1", "kvm-1")
    await cloud.cut()
    assert cloud.port()["options"]["requested-chassis"] == NOBODY


async def test_a_southbound_database_that_lacks_a_chassis_does_not_speak_for_it() -> None:
    cloud = Cloud()
    cloud.ovn.freeze("kvm-1")
    cloud.ovn.freeze("kvm-3")
    cloud.ovn.forget("kvm-3")  # as in a backup of before it registered
    assert await cloud.cut() == ()
    assert "kvm-3" in (await cloud.cuts.read_back("kvm-1", 3)).unanswered
    cloud.off = ("kvm-3",)
    assert (await cloud.cuts.read_back("kvm-1", 3)).scope == SCOPE


async def test_an_interface_of_which_one_row_is_still_bound_is_not_isolated() -> None:
    cloud = Cloud(BLUE)
    twin = interface_id(PORT, "twin", "kvm-1")
    first = next(row for row in cloud.ovn.rows[PORTS] if row["name"] == twin)
    shared = {**first, "name": PORT, "options": {"requested-chassis": "kvm-1"}}
    cloud.ovn.commit([upsert(PORTS, {"name": PORT}, {key: shared[key] for key in shared if key != "uuid"})], None)
    cloud.ovn.plug(PORT, "kvm-1")
    assert await cloud.cut() == SCOPE, "both rows have left the host"
    cloud.ovn.commit([upsert(PORTS, {"name": PORT}, {"options": {"requested-chassis": "kvm-1"}})], None)
    assert (await cloud.cuts.read_back("kvm-1", 3)).scope == ()


async def test_after_both_databases_were_restored_a_host_is_isolated_by_what_they_count_now() -> None:
    cloud = Cloud()
    backup = cloud.ovn.make_backup()
    for number in range(20):
        row = {"external_ids": {"n": str(number)}}
        cloud.ovn.commit([upsert(PORTS, {"name": cloud.interface}, row)], None)
    assert await cloud.cut() == SCOPE
    cloud.ovn.restore(backup)
    for one in cloud.ovn.chassis.values():
        one.nb_cfg = cloud.ovn.nb_cfg
    assert await cloud.cut() == SCOPE


async def test_a_row_without_an_interface_is_told_of_nobody() -> None:
    cloud = Cloud()
    assert await cloud.cut() == SCOPE
    cloud.ovn.commit([upsert(PORTS, {"name": PORT}, {"external_ids": {INTERFACE_KEY: None}})], None)
    assert (await cloud.cuts.read_back("kvm-1", 3)).scope == ()


class Disks(CutPort):
    """A storage that shuts hosts out at once."""

    def select(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(one for one in scope if one.startswith("disk:"))

    async def cut(self, host: str, epoch: int, scope: tuple[str, ...]) -> None:
        return None

    async def read_back(self, host: str, epoch: int) -> CutReport:
        return CutReport(scope=(DISK,), evidence="shut out")


@pytest.mark.parametrize("failing", ["forget_chassis", "renumber", "chassis"])
async def test_of_an_order_that_failed_midway_no_port_is_reported_though_the_disks_are(failing: str) -> None:
    cloud = Cloud()
    cloud.ovn.freeze("kvm-1")
    nb, sb, forgotten = FailingNorthbound(cloud.ovn), FailingSouthbound(cloud.ovn), []

    def removed() -> None:  # the others are slow: they have not removed their tunnels yet
        forgotten.append("kvm-1")
        cloud.ovn.freeze("kvm-2")
        cloud.ovn.freeze("kvm-3")
        nb.failing = sb.failing = failing

    sb.removed = removed
    cuts = OvnCuts(nb, sb, cloud.read_table)
    orders = Isolation(Cuts({"rbd": Disks(), "port": cuts}), MemoryStore(LoopClock(), SeededIds(Random(1))))
    result = await orders.renew("kvm-1", 3, (DISK, *SCOPE))
    assert forgotten == ["kvm-1"]
    assert result.scope == (DISK,)
    nb.failing = sb.failing = ""
    assert (await orders.renew("kvm-1", 3, (DISK, *SCOPE))).scope == (DISK,)
    for one in ("kvm-2", "kvm-3"):
        cloud.ovn.revive(one)
    assert (await orders.renew("kvm-1", 3, (DISK, *SCOPE))).scope == (DISK, *SCOPE)


class FailingNorthbound(SimulatedNorthbound):
    """One whose leader may be gone."""

    def __init__(self, ovn: SimulatedOvn) -> None:
        super().__init__(ovn, LoopClock(), Random(1))
        self.failing = ""

    async def renumber(self, *, comment: str, beyond: int = 0) -> Receipt:
        if self.failing == "renumber":
            raise Unavailable("a test")
        return await super().renumber(comment=comment, beyond=beyond)


class FailingSouthbound(SimulatedSouthbound):
    """The same; ``removed`` is called once a chassis was."""

    def __init__(self, ovn: SimulatedOvn) -> None:
        super().__init__(ovn, LoopClock(), Random(1))
        self.failing = ""
        self.removed: Callable[[], None] = lambda: None

    async def list_chassis(self) -> list[Chassis]:
        if self.failing == "chassis":
            raise Unavailable("a test")
        return await super().list_chassis()

    async def forget_chassis(self, name: str) -> None:
        await super().forget_chassis(name)
        self.removed()
        if self.failing == "forget_chassis":
            raise Unknown("a test")


async def test_a_chassis_that_another_process_removed_later_is_confirmed_by_a_later_change_only() -> None:
    cloud = Cloud()
    cloud.ovn.freeze("kvm-3")
    cloud.off = ("kvm-3",)
    assert await cloud.cut() == SCOPE, "its ovn-controller has obeyed"
    cloud.ovn.freeze("kvm-1")
    cloud.ovn.freeze("kvm-2")
    cloud.ovn.forget("kvm-1")
    assert (await cloud.cuts.read_back("kvm-1", 3)).scope == (), "kvm-2 still has a tunnel to it"
    cloud.ovn.revive("kvm-2")
    assert (await cloud.cuts.read_back("kvm-1", 3)).scope == SCOPE


async def test_two_hosts_that_hang_at_once_are_both_isolated_in_the_end() -> None:
    cloud = Cloud()
    for host in ("kvm-1", "kvm-2"):
        cloud.ovn.freeze(host)
        cloud.isolated.add(host)  # their Memberships say so before the first order
    await cloud.cuts.cut("kvm-1", 3, SCOPE)
    await cloud.cuts.cut("kvm-2", 3, SCOPE)
    assert [(await cloud.cuts.read_back(host, 3)).scope for host in ("kvm-1", "kvm-2")] == [SCOPE, SCOPE]
