"""Where everything lies in ZooKeeper, by a document of the storage schema: no other module knows a path.

Below the chroot, for a kind with plural P: ``objects/P/<bucket>/<name>,<uid>`` is the object, so that a successor of
the same name is another znode, whose versions begin anew without harm. ``names/P/<bucket>/<name>`` holds the uid, and
makes names unique. ``bumps/P/<shard>`` is a log of changes; its entries are numbered by the server.
"""

from __future__ import annotations

import re
import zlib
from typing import Final

from outlive.base import Invalid
from outlive.resources import Resource
from outlive.store.schema.documents import SchemaDocument

ALL: Final = "all"
"""The shard of all changes of a kind."""
HOST_SHARD: Final = "host-"
"""What the names of shards begin with that hold the changes of one host's objects."""
ENTRY: Final = "c"
"""What the names of entries of a log begin with, before the ten digits that the server adds."""
_ENTRY_PATH: Final = re.compile(rf"/({ALL}|{HOST_SHARD}[^/]*)/{ENTRY}[0-9]{{10}}$")
SCHEMA_PATH: Final = "/schema"
"""The version of the storage schema; the same in all documents, since it says which of them counts."""


class TreeLayout:
    """The paths of one version of the storage schema."""

    def __init__(self, document: SchemaDocument) -> None:
        self.document = document

    def base_path(self, key: str) -> str:
        """A path that exists once, such as that of ``keys``."""
        path = self.document.find_path(key)
        if path is None:
            raise Invalid(f"storage schema {self.document.version} has no {key}", remedy="upgrade it: outlive schema")
        return path or "/"

    def has_kind(self, kind: type[Resource]) -> bool:
        """Whether this version knows the kind."""
        return self.document.find_path(f"objects.{kind.info.plural}") is not None

    def kind_path(self, kind: type[Resource]) -> str:
        """The parent of the kind's buckets."""
        return self.base_path(f"objects.{kind.info.plural}")

    def object_path(self, kind: type[Resource], name: str, uid: str) -> str:
        """Of one object."""
        return f"{self.kind_path(kind)}/{self._bucket_of(kind, name)}/{name},{uid}"

    def name_path(self, kind: type[Resource], name: str) -> str:
        """What holds the uid of the object that has the name."""
        return f"{self.base_path(f'names.{kind.info.plural}')}/{self._bucket_of(kind, name)}/{name}"

    def log_path(self, kind: type[Resource], host: str = "") -> str:
        """The log of the kind's changes: of all objects, or of those of one host."""
        return f"{self.base_path(f'bumps.{kind.info.plural}')}/{HOST_SHARD + host if host else ALL}"

    def _bucket_of(self, kind: type[Resource], name: str) -> str:
        return f"{zlib.crc32(name.encode()) % self.document.buckets[kind.info.plural]:02x}"


def entry_path(log: str, number: int) -> str:
    """The entry of that number."""
    return f"{log}/{ENTRY}{number:010d}"


def entry_number(path: str) -> int:
    """The number of an entry, by its path or name."""
    return int(path.rpartition("/")[2][len(ENTRY) :])


def is_entry(path: str) -> bool:
    """Whether it is the path of an entry of a log. Readers of another log list again, so nobody copies entries; and a
    log whose server has not counted up to them would never get past them."""
    return _ENTRY_PATH.search(path) is not None


def split_object(child: str) -> tuple[str, str]:
    """Name and uid of a child of a bucket; the uid is empty where it is no object's."""
    name, _, uid = child.rpartition(",")
    return (name, uid) if name else (child, "")
