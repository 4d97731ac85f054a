"""Moves all objects of a cluster from its embedded store to an API server or an ensemble
(docs/how-to/kubernetes.md#move, docs/how-to/zookeeper.md#move).

The new store gives every object another uid, and its generations begin anew. So each object is created first, and
compared once the new uids of all are known: what names the uid of another object then names the new one, in fields and
in texts. Uids of objects that are gone stay as they are, and still name nothing. A host whose Membership has another
uid than it remembers takes over what it runs under a new epoch, as after a restore (``node.membership.join``).

Nobody decides on either store meanwhile: the caller has marked the old one, and the keys of the new one are withheld
from its controllers. So a move that was interrupted is repeated: what is there is compared, what differs is written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from outlive.base import Clock, Refused, join_parts
from outlive.drivers.shared_keys import StoreMove
from outlive.resources import (
    CLUSTER,
    CLUSTER_ID_ANNOTATION,
    KINDS,
    Cluster,
    Membership,
    ObjectMeta,
    Pause,
    Resource,
    Token,
    cluster_id,
    decode,
    encode,
)
from outlive.runtime import OrderedTaskGroup
from outlive.store import Store, compare_and_swap, list_all

WORKERS: Final = 16
"""Objects that are written at the same time."""
NAMED: Final = 6
FIRST: Final = ("Membership",)
LAST: Final = ("Event", "Fault", "DecisionRecord")
"""Kinds that name the uids of others: they are written once, if those are known by then."""
_UUID: Final = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_OBSERVED: Final = re.compile(rb'("(?:observedGeneration|usageObservedGeneration)":)(\d+)')
NEW_GENERATION: Final = 1
"""Of an object that was just created."""

_replace = msgspec.structs.replace
T = TypeVar("T")
Key = tuple[str, str]
"""Kind and name."""


def check_at_rest(objects: Iterable[Resource]) -> None:
    """``Refused`` while a host could be fenced, or end its own VMs, since it does not find the new store at once."""
    found = list(objects)
    held = [one for one in found if isinstance(one, Membership) and one.record.state == "Held"]
    if not held:
        return
    cluster = next((one for one in found if isinstance(one, Cluster)), None)
    if cluster is None or not cluster.spec.disarmed or cluster.spec.disarmed_until is not None:
        raise Refused(
            f"{join_parts([one.name for one in held], most=NAMED)} would be fenced, while they do not find "
            "the new store",
            remedy="start outlive up again; then outlive disarm --cluster --mode freeze, without an end",
        )
    if armed := [one.name for one in held if one.record.guard.armed]:
        raise Refused(
            f"the guards of {join_parts(armed, most=NAMED)} are still armed: they would end all VMs there",
            remedy="start outlive up again, and wait until outlive disarm --cluster says that all guards are disarmed",
        )


def move_object(obj: Resource, uids: Mapping[str, str], move: StoreMove) -> Resource:
    """The object as the new store is to have it, but for what only that store says of it.

    ``uids``: old → new. A token keeps the beginning of its time. What a host saw of others' silence is not moved.
    """
    meta = obj.metadata
    if isinstance(obj, Cluster):
        pause = obj.status.pause or Pause(since=move.since)
        obj = _replace(obj, status=obj.status.with_incarnation(move.incarnation, pause))
    elif isinstance(obj, Membership):
        obj = _replace(obj, record=_replace(obj.record, silent=()))
    elif isinstance(obj, Token):
        obj = _replace(obj, issued=obj.issued or meta.creation_timestamp)
    raw = _UUID.sub(lambda found: uids.get(found[0].decode(), found[0].decode()).encode(), encode(_strip_metadata(obj)))

    def renumber_generation(found: re.Match[bytes]) -> bytes:
        number = NEW_GENERATION if int(found[2]) == meta.generation else 0
        return found[1] + str(number).encode()

    moved = decode(type(obj), _OBSERVED.sub(renumber_generation, raw))
    if not isinstance(obj, Cluster):
        return moved
    annotations = {**moved.metadata.annotations, CLUSTER_ID_ANNOTATION: cluster_id(obj)}  # never the new uid
    return _replace(moved, metadata=_replace(moved.metadata, annotations=annotations))


def is_same(found: Resource, wanted: Resource, half: str = "") -> bool:
    """Whether both say the same; ``half``: ``spec`` (with metadata) or ``status`` alone."""
    if half == "status":
        return bool(getattr(found, "status", None) == getattr(wanted, "status", None))
    if half == "spec" and found.has_status():
        found = msgspec.structs.replace(found, status=wanted.status)  # type: ignore[attr-defined]
    return _strip_metadata(found) == _strip_metadata(wanted)


def _strip_metadata(obj: Resource) -> Resource:
    """Without what only its store says."""
    meta = obj.metadata
    kept = ObjectMeta(
        name=meta.name, labels=meta.labels, annotations=meta.annotations, finalizers=tuple(sorted(meta.finalizers))
    )
    return _replace(obj, metadata=kept)


async def read_objects(store: Store) -> list[Resource]:
    """Every object of every kind. ``NotUnderstood`` names one that cannot be read: nothing is left behind."""
    return [one for kind in KINDS.values() async for one in list_all(store, kind, whole=True)]


def check_target(there: Iterable[Resource], ours: Collection[Key]) -> None:
    """``Refused`` where the new store has objects that are not ``ours``."""
    if others := sorted(f"{one.kind()}/{one.name}" for one in there if _object_key(one) not in ours):
        raise Refused(
            f"the new store has other objects: {join_parts(others, most=NAMED)}",
            remedy="delete them if they are not needed, or move the cluster to another place",
        )


async def move_objects(
    objects: Sequence[Resource],
    target: Store,
    move: StoreMove,
    clock: Clock,
    progress: Callable[[int], None] = lambda done: None,
) -> Counter[str]:
    """Have all objects in the new store, and read them back; how many there are of each kind.

    ``Refused`` where in the end one is not as it should be; errors of the store: repeat it.
    """
    objects = _sort_objects(objects)
    found = {_object_key(one): one for one in await read_objects(target)}
    check_target(found.values(), {_object_key(one) for one in objects})
    completed = 0
    uids = {one.metadata.uid: found[_object_key(one)].metadata.uid for one in objects if _object_key(one) in found}

    async def create(one: Resource) -> None:
        kind, name = type(one), one.name
        wanted = move_object(one, uids, move)
        made = await compare_and_swap(
            target, kind, name, lambda there: wanted if there is None else None, clock=clock, cache=lambda _: None
        )
        assert made is not None
        found[_object_key(one)] = made
        uids[one.metadata.uid] = made.metadata.uid

    async def complete(one: Resource) -> None:
        wanted, there = move_object(one, uids, move), found[_object_key(one)]
        if not is_same(there, wanted, "spec"):
            there = await _write_half(target, there, wanted, clock, "spec")
        if there.has_status() and not is_same(there, wanted, "status"):
            there = await _write_half(target, there, wanted, clock, "status")
        if one.deleting and not there.deleting:
            await target.delete(there.ref)
        nonlocal completed
        completed += 1
        progress(completed)

    await _run_for_each([one for one in objects if _object_key(one) not in found], create)
    await _run_for_each(objects, complete)
    now = {_object_key(one): one for one in await read_objects(target)}
    wrong = [
        f"{one.kind()}/{one.name}"
        for one in objects
        if (there := now.get(_object_key(one))) is None
        or there.deleting is not one.deleting
        or not is_same(there, move_object(one, uids, move))
    ]
    if wrong or len(now) != len(objects):
        others = [f"{kind}/{name}" for kind, name in now.keys() - {_object_key(one) for one in objects}]
        raise Refused(
            f"somebody else writes to the new store: {join_parts(sorted(wrong + others), most=NAMED)}",
            remedy="stop who does that, and repeat",
        )
    return Counter(one.kind() for one in objects)


def _object_key(obj: Resource) -> Key:
    return obj.kind(), obj.name


def _sort_objects(objects: Sequence[Resource]) -> list[Resource]:
    """Whom others name comes first; the cluster itself is one of them."""
    there = list(objects)
    if not any(isinstance(one, Cluster) for one in there):
        there.append(Cluster(metadata=ObjectMeta(name=CLUSTER)))
    rank = {**dict.fromkeys(FIRST, 0), **dict.fromkeys(LAST, 2)}
    return sorted(there, key=lambda one: rank.get(one.kind(), 1))


async def _write_half(target: Store, there: Resource, wanted: Resource, clock: Clock, half: Any) -> Resource:
    """The object once this half of it is as wanted."""

    def change(now: Resource | None) -> Resource | None:
        if now is None or is_same(now, wanted, half):
            return None
        meta = _replace(
            now.metadata,
            labels=wanted.metadata.labels,
            annotations=wanted.metadata.annotations,
            finalizers=wanted.metadata.finalizers,
        )
        return _replace(wanted, metadata=meta)

    done = await compare_and_swap(
        target, type(there), there.name, change, clock=clock, half=half, cache=lambda _: there
    )
    return done if done is not None else there


async def _run_for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    waiting = iter(items)

    async def run_worker() -> None:
        for item in waiting:
            await work(item)

    async with OrderedTaskGroup() as group:
        for _ in range(WORKERS):
            group.create_task(run_worker())
