"""Ports of a condemned host are cut, and only what has arrived is reported."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest
from tests.support.loops import run

from outlive.base.clock import LoopClock
from outlive.base.errors import NotFound
from outlive.base.random import Random
from outlive.drivers.ovn.chassis_table import ChassisTable, HostChassis
from outlive.drivers.ovn.cuts import OvnCuts
from outlive.network.names import (
    CLUSTER_ROUTER,
    INTERFACE_KEY,
    ISOLATED_KEY,
    NETWORK_KEY,
    NOBODY,
    OWN_CONTROLLER,
    OWNER_KEY,
)
from outlive.network.operations import PORTS, ROUTERS, SWITCHES, Rows, upsert
from outlive.network.own_vms import OwnNetwork, OwnPort, OwnVmInput, plan_own_vm
from outlive.resources.networks import interface_id
from outlive.simulation.network import SimulatedNorthbound, SimulatedOvn, SimulatedSouthbound

PORT = "b3a4f0d0-0000-4000-8000-000000000002"
SCOPE = (f"port:{PORT}",)
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
        self.chassis = {host: host for host in ("kvm-1", "kvm-2", "kvm-3")}
        self.cuts = self.driver()
        self.clock = clock

    def driver(self) -> OvnCuts:
        clock, random = LoopClock(), Random(1)

        async def read_table() -> ChassisTable:
            return ChassisTable(
                hosts={
                    host: HostChassis(name=name, reported=name, is_certain=True, is_off=host in self.off)
                    for host, name in self.chassis.items()
                }
            )

        return OvnCuts(
            SimulatedNorthbound(self.ovn, clock, random), SimulatedSouthbound(self.ovn, clock, random), read_table
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


def told(story: Coroutine[Any, Any, None]) -> None:
    run(story)


def test_a_host_whose_ovn_controller_obeys_is_isolated_and_stays_registered() -> None:
    async def story() -> None:
        cloud = Cloud()
        assert await cloud.cut() == SCOPE
        assert cloud.port()["options"]["requested-chassis"] == NOBODY
        assert "kvm-1" in {one.name for one in cloud.ovn.registered()}
        assert await cloud.cuts.hosts() == {"kvm-1": 3}

    told(story())


def test_a_host_whose_ovn_controller_hangs_is_taken_off_the_overlay() -> None:
    async def story() -> None:
        cloud = Cloud()
        cloud.ovn.freeze("kvm-1")
        assert await cloud.cut() == SCOPE
        assert "kvm-1" not in {one.name for one in cloud.ovn.registered()}

    told(story())


def test_on_a_localnet_network_that_is_no_proof() -> None:
    async def story() -> None:
        cloud = Cloud(WIRE)
        cloud.ovn.freeze("kvm-1")
        assert await cloud.cut() == ()

    told(story())


def test_while_another_chassis_has_not_confirmed_nothing_is_proven_unless_its_host_is_off() -> None:
    async def story() -> None:
        cloud = Cloud()
        cloud.ovn.freeze("kvm-1")
        cloud.ovn.kill("kvm-3")
        assert await cloud.cut() == ()
        assert "kvm-3" in (await cloud.cuts.read_back("kvm-1", 3)).unanswered
        cloud.off = ("kvm-3",)
        assert (await cloud.cuts.read_back("kvm-1", 3)).scope == SCOPE

    told(story())


def test_a_number_that_a_chassis_reported_before_the_database_was_restored_confirms_nothing() -> None:
    async def story() -> None:
        cloud = Cloud(WIRE)
        backup = cloud.ovn.backup()
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

    told(story())


def test_the_twin_of_a_host_is_read_back_as_cut_also_when_its_vm_is_elsewhere() -> None:
    async def story() -> None:
        cloud = Cloud(BLUE)
        assert await cloud.cut() == SCOPE
        cloud.place("kvm-2")
        assert (await cloud.driver().read_back("kvm-1", 3)).scope == SCOPE
        await cloud.cuts.lift("kvm-1", 3)
        cloud.place("kvm-2")
        assert [row["name"] for row in cloud.ovn.rows[PORTS]] == [interface_id(PORT, "twin", "kvm-2")]

    told(story())


def test_a_late_order_to_let_a_host_in_leaves_a_newer_isolation_alone() -> None:
    async def story() -> None:
        cloud = Cloud()
        await cloud.cuts.cut("kvm-1", 5, SCOPE)
        await cloud.cuts.lift("kvm-1", 3)
        assert await cloud.cuts.hosts() == {"kvm-1": 5}
        await cloud.cuts.lift("kvm-1", 5)
        assert await cloud.cuts.hosts() == {}

    told(story())


def test_a_host_whose_chassis_is_not_known_for_sure_is_not_isolated() -> None:
    async def story() -> None:
        cloud = Cloud()
        cloud.chassis["kvm-2"] = "kvm-1"
        with pytest.raises(NotFound, match="kvm-1 is the chassis of kvm-1 and of kvm-2"):
            await cloud.cut()
        assert ISOLATED_KEY + "kvm-1" not in cloud.port()["external_ids"]
        del cloud.chassis["kvm-1"]
        with pytest.raises(NotFound, match="kvm-1 is no chassis of OVN"):
            await cloud.cut()

    told(story())


def test_a_port_that_a_chassis_of_no_other_host_binds_is_not_isolated() -> None:
    async def story() -> None:
        cloud = Cloud()
        cloud.ovn.freeze("kvm-1")  # it still has the port
        cloud.chassis["kvm-1"] = "kvm-1-old"  # its record was changed meanwhile
        assert await cloud.cut() == ()
        cloud.chassis["kvm-1"] = "kvm-1"
        assert await cloud.cut() == SCOPE

    told(story())


def test_a_port_that_requests_the_host_by_its_own_name_no_longer_does() -> None:
    async def story() -> None:
        cloud = Cloud()
        cloud.chassis["kvm-1"] = "chassis-of-kvm-1"
        cloud.ovn.add_chassis("chassis-of-kvm-1", "kvm-1")
        await cloud.cut()
        assert cloud.port()["options"]["requested-chassis"] == NOBODY

    told(story())


def test_a_southbound_database_that_lacks_a_chassis_does_not_speak_for_it() -> None:
    async def story() -> None:
        cloud = Cloud()
        cloud.ovn.freeze("kvm-1")
        cloud.ovn.freeze("kvm-3")
        cloud.ovn.forget("kvm-3")  # as in a backup of before it registered
        assert await cloud.cut() == ()
        assert "kvm-3" in (await cloud.cuts.read_back("kvm-1", 3)).unanswered
        cloud.off = ("kvm-3",)
        assert (await cloud.cuts.read_back("kvm-1", 3)).scope == SCOPE

    told(story())


def test_an_interface_of_which_one_row_is_still_bound_is_not_isolated() -> None:
    async def story() -> None:
        cloud = Cloud(BLUE)
        twin = interface_id(PORT, "twin", "kvm-1")
        first = next(row for row in cloud.ovn.rows[PORTS] if row["name"] == twin)
        shared = {**first, "name": PORT, "options": {"requested-chassis": "kvm-1"}}
        cloud.ovn.commit([upsert(PORTS, {"name": PORT}, {key: shared[key] for key in shared if key != "uuid"})], None)
        cloud.ovn.plug(PORT, "kvm-1")
        assert await cloud.cut() == SCOPE, "both rows have left the host"
        cloud.ovn.commit([upsert(PORTS, {"name": PORT}, {"options": {"requested-chassis": "kvm-1"}})], None)
        assert (await cloud.cuts.read_back("kvm-1", 3)).scope == ()

    told(story())


def test_after_both_databases_were_restored_a_host_is_isolated_by_what_they_count_now() -> None:
    async def story() -> None:
        cloud = Cloud()
        backup = cloud.ovn.backup()
        for number in range(20):
            row = {"external_ids": {"n": str(number)}}
            cloud.ovn.commit([upsert(PORTS, {"name": cloud.interface}, row)], None)
        assert await cloud.cut() == SCOPE
        cloud.ovn.restore(backup)
        for one in cloud.ovn.chassis.values():
            one.nb_cfg = cloud.ovn.nb_cfg
        assert await cloud.cut() == SCOPE

    told(story())


def test_a_row_without_an_interface_is_told_of_nobody() -> None:
    async def story() -> None:
        cloud = Cloud()
        assert await cloud.cut() == SCOPE
        cloud.ovn.commit([upsert(PORTS, {"name": PORT}, {"external_ids": {INTERFACE_KEY: None}})], None)
        assert (await cloud.cuts.read_back("kvm-1", 3)).scope == ()

    told(story())
