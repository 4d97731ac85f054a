"""Who may do what with which znode: two users, controllers and coordinators, by the tables of readers and writers.

An ACL knows no fields. So who may write one field of a kind may write all of it here, and plain hosts are given no
user at all: they use the API of a controller, which applies the whole table (docs/how-to/zookeeper.md#acls).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from kazoo.security import ACL, Id, make_acl, make_digest_acl_credential

from outlive.base import NotUnderstood
from outlive.resources import KINDS, READERS, ROLES, Resource
from outlive.store.zookeeper.access import ZooKeeperAccess
from outlive.store.zookeeper.layout import TreeLayout

COORDINATOR: Final = "coordinator"
SECTIONS: Final = ("objects", "names", "bumps")
"""Where a kind has a znode of its own."""
_READ: Final = {"read": True}
_WRITE: Final = {"read": True, "write": True, "create": True, "delete": True}


def digest_id(access: ZooKeeperAccess) -> str:
    """What an ACL says of the user: the name with a digest of the password."""
    return str(make_digest_acl_credential(access.user, access.password))


def coordinator_reads(kind: type[Resource]) -> bool:
    """Whether coordinators are shown anything of the kind."""
    return COORDINATOR in READERS.get(kind, {})


def coordinator_writes(kind: type[Resource]) -> bool:
    """Whether coordinators write any field of the kind, or make or delete its objects."""
    writers, names = kind.info.writers, set(ROLES[COORDINATOR])
    return any(names & set(those) for those in (*writers.fields.values(), writers.creates, writers.deletes))


def znode_acls(layout: TreeLayout, controllers: str, coordinators: str) -> Iterator[tuple[str, list[ACL]]]:
    """The ACL of each znode that a new store begins with, which those below it take over; by ids of users."""

    def build_acl(of_coordinators: dict[str, bool] | None) -> list[ACL]:
        made = [make_acl("digest", controllers, all=True)]
        if of_coordinators is not None:
            made.append(make_acl("digest", coordinators, **of_coordinators))
        return made

    for key in (*SECTIONS, "incarnation"):
        yield layout.base_path(key), build_acl(_READ)
    yield layout.base_path("keys"), build_acl(None)
    yield layout.base_path("schema"), build_acl(_WRITE)
    for kind in filter(layout.has_kind, KINDS.values()):
        writes, reads = coordinator_writes(kind), coordinator_reads(kind)
        given = build_acl(_WRITE if writes else _READ if reads else None)
        for section in SECTIONS:
            yield layout.base_path(f"{section}.{kind.info.plural}"), given
    yield "/", build_acl(_READ)


def convert_acls(layout: TreeLayout, controllers: str, given: Sequence[ACL]) -> dict[str, list[ACL]]:
    """The same in a store with these users, where ``given`` is the ACL of what both may write. Empty where anybody may
    do anything, or others than these two were let in by hand: then what is new takes over the ACL of what is above."""
    ids = {one.id.id for one in given if one.id.scheme == "digest"}
    others = ids - {controllers}
    if len(ids) != len(given) or controllers not in ids or len(others) != 1:
        return {}
    return dict(znode_acls(layout, controllers, others.pop()))


def is_hidden(acl: Sequence[ACL]) -> bool:
    """Whether the server left digests out: it shows them to who may change the ACL."""
    return any(one.id.scheme == "digest" and one.id.id.endswith(":x") for one in acl)


class _Right(msgspec.Struct, frozen=True):
    """One entry of an ACL, as it is stored."""

    scheme: str
    id: str
    permissions: int


def encode_acl(acl: Sequence[ACL]) -> bytes:
    """An ACL as the data of a znode."""
    return msgspec.json.encode([_Right(one.id.scheme, one.id.id, one.perms) for one in acl])


def decode_acl(raw: bytes) -> tuple[ACL, ...]:
    """The same read back; empty where anybody may do anything. ``NotUnderstood``."""
    if not raw:
        return ()
    try:
        rights = msgspec.json.decode(raw, type=list[_Right])
    except msgspec.MsgspecError as error:
        what = f"with which ACL its objects are made is nonsense: {error}"
        raise NotUnderstood(what, remedy="outlive zookeeper init writes it again") from None
    return tuple(ACL(one.permissions, Id(one.scheme, one.id)) for one in rights)
