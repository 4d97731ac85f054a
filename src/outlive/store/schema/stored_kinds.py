"""The storage schema of stores without a tree: it says in which version each kind is stored.

SQLite and memory store every object anew that is of another version; other stores are given every object once more, as
Kubernetes wants it after the storage version of a kind has changed.
"""

from __future__ import annotations

from collections.abc import Callable

from outlive.base import Conflict, NotFound
from outlive.resources import CLUSTER, KINDS, Cluster
from outlive.store.access import read
from outlive.store.contract import Store, list_all
from outlive.store.local import LocalStore
from outlive.store.schema.documents import SchemaDocument, load_document
from outlive.store.schema.state import SchemaState


class StoredKinds:
    """``SchemaStorage`` of such a store. What it has done is nowhere but in the objects and in ``Cluster/default``."""

    def __init__(self, store: Store, *, document: Callable[[int], SchemaDocument] = load_document) -> None:
        self._store = store
        self._document = document
        self._version: int | None = None
        """The schema to which this process has brought it, until the cluster says so."""

    async def read_state(self) -> SchemaState:
        """By which schema the store is written: nothing is ever half done."""
        if self._version is None:
            cluster = await read(self._store, Cluster, CLUSTER)
            self._version = 1 if cluster is None else cluster.schema_version
        return SchemaState(version=self._version)

    async def run(self, target: int | None = None) -> SchemaState:
        """Store the kinds anew whose stored version differs; it may be begun again at any time."""
        state = await self.read_state()
        if target is None or target == state.version:
            return state
        before, after = self._document(state.version).kinds, self._document(target).kinds
        for kind in KINDS.values():
            plural = kind.info.plural
            if before.get(plural) == after.get(plural):
                continue
            if isinstance(self._store, LocalStore):
                await self._store.rewrite(kind)
                continue
            async for one in list_all(self._store, kind):
                try:
                    await self._store.replace(one)
                except (Conflict, NotFound):
                    continue  # somebody else has just written it, or it is gone
        self._version = target
        return SchemaState(version=target)
