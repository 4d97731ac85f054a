"""``schema.plan``: which paths are renamed, created and deleted to take a tree from one version to another.

A schema maps sections to keys and keys to paths. ``base`` has whole paths; the keys of the other sections are there
once for each instance, below ``base``'s path of the section (docs/design/schema-decisions.md#schemaplan).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final

import msgspec

from outlive.base import BadInput, Conflict

BASE: Final = "base"
INSTANCE_SECTIONS: Final[Mapping[str, int]] = {
    "node": 1,
    "domain": 1,
    "network": 1,
    "osd": 1,
    "pool": 1,
    "volume": 2,
    "snapshot": 3,
}
"""Sections with instances, in the order in which they are changed, and how deep below their path an instance lies."""
SECTIONS: Final = (BASE, *INSTANCE_SECTIONS)

Sections = Mapping[str, Mapping[str, str]]
"""Section → key → path."""
Op = tuple[str, ...]
"""``("rename", from, to)``, ``("create", path, value)`` or ``("delete", path)``."""


class UnknownVersion(BadInput):
    """A version that no document describes."""

    code = "unknown_version"


class PathConflict(Conflict):
    """A path that is to be renamed to one that exists."""

    code = "conflict"


class SchemaPlanInput(msgspec.Struct, frozen=True, kw_only=True):
    """A tree, and the two versions between which it is to go."""

    start: int = msgspec.field(name="from")
    """The version of the tree."""
    to: int
    """The version that it is to have; a lower one goes back."""
    schemas: dict[str, dict[str, dict[str, str]]]
    """Version as text → section → key → path; with ``from``, ``to`` and every version between them."""
    tree: tuple[str, ...] = ()
    """All paths."""
    defaults: dict[str, str] = {}
    """``section.key`` → the value that a created path has; without one it is empty."""


class SchemaPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is done, in this order."""

    ops: tuple[Op, ...] = ()
    """Each is ``["rename", from, to]`` with everything below, ``["create", path, value]``, or ``["delete", path]`` with
    everything below."""


def plan_schema(given: SchemaPlanInput) -> SchemaPlan:
    """Return the operations, one pair of neighbouring versions after the other.

    ``UnknownVersion``: a version on the way has no document. ``PathConflict``: a rename meets a path that exists.
    """
    step = 1 if given.to >= given.start else -1
    on_the_way: list[Sections] = []
    for version in range(given.start, given.to + step, step):  # ends at the first version without a document
        schema = given.schemas.get(str(version))
        if schema is None:
            raise UnknownVersion(f"there is no schema {version}", remedy="install the version of Outlive that has it")
        on_the_way.append(schema)
    tree = PathTree(given.tree)
    ops: list[Op] = []
    for old, new in pairwise(on_the_way):
        ops += _plan_renames(tree, old, new)
        ops += _plan_creates(tree, old, new, given.defaults)
        ops += _plan_deletes(tree, old, new)
    return SchemaPlan(ops=tuple(ops))


class _PathNode:
    """One path of a tree: what lies directly below it, and whether it is there itself."""

    __slots__ = ("below", "is_there")

    def __init__(self) -> None:
        self.below: dict[str, _PathNode] = {}
        self.is_there = False


class PathTree:
    """Which paths there are. The parents of a path that was given are there as well, as in every tree; the parents of
    one that was renamed or created are not, so that they get their own values."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._top = _PathNode()
        for path in ("", *paths):
            place = self._top
            for part in path.split("/"):
                place = place.below.setdefault(part, _PathNode())
                place.is_there = True

    def __contains__(self, path: str) -> bool:
        place = self._find(path)
        return place is not None and place.is_there

    def list_instances(self, path: str, depth: int) -> list[str]:
        """The paths that lie so many levels below."""
        place = self._find(path)
        level = [] if place is None else [(path, place)]
        for _ in range(depth):
            level = [(f"{above}/{name}", one) for above, place in level for name, one in place.below.items()]
        return [path for path, _ in level]

    def rename(self, old: str, new: str) -> None:
        """Move everything at and below ``old``."""
        moved = self._remove(old)
        above, _, name = new.rpartition("/")
        self._make(above).below[name] = moved

    def create(self, path: str) -> None:
        """Add one path."""
        self._make(path).is_there = True

    def delete(self, path: str) -> None:
        """Remove everything at and below ``path``."""
        self._remove(path)

    def _find(self, path: str) -> _PathNode | None:
        place: _PathNode | None = self._top
        for part in path.split("/"):
            place = None if place is None else place.below.get(part)
        return place

    def _make(self, path: str) -> _PathNode:
        place = self._top
        for part in path.split("/"):
            place = place.below.setdefault(part, _PathNode())
        return place

    def _remove(self, path: str) -> _PathNode:
        above, _, name = path.rpartition("/")
        found = (self._find(above) if "/" in path else self._top) or self._top
        return found.below.pop(name)


def _section_roots(tree: PathTree, section: str, *schemas: Sections) -> list[str]:
    """What the paths of a section are appended to: its instances, below the first schema's path that has one."""
    if section == BASE:
        return [""]
    base = next((found for schema in schemas if (found := schema.get(BASE, {}).get(section)) is not None), None)
    return [] if base is None else tree.list_instances(base, INSTANCE_SECTIONS[section])


def _depth_key(path: str) -> tuple[int, str]:
    return path.count("/"), path


def _plan_renames(tree: PathTree, old: Sections, new: Sections) -> Iterator[Op]:
    for section in SECTIONS:
        paths = new.get(section, {})
        moved = {key: path for key, path in old.get(section, {}).items() if paths.get(key, path) != path}
        roots = _section_roots(tree, section, new, old)
        pairs = [(f"{root}{path}", f"{root}{paths[key]}") for root in roots for key, path in moved.items()]
        for source, target in sorted(pairs, key=lambda pair: _depth_key(pair[0])):
            if source not in tree:
                continue
            if target in tree:
                raise PathConflict(f"{source} cannot be renamed to {target}: both exist", remedy="remove one of them")
            tree.rename(source, target)
            yield ("rename", source, target)


def _plan_creates(tree: PathTree, old: Sections, new: Sections, defaults: Mapping[str, str]) -> Iterator[Op]:
    for section in SECTIONS:
        added = {key: path for key, path in new.get(section, {}).items() if key not in old.get(section, {})}
        roots = _section_roots(tree, section, new)
        pairs = [(f"{root}{path}", f"{section}.{key}") for root in roots for key, path in added.items()]
        for path, name in sorted(pairs, key=lambda pair: _depth_key(pair[0])):
            if path not in tree:
                tree.create(path)
                yield ("create", path, defaults.get(name, ""))


def _plan_deletes(tree: PathTree, old: Sections, new: Sections) -> Iterator[Op]:
    for section in reversed(SECTIONS):
        dropped = [path for key, path in old.get(section, {}).items() if key not in new.get(section, {})]
        roots = _section_roots(tree, section, new, old)
        paths = [f"{root}{path}" for root in roots for path in dropped]
        for path in sorted(paths, key=_depth_key, reverse=True):
            if path in tree:
                tree.delete(path)
                yield ("delete", path)
