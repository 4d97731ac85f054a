"""The store as the token of a host shows it: a daemon of a simulated cluster reads by the server's own table, so every
seed and every scenario shows that it needs no more (``outlive.resources.readers``)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar, cast

import msgspec

from outlive.base import Forbidden
from outlive.resources import (
    OF_A_VM,
    R,
    Reads,
    Resource,
    Verb,
    VirtualMachine,
    find_reads,
    hosts_of,
    restore_hidden,
    vm_of_object,
)
from outlive.simulation.stores import ProcessStore, WorldStore
from outlive.store import Change, Delete, Page, Selector, Store, StoreProxy, Upsert

T = TypeVar("T")


class ShownVersion(msgspec.Struct, frozen=True):
    """One version of an object: to whom it belongs, and what others of one role are shown of it."""

    whole: Resource
    hosts: tuple[str, ...]
    rest: Resource | None


class TokenStore(StoreProxy):
    """See the module. ``known``: of every object its last version, by role, shared by the stores of a cluster."""

    embedded: bool = False

    def __init__(
        self,
        store: ProcessStore,
        role: str,
        host: str,
        world: WorldStore,
        known: dict[tuple[str, str, str], ShownVersion],
        refused: Callable[[str], None],
    ) -> None:
        self._store = store
        self._role = role
        self._host = host
        self._world = world
        self._known = known
        self._refused = refused
        self._had: set[str] = set()
        """VMs that the host had to do with, as it was shown."""

    async def get(self, kind: type[R], name: str, *, fresh: bool = False) -> R:
        """What the host is shown of it; ``Forbidden`` where that is nothing."""
        found = self._find_reads(kind, "get")
        if found.own and issubclass(kind, OF_A_VM):
            vm = self._world.find(VirtualMachine, vm_of_object(kind, name))
            if vm is None or self._host not in hosts_of(vm):
                if vm_of_object(kind, name) in self._had:  # it may not have heard yet that it has it no more
                    raise Forbidden(f"{kind.kind()}/{name} is of a VM that {self._host} has nothing to do with")
                raise self._refuse(f"{kind.kind()}/{name}, and {self._host} has nothing to do with the VM")
            return await self._store.get(kind, name, fresh=fresh)
        seen = self._readable_part(found, await self._store.get(kind, name, fresh=fresh), "get")
        if seen is None:
            raise self._refuse(f"{kind.kind()}/{name}, and {self._host} has nothing to do with it")
        return seen

    async def list(
        self, kind: type[R], *, selector: Selector | None = None, limit: int = 500, token: str = ""
    ) -> Page[R]:
        """One page, of which the host may be shown less."""
        found = self._find_reads(kind, "list")
        page = await self._store.list(kind, selector=selector, limit=limit, token=token)
        if found.everything:
            return page
        parts = (self._readable_part(found, one, "list") for one in page.items)
        return Page(tuple(one for one in parts if one is not None), page.token)

    def observe(self, kind: type[R], *, selector: Selector | None = None) -> AsyncIterator[Change[R]]:
        """What belongs to the host, as long as it does."""
        found, changes = self._find_reads(kind, "watch"), self._store.observe(kind, selector=selector)
        return changes if found.everything else _Own(changes, lambda obj: self._readable_part(found, obj, "watch"))

    async def replace(self, obj: R) -> R:
        """As the store behind; what the host was not shown stays as it is."""
        return self._filter_answer(await super().replace(self._restore_hidden(obj, status=False)))

    async def replace_status(self, obj: R) -> R:
        """The same of the status half."""
        return self._filter_answer(await super().replace_status(self._restore_hidden(obj, status=True)))

    async def close(self) -> None:
        """The store is everybody's."""

    def _find_reads(self, kind: type[Resource], verb: Verb) -> Reads:
        found = find_reads(self._role, kind, verb)
        if found is None:
            raise self._refuse(f"{kind.info.plural} by {verb}, as {self._role}")
        return found

    def _refuse(self, what: str) -> Forbidden:
        self._refused(what)
        return Forbidden(f"the token may not read {what}")

    def _readable_part(self, found: Reads, obj: R, verb: Verb) -> R | None:
        if found.everything:
            return obj
        key = (self._role, obj.kind(), obj.name)
        shown = self._known.get(key)
        if shown is None or shown.whole is not obj:
            rest = found.rest(obj) if found.rest is not None else None
            self._known[key] = shown = ShownVersion(obj, hosts_of(obj), rest)
        if isinstance(obj, VirtualMachine) and self._host in shown.hosts:
            self._had.add(obj.name)
        if found.own and self._host not in shown.hosts:
            return cast("R", shown.rest) if verb in found.rest_verbs else None
        return cast("R | None", found.select_part(obj, verb, own=True))

    def _restore_hidden(self, wanted: R, *, status: bool) -> R:
        shown = self._known.get((self._role, wanted.kind(), wanted.name))
        if shown is None or shown.rest is None or self._host in shown.hosts:
            return wanted
        whole = cast("R", shown.whole)
        if whole.metadata.resource_version != wanted.metadata.resource_version:
            return wanted  # the store refuses it
        return cast("R", restore_hidden(whole, shown.rest, wanted, status=status))

    def _filter_answer(self, obj: R) -> R:
        found = find_reads(self._role, type(obj), "get")
        seen = self._readable_part(found, obj, "get") if found is not None and not isinstance(obj, OF_A_VM) else None
        return obj if seen is None else seen

    async def _read(self, call: Callable[[Store], Awaitable[T]]) -> T:
        return await call(self._store)

    async def _write(self, call: Callable[[Store], Awaitable[T]]) -> T:
        return await call(self._store)


class _Own(Generic[R]):
    """Of the changes of a kind those of objects that belong to the host; one that does no more is deleted for it."""

    def __init__(self, changes: AsyncIterator[Change[R]], part: Callable[[R], R | None]) -> None:
        self._changes = changes
        self._part = part
        self._mine: set[str] = set()

    def __aiter__(self) -> _Own[R]:
        return self

    async def __anext__(self) -> Change[R]:
        """The next change that concerns the host."""
        while True:
            change = await anext(self._changes)
            match change:
                case Upsert(obj):
                    seen = self._part(obj)
                    if seen is not None:
                        self._mine.add(obj.name)
                        return Upsert(seen)
                    if obj.name in self._mine:
                        self._mine.remove(obj.name)
                        return Delete(obj.ref)
                case Delete(ref, _):
                    if ref.name in self._mine:
                        self._mine.remove(ref.name)
                        return change
                case _:
                    return change

    async def aclose(self) -> None:
        """Stop."""
        await self._changes.aclose()  # type: ignore[attr-defined]
