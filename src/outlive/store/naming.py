"""What people call objects: one resolver for every command, for the page and for completion.

An object is called by the name of its object (a VM's is its id); else by its display name, where no other has the
same; else by ``project/name``, where the project is called by its id or its name. A name of an object costs one read.
Any other name is asked of the server, which has all VMs in memory, or costs one listing where no server runs.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec

from outlive.base import BadInput, Forbidden, Invalid, NotFound, join_parts, limits
from outlive.resources import (
    CommittedResource,
    Coverage,
    Flavor,
    Hypervisor,
    ProjectQuota,
    R,
    Resource,
    VirtualMachine,
    check_name,
)
from outlive.store.access import read
from outlive.store.contract import Store, list_all

NAMES_PATH: Final = "/names"
"""Where a server says who is called so: ``kind``, and ``name`` (with ``projects``), ``prefix`` or ``ids``."""
MATCHES: Final = 50
"""Objects in one answer at most."""
SHOWN: Final = 5
"""Candidates that an error names."""


class ObjectNames(msgspec.Struct, frozen=True, omit_defaults=True):
    """An object, and what people call it."""

    id: str
    """The name of the object."""
    name: str = ""
    """Its display name; empty: it has none of its own."""
    project: str = ""

    @property
    def text(self) -> str:
        """For people: the display name with its project, and the id."""
        project = f"{self.project}/" if self.project else ""
        return f"{project}{self.name} ({self.id})" if self.name and self.name != self.id else f"{project}{self.id}"


def names_of(item: Resource) -> ObjectNames:
    """What people call the object."""
    match item:
        case VirtualMachine():
            return ObjectNames(item.name, item.spec.display_name, item.spec.project)
        case CommittedResource():
            return ObjectNames(item.name, item.spec.commitment_uuid, item.spec.project_id)
        case Flavor():
            return ObjectNames(item.name, item.spec.flavor_name)
        case Coverage():
            return ObjectNames(item.name, item.status.display_name)
    return ObjectNames(item.name)


def find_named(items: Iterable[ObjectNames], name: str, projects: Collection[str] = ()) -> list[ObjectNames]:
    """All of that display name, or of that id in one of the projects, at most ``MATCHES``."""
    found = list[ObjectNames]()
    for one in items:
        is_named = one.name == name or (bool(projects) and one.id == name)
        if is_named and (not projects or one.project in projects):
            found.append(one)
            if len(found) == MATCHES:
                break
    return found


def find_by_prefix(items: Iterable[ObjectNames], prefix: str) -> list[ObjectNames]:
    """All whose id or display name begins with that, in any case of letters, at most ``MATCHES``."""
    found, start = list[ObjectNames](), prefix.casefold()
    for one in items:
        if one.id.startswith(start) or one.name.casefold().startswith(start):
            found.append(one)
            if len(found) == MATCHES:
                break
    return found


def require_one(found: Collection[ObjectNames], text: str, kind: str, *, remedy: str) -> ObjectNames:
    """The one that was found; ``NotFound`` for none, ``BadInput`` names the candidates where there are several."""
    if not found:
        raise NotFound(f"there is no {kind} {text[:80]!r}", remedy=remedy)
    if len(found) > 1:
        candidates = join_parts(sorted(one.text for one in found), most=SHOWN)
        raise BadInput(f"{text[:80]!r} is the name of several: {candidates}", remedy="name one by project/name, or id")
    return next(iter(found))


def choose_named(items: Collection[ObjectNames], text: str, kind: str, *, remedy: str) -> ObjectNames:
    """The same among objects that are all here: by id, by display name, by ``project/name``."""
    if same := [one for one in items if one.id == text]:
        return same[0]
    found = find_named(items, text)
    if not found and "/" in text:
        project, _, name = text.partition("/")
        found = find_named(items, name, (project,))
    return require_one(found, text, kind, remedy=remedy)


async def find(store: Store, kind: type[R], text: str) -> R:
    """The object that people call so, read fresh. ``NotFound``; ``BadInput`` where several are called so."""
    if is_object_name(text) and (found := await read(store, kind, text)) is not None:
        return found
    remedy = "see outlive vm list" if kind is VirtualMachine else f"see outlive get {kind.info.plural}"
    if kind not in (VirtualMachine, CommittedResource, Flavor, Coverage):
        names = [one.name for one in (await store.list(kind, limit=limits.PAGE_OBJECTS)).items]
        near = difflib.get_close_matches(text, names, n=1)
        raise NotFound(
            f"there is no {kind.kind()} {text[:80]!r}", remedy=f"did you mean {near[0]}? {remedy}" if near else remedy
        )
    candidates = await _find_candidates(store, kind, text)
    if not candidates and "/" in text:
        project, _, name = text.partition("/")
        quotas = [one.spec async for one in list_all(store, ProjectQuota)]
        projects = frozenset({project, *(one.project_id for one in quotas if one.project_name == project)})
        candidates = await _find_candidates(store, kind, name, projects)
    one = require_one(candidates, text, "VM" if kind is VirtualMachine else kind.kind(), remedy=remedy)
    return await store.get(kind, one.id, fresh=True)


async def find_vm(store: Store, text: str) -> VirtualMachine:
    """The VM that people call so, as ``find`` does it."""
    return await find(store, VirtualMachine, text)


async def names_by_id(store: Store, kind: type[Resource], ids: Collection[str]) -> list[ObjectNames]:
    """What people call those of these objects that are there. Errors of the store.

    More than ``MATCHES`` cost one listing.
    """
    wanted = [one for one in dict.fromkeys(ids) if is_object_name(one)]
    if len(wanted) > MATCHES:
        among = frozenset(wanted)
        return [names_of(one) async for one in list_all(store, kind) if one.name in among]
    found = await _ask(store, kind, {"ids": ",".join(wanted)}) if wanted and kind is VirtualMachine else None
    if found is not None:
        return found
    return [names_of(one) for one in [await read(store, kind, name) for name in wanted] if one is not None]


async def find_subject(store: Store, text: str) -> str:
    """The name of the object of a VM or a host that people call so; a name of an object goes first. As ``find``."""
    if is_object_name(text):
        for kind in (VirtualMachine, Hypervisor):
            if await read(store, kind, text) is not None:
                return text
    try:
        return (await find_vm(store, text)).name
    except NotFound:
        return text  # what answers knows more than objects, such as hosts whose document is lost


def is_object_name(text: str) -> bool:
    """Whether an object may have that name."""
    try:
        check_name(text)
    except Invalid:
        return False
    return True


async def complete_name(store: Store, kind: type[Resource], prefix: str) -> list[str]:
    """Names that begin so, display names too, at most ``MATCHES``. Errors of the store."""
    found = await _ask(store, kind, {"prefix": prefix}) if kind in (VirtualMachine, Hypervisor) else None
    if found is None:
        found = find_by_prefix(map(names_of, (await store.list(kind, limit=limits.PAGE_OBJECTS)).items), prefix)
    names = [name for one in found for name in (one.name, one.id) if name.casefold().startswith(prefix.casefold())]
    return list(dict.fromkeys(filter(None, names)))[:MATCHES]


async def _find_candidates(
    store: Store, kind: type[Resource], name: str, projects: frozenset[str] = frozenset()
) -> list[ObjectNames]:
    parameters = {"name": name, **({"projects": ",".join(sorted(projects))} if projects else {})}
    found = await _ask(store, kind, parameters) if kind is VirtualMachine else None
    if found is not None:
        return found
    return find_named([names_of(one) async for one in list_all(store, kind)], name, projects)


async def _ask(store: Store, kind: type[Resource], parameters: dict[str, str]) -> list[ObjectNames] | None:
    """What the server answers; ``None`` where none is asked, or one that does not say."""
    from outlive.store.http import HttpStore

    if not isinstance(store, HttpStore):
        return None
    try:
        answer: Any = await store.question(NAMES_PATH, {"kind": kind.info.plural, **parameters})
    except (NotFound, Forbidden):
        return None
    return msgspec.convert(answer, list[ObjectNames])
