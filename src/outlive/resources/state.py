"""A whole cluster in one file: what ``outlive dump`` writes and ``--state`` reads.

Any answer can be reproduced from it, offline (docs/reference/cli.md#state-files). It is no backup: it holds no object
of ``NOT_DUMPED``, and its first line says so. Objects are in the order of kind and name. It is taken object by object:
complete but for these kinds, and no snapshot of one instant. The digest names the *facts* of a state: it ignores
versions, uids, times and what is merely derived, so that the same cluster dumped twice has the same digest.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, Union

import msgspec

from outlive.base import BadInput, Invalid, collector_paused
from outlive.resources import (
    API_VERSION,
    KINDS,
    Console,
    Coverage,
    DecisionRecord,
    Descheduling,
    Election,
    Event,
    Fault,
    HostLog,
    HypervisorUsage,
    Knowledge,
    Membership,
    Notification,
    PlacementHistory,
    Resource,
    Secret,
    Token,
    UsageHistory,
)
from outlive.resources.codec import decode_as, encode
from outlive.resources.digest import Facts, any_facts, digest_of, facts_of, facts_type
from outlive.resources.documents import Problems, json_error
from outlive.resources.memberships import RenewalSight

STATE_VERSION: Final = 1
NOT_DUMPED: Final[tuple[type[Resource], ...]] = (Console, Election, Event, HostLog, Secret, Token)
"""Kinds that a state file leaves out: what says nothing about the cluster itself, and what opens it."""
NOT_DIGESTED: Final[tuple[type[Resource], ...]] = (
    Console,
    Coverage,
    DecisionRecord,
    Descheduling,
    Election,
    Event,
    Fault,
    HostLog,
    HypervisorUsage,
    Knowledge,
    Membership,
    Notification,
    PlacementHistory,
    Secret,
    UsageHistory,
)
"""Kinds that do not count in a digest: derived from others, or changing all the time."""
DUMPED: Final[tuple[type[Resource], ...]] = tuple(kind for kind in KINDS.values() if kind not in NOT_DUMPED)
"""Kinds of a state file."""
DIGESTED: Final[tuple[type[Resource], ...]] = tuple(kind for kind in KINDS.values() if kind not in NOT_DIGESTED)
"""Kinds that count in a digest."""
_NOT_DIGESTED_FACTS: Final = frozenset(map(facts_type, NOT_DIGESTED))
_AnyKind: TypeAlias = Union[DUMPED]  # type: ignore[valid-type]  # noqa: UP007


_LEFT_OUT: Final = tuple(kind.kind() for kind in NOT_DUMPED)


class State(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A cluster at about one time."""

    taken_at: datetime
    sight: RenewalSight | None = None
    """What was seen of the hosts' renewals at that time; absent in files of older versions."""
    objects: tuple[Resource, ...] = ()
    version: int = STATE_VERSION


class _StateHead(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    api_version: str = API_VERSION
    kind: Literal["State"] = "State"
    version: int = STATE_VERSION
    leaves_out: tuple[str, ...] = ()
    """Kinds, for people."""
    taken_at: datetime
    sight: RenewalSight | None = None


class _Wire(_StateHead, frozen=True, kw_only=True):
    objects: tuple[msgspec.Raw, ...] = ()


class _Whole(_StateHead, frozen=True, kw_only=True):
    objects: tuple[_AnyKind, ...] = ()


class _WholeFacts(_StateHead, frozen=True, kw_only=True):
    objects: tuple[any_facts(DUMPED), ...] = ()  # type: ignore[valid-type]


def encode_state(state: State) -> bytes:
    """The state file: JSON, one object a line."""
    head = encode(_Wire(version=state.version, leaves_out=_LEFT_OUT, taken_at=state.taken_at, sight=state.sight))
    head = head.removesuffix(b"[]}")
    body = b",\n".join(encode(item) for item in sorted(state.objects, key=_sort_key))
    return head + b"[\n" + body + b"\n]}\n" if body else head + b"[]}\n"


def decode_state(raw: bytes, place: str = "state file") -> State:
    """The state of a file; ``BadInput`` names the line or the object that is wrong."""
    with collector_paused():
        whole: _Whole | None = _decode_whole(raw, _Whole)
        if whole is None:
            return _decode_part_by_part(raw, place)
        return State(taken_at=whole.taken_at, sight=whole.sight, objects=whole.objects, version=whole.version)


def _decode_whole(raw: bytes, kind: Any) -> Any:
    """The file as that type; ``None`` where anything is wrong with it."""
    try:
        whole = decode_as(kind, raw)
    except (Invalid, RecursionError):
        return None
    names = {(type(item), item.metadata.name) for item in whole.objects}
    return whole if _is_readable(whole) and len(names) == len(whole.objects) else None


def _is_readable(wire: _StateHead) -> bool:
    return wire.api_version == API_VERSION and wire.version <= STATE_VERSION


def _decode_part_by_part(raw: bytes, place: str) -> State:
    """The same more slowly: every problem is reported with the object that has it."""
    try:
        wire = msgspec.json.decode(raw, type=_Wire)
    except msgspec.ValidationError as error:
        remedy = "write one with: outlive dump > state.json"
        raise BadInput(f"not a state file: {error}", place=place, remedy=remedy) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message, line = json_error(error, raw)
        remedy = "the file is broken or cut off: dump it again"
        raise BadInput(f"not JSON: {message}", place=f"{place}:{line}", remedy=remedy) from None
    if not _is_readable(wire):
        what = f"{wire.api_version} version {wire.version}"
        remedy = f"this Outlive reads {API_VERSION} version {STATE_VERSION}; use the newer Outlive that wrote it"
        raise BadInput(f"a state file of {what}", place=place, remedy=remedy)
    return State(
        taken_at=wire.taken_at, sight=wire.sight, objects=_decode_objects(wire.objects, place), version=wire.version
    )


def _decode_objects(raws: tuple[msgspec.Raw, ...], place: str) -> tuple[Resource, ...]:
    problems = Problems()
    objects: list[Resource] = []
    seen: set[tuple[str, str]] = set()
    for index, raw in enumerate(raws):
        try:
            item: Resource = decode_as(_AnyKind, raw)
        except BadInput as error:
            problems.add(f"{place}: objects[{index}]", error.message, "correct or leave out the object")
            continue
        key = _sort_key(item)
        if key in seen:
            problems.add(f"{place}: objects[{index}]", f"{key[0]} {item.name!r} is there twice", "keep one of them")
        seen.add(key)
        objects.append(item)
    problems.check()
    return tuple(objects)


def read_facts(raw: bytes, place: str = "state file") -> tuple[Facts, ...]:
    """The facts of the state of a file, which is all that a digest or a check needs.

    They are read without making the objects, so that it takes half the time; members that no kind has are passed over.
    ``BadInput`` names the line or the object that is wrong.
    """
    with collector_paused():
        whole: _WholeFacts | None = _decode_whole(raw, _WholeFacts)
        if whole is None:
            return facts_of(decode_state(raw, place).objects, DIGESTED)
        return tuple(item for item in whole.objects if type(item) not in _NOT_DIGESTED_FACTS)


def state_facts(objects: Iterable[Resource]) -> tuple[Facts, ...]:
    """The facts of objects that were read in another way."""
    with collector_paused():
        return facts_of(objects, DIGESTED)


def state_digest(objects: Iterable[Resource]) -> str:
    """``sha256:…`` over the canonical JSON of the objects' facts, in the order of kind and name.

    Left out: kinds of ``NOT_DIGESTED``, versions, uids, generations and all times
    (docs/reference/cli.md#state-files).
    """
    with collector_paused():
        return digest_of(facts_of(objects, DIGESTED))


def _sort_key(item: Resource) -> tuple[str, str]:
    return (item.kind(), item.metadata.name)
