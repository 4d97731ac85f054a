"""The tree of a store with users goes to another storage schema and back: each may do afterwards what it may do now."""

from __future__ import annotations

import msgspec
import pytest
from kazoo.security import ACL
from msgspec.structs import replace
from tests.support.loops import run_real
from tests.support.schemas import document, dump
from tests.support.zookeeper import shared_ensemble

from outlive.base import Forbidden, Random, SystemClock, SystemIds
from outlive.resources import DhcpLease, Flavor, FlavorSpec, MemberRecord, Membership, ObjectMeta
from outlive.store.schema import SchemaDocument
from outlive.store.zookeeper import (
    SchemaView,
    TreeMover,
    ZooKeeperAccess,
    ZooKeeperClient,
    ZooKeeperStore,
    dump_tree,
    restore_tree,
)

pytestmark = [pytest.mark.component("zookeeper"), pytest.mark.slow]
CLOCK = SystemClock()
NEW_KINDS = ("dhcpleases", "flavors")
"""Coordinators write the first one, and are not shown the second one."""


def users_document(version: int) -> SchemaDocument:
    """In schema 2 memberships lie elsewhere, and two kinds are new."""
    if version == 2:
        return replace(document(2), kinds=document(1).kinds)
    base = document(1).zookeeper["base"]
    return replace(
        document(1), zookeeper={"base": {key: base[key] for key in base if key.rpartition(".")[2] not in NEW_KINDS}}
    )


def store_as(access: ZooKeeperAccess) -> ZooKeeperStore:
    client = ZooKeeperClient(access)
    view = SchemaView(client, clock=CLOCK, document=users_document)
    return ZooKeeperStore(client, clock=CLOCK, ids=SystemIds(), random=Random(1), schema=view)


def membership(name: str) -> Membership:
    return Membership(metadata=ObjectMeta(name=name), record=MemberRecord(machine_id="m", boot_id="b"))


def renewed(found: Membership) -> Membership:
    return replace(found, record=replace(found.record, seq=found.record.seq + 1))


def lease(number: int) -> DhcpLease:
    raw = {"kind": "DhcpLease", "metadata": {"name": f"blue.52-54-00-00-00-{number:02x}"}, "network": "blue"}
    raw |= {"mac": f"52:54:00:00:00:{number:02x}", "address": f"10.0.0.{number}"}
    return msgspec.convert(raw, DhcpLease)


async def acls_by_path(client: ZooKeeperClient) -> dict[str, list[ACL]]:
    """Of all objects, and of what is above them; entries of logs and the schema's own are left out."""
    paths = [path for path in await dump(client) if "/bumps/" not in path and not path.startswith("/schema")]
    return dict(zip(paths, await client.read_acls(paths), strict=True))


def test_each_user_may_do_the_same_after_moves_and_a_new_kind_has_its_own_acl() -> None:
    async def story() -> None:
        place = shared_ensemble().new_chroot()
        controllers, coordinators = (replace(place, user=name, password=f"{name}!") for name in ("con", "coord"))
        chief, host, nobody = store_as(controllers), store_as(coordinators), store_as(place)
        stores = (chief, host, nobody)
        try:
            await chief.prepare(coordinators)
            member = await host.create(membership("kvm-1"))
            before = await acls_by_path(chief.client)
            with pytest.raises(Forbidden, match="'coord' is not shown the ACL of /schema"):
                await TreeMover(host.client, by="host", clock=CLOCK, document=users_document).run(2)
            mover = TreeMover(chief.client, by="chief", clock=CLOCK, document=users_document)

            await mover.run(2)
            member = await host.replace(renewed(member))
            await host.create(membership("kvm-2"))
            given = await host.create(lease(1))
            assert await chief.get(DhcpLease, given.name, fresh=True) == given
            await chief.create(Flavor(metadata=ObjectMeta(name="m1"), spec=FlavorSpec(flavor_name="m1")))
            with pytest.raises(Forbidden):
                await host.get(Flavor, "m1")
            for refused in (nobody.get(Membership, "kvm-1"), nobody.create(lease(2))):
                with pytest.raises(Forbidden):
                    await refused
            ids = {"world"} & {one.id.scheme for acl in (await acls_by_path(chief.client)).values() for one in acl}
            assert not ids, "nothing is open to anybody"
            moved = await acls_by_path(chief.client)
            assert moved["/moved/objects/memberships"] == before["/objects/memberships"]
            assert moved["/objects/dhcpleases"] == before["/objects/memberships"], "both are read and written"
            assert {one.id.id.partition(":")[0] for one in moved["/objects/flavors"]} == {"con"}

            await mover.run(1)
            await host.replace(renewed(member))
            await host.create(membership("kvm-3"))
            after = await acls_by_path(chief.client)
            assert {path: after.get(path) for path in before} == before
        finally:
            for store in stores:
                await store.close()

    run_real(story())


def test_a_tree_from_a_file_leaves_the_users_of_the_ensemble_as_they_are() -> None:
    """Its file names no digest of a password, and the objects are made with the ACL of the users that there are."""

    async def story() -> None:
        first, second = (shared_ensemble().new_chroot() for _ in range(2))
        stores = []
        try:
            for number, place in enumerate((first, second)):
                users = [replace(place, user=name, password=f"{name}{number}") for name in ("con", "coord")]
                stores += [store_as(users[0]), store_as(users[1])]
                await stores[-2].prepare(users[1])
            await stores[1].create(membership("kvm-1"))
            found = await dump_tree(stores[0], clock=CLOCK)
            assert found.nodes["/objects/memberships"] == ""
            await restore_tree(stores[2], found)
            await stores[3].replace(renewed(await stores[3].get(Membership, "kvm-1")))
            await stores[3].create(membership("kvm-2"))
        finally:
            for store in stores:
                await store.close()

    run_real(story())
