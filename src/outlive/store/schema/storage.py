"""What a store offers to the process that changes its storage schema."""

from __future__ import annotations

from typing import Protocol

from outlive.resources import Cluster
from outlive.store.schema.state import SchemaState


class SchemaStorage(Protocol):
    """Changes the schema of one store. Whatever ends in the middle is finished by the next call, by anybody."""

    async def read_state(self) -> SchemaState:
        """By which schema the store is written, and whether a change is under way."""
        ...

    async def run(self, target: int | None = None) -> SchemaState:
        """Finish what is under way, then go to ``target``; the state afterwards. ``Unavailable``: call it again."""
        ...


def active_schema(store: object, cluster: Cluster | None) -> int:
    """The schema by which this process works: of a store with a tree the one with which it began, else that of the
    cluster. 0: it is not known yet."""
    view = getattr(store, "schema", None)
    if view is not None:
        return int(view.first)
    return 0 if cluster is None else cluster.schema_version
