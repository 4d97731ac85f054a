"""Hosts that are ``Hypervisor`` objects of a real API server: mirrored from there, and their slots told there."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.backends import GOODBYE_S
from tests.integration.test_synced_tables import fill, flavor
from tests.integration.test_synced_tables import server as server_row
from tests.support.api_server import ApiServer, shared_server
from tests.support.cloud_kinds import (
    HYPERVISORS,
    MERGE_PATCH,
    RESERVATIONS,
    cloud_reservations,
    make_cloud_kinds,
    patch_spec,
    patch_status,
    put_hypervisor,
    put_reservation,
)
from tests.support.command import spawned, up
from tests.support.loops import run_real
from tests.support.lost_answers import LostAnswers

from outlive.base import Random, SystemClock, SystemIds
from outlive.drivers.kubernetes import KubernetesVerbs
from outlive.failover import HOST_INDEX
from outlive.inventory import (
    CloudCaches,
    CloudInventorySyncer,
    InventoryCluster,
    InventoryClusterSettings,
    InventorySettings,
    cloud_sync,
)
from outlive.placement import blocked_hosts
from outlive.resources import (
    CLUSTER,
    Amounts,
    Cluster,
    FailoverStatus,
    Fault,
    Hypervisor,
    ObjectMeta,
    Reservation,
    ReservationSpec,
    ReservationStatus,
    find_condition,
)
from outlive.runtime import Duration, FaultRecorder, Informer, Metrics, OrderedTaskGroup
from outlive.store import MemoryStore, list_all
from outlive.store.kubernetes import ClusterAccess, KubernetesStore

pytestmark = pytest.mark.component("kubernetes")
CLOCK = SystemClock()
WITHIN_S = 30.0
LOOK_S = 0.05
AMOUNTS = {"cpu": "16", "memory": "64Gi"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    monkeypatch.setattr(cloud_sync, "LOOK_S", 0.1)
    one = shared_server()
    make_cloud_kinds(one)
    return one


class World:
    """A mirror of one cluster, beside one that does not answer, and the store that it keeps."""

    def __init__(self, server: ApiServer, settings: InventorySettings) -> None:
        random = Random(1)
        self.store = MemoryStore(CLOCK, SystemIds())
        self.calls = LostAnswers(server.url)
        self.there = KubernetesStore(server.access(), clock=CLOCK, random=random, calls=self.calls)
        self.away = KubernetesStore(ClusterAccess("http://127.0.0.1:1"), clock=CLOCK, random=random)
        self.placed: dict[str, str] = {}
        self.hosts = Informer(self.store, Hypervisor, clock=CLOCK, random=random)
        self.slots = Informer(self.store, Reservation, clock=CLOCK, random=random, indexes={HOST_INDEX: blocked_hosts})
        self.mirror = CloudInventorySyncer(
            self.store,
            [
                InventoryCluster("east", frozenset({"z2"}), self.away, KubernetesVerbs(self.away)),
                InventoryCluster("west", frozenset({"z1"}), self.there, KubernetesVerbs(self.there)),
            ],
            settings,
            CloudCaches(self.hosts, self.slots),
            self._placed,
            clock=CLOCK,
            random=random,
            ids=SystemIds(),
            metrics=Metrics(),
            faults=FaultRecorder(self.store, CLOCK, "inventory"),
        )

    async def _placed(self) -> dict[str, str]:
        return self.placed

    async def host(self, name: str) -> Hypervisor | None:
        return self.hosts.get(name)

    async def faults(self) -> dict[str, str]:
        return {one.code: one.message async for one in list_all(self.store, Fault) if not one.ended}


@asynccontextmanager
async def mirrored(server: ApiServer, **settings: Any) -> AsyncIterator[World]:
    clusters = {"east": InventoryClusterSettings(zones=["z2"]), "west": InventoryClusterSettings(zones=["z1"])}
    made = InventorySettings(source="kvm.cloud.sap", clusters=clusters, reservations=True, **settings)
    world = World(server, made)
    await world.store.create(Cluster(metadata=ObjectMeta(name=CLUSTER)))
    try:
        async with OrderedTaskGroup() as group:
            tasks = [group.create_task(one.run()) for one in (world.hosts, world.slots)]
            for one in (world.hosts, world.slots):
                await one.wait_synced()
            tasks.append(group.create_task(world.mirror.run()))
            yield world
            for task in tasks:
                task.cancel()
    finally:
        await world.there.close()
        await world.away.close()
        await asyncio.sleep(GOODBYE_S)


async def until(holds: Callable[[], Awaitable[Any]], what: str) -> None:
    end = time.monotonic() + WITHIN_S
    while not await holds():
        assert time.monotonic() < end, f"within {WITHIN_S:g} s it never happened that {what}"
        await asyncio.sleep(LOOK_S)


async def create_slot(world: World, name: str, on: str) -> None:
    spec = ReservationSpec(type="FailoverReservation", resources=Amounts(cpu=2000, memory=2**30), target_host=on)
    made = await world.store.create(Reservation(metadata=ObjectMeta(name=name), spec=spec))
    status = ReservationStatus(host=on, failover_reservation=FailoverStatus(allocations={"v1": "kvm-a"}))
    await world.store.replace_status(Reservation(metadata=made.metadata, spec=spec, status=status))


def test_a_slot_has_one_object_whatever_answer_is_lost_and_only_our_own_are_touched(server: ApiServer) -> None:
    put_hypervisor(server, "kvm-b")
    put_reservation(server, "outlive-taken", labels={"team": "x"})

    async def body() -> None:
        async with mirrored(server) as world:
            owner = (await world.store.get(Cluster, CLUSTER)).metadata.uid
            left: dict[str, Any] = {"labels": {"outlive.dev/cluster": owner}}
            left["annotations"] = {"outlive.dev/slot": "old"}

            async def is_told() -> bool:
                told = cloud_reservations(server)
                return (told.get("outlive-s1", {}).get("status") or {}).get("host") == "kvm-b"

            await until(lambda: world.host("kvm-b"), "the host is mirrored")
            world.calls.losing = 2  # of the creation, and of the status after it
            await create_slot(world, "s1", "kvm-b")
            await create_slot(world, "taken", "kvm-b")
            await until(is_told, "the slot is told")
            assert sorted(cloud_reservations(server)) == ["outlive-s1", "outlive-taken"]
            told = cloud_reservations(server)["outlive-s1"]
            assert told["status"]["failoverReservation"]["allocations"] == {"v1": "kvm-a"}

            async def is_named() -> bool:
                return "outlive-taken (is there already" in (await world.faults()).get("inventory-left-out", "")

            await until(is_named, "the name that is taken is told")
            # somebody changes ours, and deletes it: it comes back
            server.call("PATCH", f"{RESERVATIONS}/outlive-s1", {"spec": {"targetHost": "x"}}, MERGE_PATCH)

            async def is_mended() -> bool:
                found = cloud_reservations(server).get("outlive-s1")
                return found is not None and found["spec"]["targetHost"] == "kvm-b" and bool(found.get("status"))

            await until(is_mended, "the change is undone")
            server.call("DELETE", f"{RESERVATIONS}/outlive-s1")
            await until(is_mended, "the slot is told again")
            # ours without a slot goes, also where nobody saw the slot go
            world.calls.losing = 1
            put_reservation(server, "outlive-old", **left)
            slot = await world.store.get(Reservation, "s1")
            await world.store.delete(slot.ref)

            async def are_gone() -> bool:
                return sorted(cloud_reservations(server)) == ["outlive-taken"]

            await until(are_gone, "what has no slot is gone")
            assert cloud_reservations(server)["outlive-taken"]["metadata"]["labels"] == {"team": "x"}

    run_real(body())


def test_a_host_is_down_once_its_object_is_gone_and_goes_after_three_listings_without_a_vm(server: ApiServer) -> None:
    put_hypervisor(server, "kvm-a", instances=[{"id": "v1", "active": True}])
    put_hypervisor(server, "kvm-b")
    put_hypervisor(server, "kvm-far", zone="z9")
    put_hypervisor(server, "kvm-odd", instances="none")
    put_hypervisor(server, "kvm-vast", capacity={"cpu": "many"})

    async def body() -> None:
        async with mirrored(server, full_interval=Duration(0.1), stale_after=Duration(60.0)) as world:
            await until(lambda: world.host("kvm-b"), "kvm-b is mirrored")
            await until(lambda: world.host("kvm-a"), "kvm-a is mirrored")

            async def has_status() -> bool:
                found = await world.host("kvm-a")
                return found is not None and len(found.status.instances) == 1

            await until(has_status, "kvm-a has its VM")
            for name in ("kvm-a", "kvm-b"):
                server.call("DELETE", f"{HYPERVISORS}/{name}")

            async def is_gone() -> bool:
                return await world.host("kvm-b") is None

            async def is_down() -> bool:
                found = await world.host("kvm-a")
                ready = find_condition(found.status.conditions, "Ready") if found is not None else None
                return ready is not None and ready.reason == "Vanished"

            await until(is_down, "kvm-a is down")
            await until(is_gone, "kvm-b is deleted")
            await asyncio.sleep(0.5)
            assert await is_down()  # its VM may be there
            world.placed["v1"] = "kvm-b"

            async def is_empty() -> bool:
                return not world.hosts.items()

            await until(is_empty, "kvm-a is deleted once its VM is elsewhere")
            told = (await world.faults())["inventory-left-out"]
            assert "kvm-far (is in zone z9, and cluster west has z1)" in told
            assert "kvm-odd of cluster west (not a Hypervisor" in told
            assert "kvm-vast (status.capacity: cpu: " in told

    run_real(body())


async def test_a_cluster_that_cannot_be_read_keeps_its_hosts_and_a_fault_says_why(server: ApiServer) -> None:
    settings: dict[str, Any] = {"full_interval": Duration(0.2), "stale_after": Duration(0.5)}
    async with mirrored(server, **settings) as world:
        labels = {"outlive.dev/creator": "kvm.cloud.sap", "outlive.dev/inventory-cluster": "east"}
        await world.store.create(Hypervisor(metadata=ObjectMeta(name="kvm-a", labels=labels)))

        async def is_told() -> bool:
            told = (await world.faults()).get("inventory-stale", "")
            return "hosts and VMs of east" in told and "127.0.0.1:1" in told

        await until(is_told, "the fault is raised, and says why")
        found = await world.host("kvm-a")
        assert found is not None
        assert found.status.conditions == ()


def write_settings(server: ApiServer, folder: Path, database: str) -> Path:
    settings = {
        "inventory": {
            "source": "kvm.cloud.sap",
            "clusters": {"west": {"kubeconfig": str(server.kubeconfig()), "zones": ["z1"]}},
            "reservations": True,
        },
        "failover": {"flavorFailoverRequirements": {"*": 1}, "reconcileInterval": "1s"},
        "failoverUpkeep": {"vmSource": "database", "databaseUrl": database},
    }
    path = folder / "outlive.yaml"
    path.write_text(json.dumps(settings))
    return path


def test_slots_of_mirrored_hosts_are_planned_told_there_and_vanish_with_their_vms(
    server: ApiServer, tmp_path: Path
) -> None:
    database = f"sqlite:///{tmp_path / 'nova.db'}"
    rows = [
        server_row(n, os_ext_srv_attr_host=host, os_ext_az_availability_zone="z1", flavor_name="f0")
        for n, host in ((1, "kvm-a"), (2, "kvm-b"))
    ]
    fill(database, rows, [flavor(0)])
    ready = [{"type": "Ready", "status": "True", "reason": "ok"}]
    for number, name in ((1, "kvm-a"), (2, "kvm-b")):
        listed = [{"id": f"vm-{number:05}", "name": f"web {number}", "active": True}]
        put_hypervisor(server, name, instances=listed, numInstances=1, conditions=ready)
    put_reservation(server, "theirs")
    with up(tmp_path / "state", "--config", str(write_settings(server, tmp_path, database))) as outlive:
        env = {"OUTLIVE_SERVER": outlive.url, "OUTLIVE_TOKEN": f"@{tmp_path / 'state' / 'token'}"}

        def get(kind: str) -> dict[str, dict[str, Any]]:
            found = json.loads(spawned("get", kind, "-o", "json", env=env).out)["items"]
            return {one["metadata"]["name"]: one for one in found}

        def wait(holds: Callable[[], Any], what: str) -> None:
            async def held() -> bool:
                return bool(holds())

            asyncio.run(until(held, what))

        def told() -> dict[str, str]:
            return {
                one["status"]["host"]: next(iter(one["status"]["failoverReservation"]["allocations"]), "")
                for name, one in cloud_reservations(server).items()
                if name != "theirs" and one.get("status")
            }

        wait(lambda: told() == {"kvm-b": "vm-00001", "kvm-a": "vm-00002"}, "both slots are told")
        # a change of a host is followed, while another one's object is nonsense
        patch_status(server, "kvm-a", {"capacity": {"cpu": "many"}})
        patch_status(server, "kvm-b", {"capacity": {"cpu": "24", "memory": "64Gi"}})
        patch_spec(server, "kvm-b", {"maintenance": "ha"})
        wait(lambda: get("hypervisors")["kvm-b"]["status"]["capacity"]["cpu"] == "24", "kvm-b has more cores")
        assert get("hypervisors")["kvm-a"]["status"]["capacity"] == AMOUNTS
        # its spec has changed after its status
        wait(lambda: "HighAvailability" in spawned("describe", "hypervisor", "kvm-b", env=env).out, "kvm-b is marked")
        assert len(told()) == 2  # nothing was acted on maintenance
        fill(database, [], [flavor(0)])
        for name in ("kvm-a", "kvm-b"):
            patch_status(server, name, {"instances": [], "capacity": AMOUNTS})
        wait(lambda: set(cloud_reservations(server)) == {"theirs"}, "the slots vanish with their VMs")
