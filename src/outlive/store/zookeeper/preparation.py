"""Makes what a new store needs, and says who may do what with it; what is there stays."""

from __future__ import annotations

from collections.abc import Sequence

from kazoo.security import ACL

from outlive.base.errors import Unavailable
from outlive.resources import KINDS
from outlive.store.schema.documents import latest_version
from outlive.store.schema.state import SchemaState, decode_state
from outlive.store.zookeeper.access import ZooKeeperAccess
from outlive.store.zookeeper.client import ZooKeeperClient
from outlive.store.zookeeper.layout import SCHEMA_PATH, TreeLayout
from outlive.store.zookeeper.permissions import SECTIONS, acls, digest_id, encode_acl
from outlive.store.zookeeper.requests import put
from outlive.store.zookeeper.schema_view import SchemaView


async def prepare_store(client: ZooKeeperClient, schema: SchemaView, coordinators: ZooKeeperAccess | None) -> None:
    """Make it by the storage schema that is there, by the newest one where none is. ``coordinators``: whom controllers,
    as which the client works, let read and write what is theirs; without it anybody may do anything."""
    await client.ensure_chroot()
    found = await client.get(SCHEMA_PATH, fresh=True)
    state = SchemaState(version=latest_version()) if found is None else decode_state(found[0], SCHEMA_PATH)
    if state.moving is not None:
        raise Unavailable("the storage schema is being changed", remedy="try again when outlive schema status says so")
    layout = TreeLayout(schema.document(state.version))
    given = dict(acls(layout, digest_id(client.access), digest_id(coordinators))) if coordinators else {}
    for key in layout.document.zookeeper["base"]:
        path = layout.base(key)
        if path != "/" and not key.startswith("schema."):
            await client.make(path, str(state.version).encode() if path == SCHEMA_PATH else b"", given.get(path))
    for path, acl in given.items():
        await client.set_acl([path], acl)
    for kind in filter(layout.keeps, KINDS.values()):
        root = layout.objects(kind)
        await client.make(layout.log(kind), b"", given.get(root))
        if given:
            await client.commit([put(root, encode_acl(given[root]))])
        for section in SECTIONS if given else ():
            await _apply_acl(client, root := layout.base(f"{section}.{kind.info.plural}"), given[root])


async def _apply_acl(client: ZooKeeperClient, root: str, acl: Sequence[ACL]) -> None:
    """Have all znodes below a kind's own its ACL: what was made before with another one, too."""
    parents = [f"{root}/{one}" for one in (await client.children_many((root,)))[0] or ()]
    await client.set_acl(parents, acl)
    for parent in parents:
        children = (await client.children_many((parent,)))[0] or ()
        await client.set_acl([f"{parent}/{one}" for one in children], acl)
