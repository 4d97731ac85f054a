"""Reads: one object by its name, pages in name order, and all objects of a kind.

After everything that is read it is confirmed that the layout counts by which it was looked for: an object that was
moved meanwhile is not taken for one that was deleted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from typing import Final

from outlive.base import Invalid, NotUnderstood, Unavailable, limits
from outlive.resources import R, Resource, check_name
from outlive.store.contract import Malformed, Page
from outlive.store.selectors import Selector
from outlive.store.zookeeper.client import Found, ZooKeeperClient
from outlive.store.zookeeper.layout import TreeLayout, split_object
from outlive.store.zookeeper.rows import Row, RowCache, decode_selected, row_of, state_of
from outlive.store.zookeeper.schema_view import SchemaView

LISTINGS: Final = 8
"""Listings in pages of which the names are remembered until the next page."""

NONSENSE_NAME: Final = "write the uid of its object into that znode, or delete it: docs/how-to/zookeeper.md#nonsense"
"""What helps where a name leads to no object."""

Places = list[tuple[str, str]]
"""Names and uids."""
States = list[tuple[bytes, int] | None]
"""JSON and version of objects; ``None`` for one that is gone."""


class ObjectReader:
    """Reads the objects of a store. All of it raises ``LayoutChanged`` where another schema counts by now."""

    def __init__(self, client: ZooKeeperClient, schema: SchemaView) -> None:
        self._client = client
        self._schema = schema
        self.cache = RowCache()
        self._listings: OrderedDict[tuple[str, str], Places] = OrderedDict()

    def forget(self) -> None:
        """Nothing counts any more that was read before."""
        self.cache.clear()
        self._listings.clear()

    async def get_many(self, paths: Sequence[str], layout: TreeLayout, *, fresh: bool = False) -> list[Found | None]:
        """Data and state of each."""
        *found, schema = await self._client.get_many((*paths, self._schema.path), fresh=fresh)
        self._schema.confirm(layout, schema)  # it was read after them
        return found

    async def read_row(self, kind: type[Resource], name: str, *, fresh: bool) -> Row | None:
        """The object of that name as it is stored; ``None`` if there is none."""
        try:
            check_name(name)
        except Invalid:
            return None
        layout = await self._schema.get_layout()
        hint = self.cache.get(kind, name)
        if hint is not None:  # who has the name has the znode: both are made and removed together
            (found,) = await self.get_many((layout.object_path(kind, name, hint.uid),), layout, fresh=fresh)
            if found is not None:
                return self.cache.keep(kind, name, row_of(hint.uid, found))
            self.cache.forget(kind, name)
        (named,) = await self.get_many((layout.name_path(kind, name),), layout, fresh=fresh)
        if named is None:
            return None
        uid = named[0].decode("ascii", "replace")
        (found,) = await self.get_many((layout.object_path(kind, name, uid),), layout)
        if found is None:  # it went since; what came after it counts
            (named,) = await self.get_many((layout.name_path(kind, name),), layout, fresh=fresh)
            if named is None:
                return None
            if named[0].decode("ascii", "replace") == uid:  # both go together, so this one says nonsense
                what = f"{layout.name_path(kind, name)} names {uid[:80]!r}, which no {kind.kind()} of that name is"
                raise NotUnderstood(what, remedy=NONSENSE_NAME)
            raise Unavailable(f"{kind.kind()}/{name} is being replaced", remedy="try again")
        return self.cache.keep(kind, name, row_of(uid, found))

    async def read_page(self, kind: type[R], selector: Selector | None, limit: int, token: str) -> Page[R]:
        """One page in name order; its names are of the moment of the first page."""
        layout = await self._schema.get_layout()
        names = self._listings.pop((kind.kind(), token), None) if token else None
        if names is None:
            names = [place for place in await self._list_places(kind, layout) if place[0] > token]
        items: list[R] = []
        malformed: list[Malformed] = []
        last = ""
        for start in range(0, len(names), limits.YIELD_OBJECTS):
            part = names[start : start + limits.YIELD_OBJECTS]
            rows = await self.read_objects(kind, part, layout)
            for number, ((name, uid), row) in enumerate(zip(part, rows, strict=True)):
                found = decode_selected(kind, name, uid, *row, selector) if row is not None else None
                if found is not None and len(items) + len(malformed) == limit:
                    self._listings[kind.kind(), last] = names[start + number :]
                    while len(self._listings) > LISTINGS:
                        self._listings.popitem(last=False)
                    return Page(tuple(items), last, tuple(malformed))
                if isinstance(found, Malformed):
                    malformed.append(found)
                elif found is not None:
                    items.append(found)
                last = name
            await asyncio.sleep(0)
        return Page(tuple(items), malformed=tuple(malformed))

    async def read_rows(self, kind: type[Resource], layout: TreeLayout) -> AsyncIterator[tuple[str, str, bytes, int]]:
        """Name, uid, JSON and version of every object of the kind, in name order. ``Unavailable`` where another session
        begins meanwhile, whose server may lag behind."""
        places = await self._list_places(kind, layout)
        session = self._client.session
        for start in range(0, len(places), limits.YIELD_OBJECTS):
            part = places[start : start + limits.YIELD_OBJECTS]
            states = await self.read_objects(kind, part, layout)
            if self._client.session != session:
                raise Unavailable("the session was replaced while it listed", remedy="list again")
            for (name, uid), row in zip(part, states, strict=True):
                if row is not None:
                    yield name, uid, *row

    async def read_objects(self, kind: type[Resource], places: Sequence[tuple[str, str]], layout: TreeLayout) -> States:
        """JSON and version of the objects of these names and uids, in their order; ``None`` where one is gone."""
        found = await self.get_many([layout.object_path(kind, name, uid) for name, uid in places], layout)
        return [None if one is None else state_of(one) for one in found]

    async def _list_places(self, kind: type[Resource], layout: TreeLayout) -> Places:
        """Names and uids of all objects of the kind, in name order."""
        root = layout.kind_path(kind)
        buckets = (await self._client.list_children((root,), fresh=True))[0] or []
        found = await self._client.list_children([f"{root}/{bucket}" for bucket in buckets])
        await self.get_many((), layout)
        return sorted(split_object(child) for children in found for child in children or ())
