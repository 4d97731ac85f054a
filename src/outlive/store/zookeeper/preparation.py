"""Makes what a new store needs, and says who may do what with it; what is there stays."""

from __future__ import annotations

from collections.abc import Sequence

from kazoo.security import ACL, OPEN_ACL_UNSAFE

from outlive.base import Clock, NotUnderstood
from outlive.resources import KINDS
from outlive.store.schema.documents import latest_version
from outlive.store.zookeeper.access import ZooKeeperAccess
from outlive.store.zookeeper.client import ZooKeeperClient
from outlive.store.zookeeper.layout import SCHEMA_PATH, TreeLayout
from outlive.store.zookeeper.locks import hold_schema
from outlive.store.zookeeper.permissions import SECTIONS, decode_acl, digest_id, encode_acl, znode_acls
from outlive.store.zookeeper.requests import replace_data
from outlive.store.zookeeper.schema_view import SchemaView


async def prepare_store(
    client: ZooKeeperClient, schema: SchemaView, coordinators: ZooKeeperAccess | None, *, clock: Clock
) -> None:
    """Make it by the storage schema that is there, by the newest one where none is. ``coordinators``: whom controllers,
    as which the client works, let read and write what is theirs; without it anybody may do anything."""
    await client.ensure_chroot()
    if await client.get(SCHEMA_PATH, fresh=True) is None:
        newest = latest_version()
        acl = _initial_acls(TreeLayout(schema.document(newest)), client, coordinators).get(SCHEMA_PATH)
        await client.make(SCHEMA_PATH, str(newest).encode(), acl)
    async with hold_schema(client, schema, clock=clock) as layout:
        await _prepare(client, layout, _initial_acls(layout, client, coordinators))


def _initial_acls(
    layout: TreeLayout, client: ZooKeeperClient, coordinators: ZooKeeperAccess | None
) -> dict[str, list[ACL]]:
    return dict(znode_acls(layout, digest_id(client.access), digest_id(coordinators))) if coordinators else {}


async def _prepare(client: ZooKeeperClient, layout: TreeLayout, given: dict[str, list[ACL]]) -> None:
    for key in layout.document.zookeeper["base"]:
        path = layout.base_path(key)
        if path != "/" and not key.startswith("schema"):
            await client.make(path, b"", given.get(path))
    for path, acl in given.items():
        await client.set_acl([path], acl)
    for kind in filter(layout.has_kind, KINDS.values()):
        root = layout.kind_path(kind)
        await client.make(layout.log_path(kind), b"", given.get(root))
        if given:
            await client.commit([replace_data(root, encode_acl(given[root]))])
        else:
            await _mend_acl(client, root)
        for section in SECTIONS if given else ():
            await _apply_acl(client, root := layout.base_path(f"{section}.{kind.info.plural}"), given[root])


async def _mend_acl(client: ZooKeeperClient, root: str) -> None:
    """Write down with which ACL a kind's objects are made, where nonsense says so: with its own."""
    found = await client.get(root)
    try:
        decode_acl(b"" if found is None else found[0])
    except NotUnderstood:
        acl = await client.get_acl(root)
        await client.commit([replace_data(root, b"" if acl == OPEN_ACL_UNSAFE else encode_acl(acl))])


async def _apply_acl(client: ZooKeeperClient, root: str, acl: Sequence[ACL]) -> None:
    """Have all znodes below a kind's own its ACL: what was made before with another one, too."""
    parents = [f"{root}/{one}" for one in (await client.list_children((root,)))[0] or ()]
    await client.set_acl(parents, acl)
    for parent in parents:
        children = (await client.list_children((parent,)))[0] or ()
        await client.set_acl([f"{parent}/{one}" for one in children], acl)
