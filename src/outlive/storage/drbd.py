"""What ``drbdsetup status --json`` and ``show --json`` say, and what follows from it.

A document is taken whole or not at all: whatever is read of it decides about other people's data. Members that are not
read may be of any type, since each version and each fork adds some (docs/design/storage-decisions.md#reading-drbd).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Generic, TypeVar

import msgspec

from outlive.base import BadInput
from outlive.runtime import Decision

MAJORITY: Final = "majority"
"""The quorum option by which at most one side of a divided resource may write."""
SAFE_QUORUMS: Final = (MAJORITY, "all")
"""Options by which at most one side has quorum; by a number two sides may have it at once."""
UP_TO_DATE: Final = "UpToDate"
PRIMARY: Final = "Primary"
CONNECTED: Final = "Connected"
DOCUMENT_BYTES: Final = 16 * 2**20
"""The largest document that is read."""
EVENTS_STREAM: Final = "events2"
"""The promotion source that trusts ``may_promote`` of the events stream."""


class BadDocument(BadInput):
    """What ``drbdsetup`` printed is no document of the kind that was asked for."""

    code = "bad-document"


class DeviceState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One local volume of a resource."""

    quorum: bool = False
    disk_state: str = ""


class ConnectionState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The link to one peer."""

    name: str = ""
    peer_role: str = ""
    connection_state: str = ""
    peer_node_id: int | None = None
    """DRBD's number of the peer, where it is printed."""
    peer_disk_states: tuple[str, ...] = ()
    """Of the peer's volumes, as this node knows them."""


class ResourceState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One resource of ``status``, as this node sees it."""

    name: str = ""
    role: str = ""
    suspended: bool = False
    suspended_user: bool = False
    force_io_failures: bool = False
    devices: tuple[DeviceState, ...] = ()
    connections: tuple[ConnectionState, ...] = ()
    node_id: int | None = None
    """DRBD's number of this node, where it is printed."""

    @property
    def is_primary(self) -> bool:
        """Whether this node may write."""
        return self.role == PRIMARY

    @property
    def has_quorum(self) -> bool:
        """Whether every volume has; constantly true where the option is off."""
        return all(device.quorum for device in self.devices)

    @property
    def primary_peer(self) -> str:
        """A peer that is primary; empty: none."""
        return next((one.name for one in self.connections if one.peer_role == PRIMARY), "")


class DrbdResource(ResourceState, frozen=True, kw_only=True, rename="camel"):
    """A configured resource with its state."""

    quorum: str = ""
    """The option as it is configured: ``majority``, ``all``, ``off``, a number; empty: not given."""
    present: bool = False
    """Whether it had a status; one that had none has an all-default state."""
    stream_may_promote: bool | None = None
    """``may_promote`` of the events stream; ``None``: not known."""


class ResourceConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is read of one entry of ``show``."""

    resource: str = ""
    quorum: str = ""


T = TypeVar("T")


class _Kebab(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    pass


class _PrintedDevice(_Kebab, frozen=True, kw_only=True):
    quorum: bool | None = None
    disk_state: str | None = None


class _PrintedConnection(_Kebab, frozen=True, kw_only=True):
    name: str | None = None
    peer_role: str | None = None
    connection_state: str | None = None
    peer_node_id: Any = None
    peer_devices: Any = msgspec.field(default=None, name="peer_devices")


class _PrintedResource(_Kebab, frozen=True, kw_only=True):
    name: str | None = None
    role: str | None = None
    suspended: bool | None = None
    suspended_user: bool | None = None
    force_io_failures: bool | None = None
    devices: tuple[_PrintedDevice | None, ...] | None = None
    connections: tuple[_PrintedConnection | None, ...] | None = None
    node_id: Any = None


class _PrintedOptions(msgspec.Struct, frozen=True, kw_only=True):
    quorum: str | None = None


class _PrintedConfig(msgspec.Struct, frozen=True, kw_only=True):
    resource: str | None = None
    options: _PrintedOptions | None = None


def read_status(text: str) -> tuple[ResourceState, ...]:
    """The resources of ``status --json``, in its order; ``BadDocument``."""
    return tuple(_state_of(one or _PrintedResource()) for one in _STATUS.read(text))


def read_show(text: str) -> tuple[ResourceConfig, ...]:
    """The entries of ``show --json``, in its order; ``BadDocument``."""
    found = ((one or _PrintedConfig()) for one in _SHOW.read(text))
    return tuple(
        ResourceConfig(resource=one.resource or "", quorum=(one.options and one.options.quorum) or "") for one in found
    )


def merge_resources(configs: tuple[ResourceConfig, ...], states: tuple[ResourceState, ...]) -> tuple[DrbdResource, ...]:
    """One resource for each configured name; of a name that repeats the last entry counts.

    A state without a configuration is dropped: whether its quorum is enforced is not known.
    """
    by_name = {state.name: state for state in states}
    quorums = {config.resource: config.quorum for config in configs}
    merged = []
    for name, quorum in quorums.items():
        state = by_name.get(name)
        fields = {} if state is None else msgspec.structs.asdict(state)
        merged.append(DrbdResource(**{**fields, "name": name}, quorum=quorum, present=state is not None))
    return tuple(merged)


def find_contradiction(states: Iterable[ResourceState], configs: Iterable[ResourceConfig]) -> str:
    """How documents contradict themselves: by two entries of one name that say different things; empty: they do not."""
    found: dict[tuple[str, str], object] = {}
    for verb, name, entry in (
        *(("status", one.name, one) for one in states),
        *(("show", one.resource, one) for one in configs),
    ):
        if found.setdefault((verb, name), entry) != entry:
            return f"drbdsetup {verb} says two different things of {name!r}"
    return ""


class PromotionFacts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one resource's state says about who may write it."""

    primary: bool
    has_quorum: bool
    may_promote: bool
    """As the profile ``compat`` decides."""
    may_take_over: bool
    """As the profile ``hardened`` decides: nobody who wrote it before can write it any more."""


def take_over_checks(state: DrbdResource, promotion_source: str = "status") -> tuple[tuple[str, bool], ...]:
    """Whatever must hold so that nobody else can write the resource any more, in the order of explanations.

    The role of this node does not matter: a primary with quorum is the best proof. A replica that was cut off from a
    primary that others still see is marked ``Outdated`` by DRBD in the same step, so that a disk which is ``UpToDate``
    proves that nobody wrote on. A diskless node cannot tell, unless the events stream says that it may promote.
    """
    current = all(device.disk_state == UP_TO_DATE for device in state.devices)
    if promotion_source == EVENTS_STREAM and state.stream_may_promote:
        current = True
    return (
        ("has-devices", bool(state.devices)),
        ("io-works", not state.force_io_failures),
        ("has-quorum", state.has_quorum),
        ("data-current", current),
        ("no-primary-peer", not state.primary_peer),
    )


def promotion_facts(state: DrbdResource, promotion_source: str = "status") -> PromotionFacts:
    """Who may write the resource."""
    return PromotionFacts(
        primary=state.is_primary,
        has_quorum=state.has_quorum,
        may_promote=state.has_quorum and not state.primary_peer,
        may_take_over=all(holds for _, holds in take_over_checks(state, promotion_source)),
    )


def explain_writer(resource: DrbdResource) -> str:
    """Why somebody else may still write it, as far as this replica knows; empty: nobody does."""
    name, quorum = resource.name, resource.quorum or "off"
    if quorum not in SAFE_QUORUMS:
        kind = "without quorum" if quorum == "off" else f"with quorum {quorum}, which two sides may have at once"
        return f"{name} is used {kind}, so that a replica that is cut off writes on: set quorum majority"
    if promotion_facts(resource).may_take_over:
        return ""
    if not resource.devices or resource.force_io_failures:
        return f"{name} is not usable here"
    if not resource.has_quorum:
        return f"{name} has no quorum here"
    if resource.primary_peer:
        return f"{name} is in use on {resource.primary_peer}"
    return f"the data of {name} is not up to date here"


class _ArrayReader(Generic[T]):
    """Reads an array of one kind of entries."""

    def __init__(self, verb: str, entries: Any) -> None:
        self._verb = verb
        self._decoder = msgspec.json.Decoder(entries)

    def read(self, text: str) -> tuple[T | None, ...]:
        raw = text.encode("utf-8", "surrogatepass")
        if len(raw) > DOCUMENT_BYTES:
            raise BadDocument(f"drbdsetup {self._verb} printed {len(raw)} bytes", remedy=f"at most {DOCUMENT_BYTES}")
        try:
            found: tuple[T | None, ...] | None = self._decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise BadDocument(
                f"drbdsetup {self._verb} printed what is not understood: {error}",
                remedy=f"run drbdsetup {self._verb} --json by hand",
            ) from None
        return found or ()


_STATUS: Final[_ArrayReader[_PrintedResource]] = _ArrayReader("status", tuple[_PrintedResource | None, ...] | None)
_SHOW: Final[_ArrayReader[_PrintedConfig]] = _ArrayReader("show", tuple[_PrintedConfig | None, ...] | None)


def _state_of(printed: _PrintedResource) -> ResourceState:
    return ResourceState(
        name=printed.name or "",
        role=printed.role or "",
        suspended=bool(printed.suspended),
        suspended_user=bool(printed.suspended_user),
        force_io_failures=bool(printed.force_io_failures),
        devices=tuple(
            DeviceState(quorum=bool(one and one.quorum), disk_state=(one and one.disk_state) or "")
            for one in printed.devices or ()
        ),
        connections=tuple(_connection_of(one or _PrintedConnection()) for one in printed.connections or ()),
        node_id=_parse_whole_number(printed.node_id),
    )


def _connection_of(printed: _PrintedConnection) -> ConnectionState:
    peers = printed.peer_devices if isinstance(printed.peer_devices, list) else []
    disks = [one.get("peer-disk-state") for one in peers if isinstance(one, dict)]
    return ConnectionState(
        name=printed.name or "",
        peer_role=printed.peer_role or "",
        connection_state=printed.connection_state or "",
        peer_node_id=_parse_whole_number(printed.peer_node_id),
        peer_disk_states=tuple(disk if isinstance(disk, str) else "" for disk in disks),
    )


def _parse_whole_number(value: object) -> int | None:
    """A number of a node; these are not read for any pinned decision, so that nonsense is no number."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


class ParseInput(msgspec.Struct, frozen=True, kw_only=True):
    """A document that a command printed."""

    document: str


class ParsedStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Resources in the order of the document."""

    resources: tuple[ResourceState, ...]


class ParsedShow(msgspec.Struct, frozen=True, kw_only=True):
    """Entries in the order of the document."""

    configs: tuple[ResourceConfig, ...]


class MergeInput(msgspec.Struct, frozen=True, kw_only=True):
    """What both documents said."""

    configs: tuple[ResourceConfig, ...] = ()
    states: tuple[ResourceState, ...] = ()


class MergedResources(msgspec.Struct, frozen=True, kw_only=True):
    """One resource for each configured name."""

    resources: tuple[DrbdResource, ...]


class FactsInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A resource, and where promotability is read."""

    state: DrbdResource
    promotion_source: str = "status"


PARSE_STATUS: Final[Decision[ParseInput, ParsedStatus]] = Decision(
    "storage.parse_status",
    lambda given: ParsedStatus(resources=read_status(given.document)),
    ParseInput,
    ParsedStatus,
    "The resources that drbdsetup status --json names",
    nulls_are_absent=True,
)
PARSE_SHOW: Final[Decision[ParseInput, ParsedShow]] = Decision(
    "storage.parse_show",
    lambda given: ParsedShow(configs=read_show(given.document)),
    ParseInput,
    ParsedShow,
    "The quorum option of each resource that drbdsetup show --json names",
    nulls_are_absent=True,
)
MERGE: Final[Decision[MergeInput, MergedResources]] = Decision(
    "storage.merge",
    lambda given: MergedResources(resources=merge_resources(given.configs, given.states)),
    MergeInput,
    MergedResources,
    "Configured resources with their states",
    nulls_are_absent=True,
)
FACTS: Final[Decision[FactsInput, PromotionFacts]] = Decision(
    "storage.facts",
    lambda given: promotion_facts(given.state, given.promotion_source),
    FactsInput,
    PromotionFacts,
    "Who may write a resource, as far as this node knows",
    nulls_are_absent=True,
)


# The events stream of DRBD: what ``drbdsetup events2`` prints, line by line.
#
# Of it only ``may_promote`` is used, which no status prints, and that something has changed. Until the first dump is
# complete, and after a line that is not understood, nothing is known.

ACTIONS: Final = frozenset({"exists", "create", "change", "destroy", "rename", "call", "response"})
DUMP_ENDS: Final = "-"
QUIET_OBJECTS: Final = frozenset({"peer-device", "path", "helper"})
"""Objects whose changes say nothing about who may write."""
RESOURCES_MOST: Final = 100_000


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line: what happened to which object, and the members that are given."""

    action: str
    object: str
    members: dict[str, str] = {}


class BadEvent(BadInput):
    """A line of the events stream that is none."""

    code = "bad-event"


def read_event(line: str) -> EventLine:
    """The line, with or without a time before it; ``BadEvent``. Members that nobody knows are kept as they are."""
    words = line.split()
    if words and words[0][:1].isdigit():
        words = words[1:]
    if len(words) < 2 or words[0] not in ACTIONS:
        raise BadEvent(f"{line[:120]!r} is no event of DRBD", remedy="is drbdsetup events2 another version?")
    members = {}
    for word in words[2:]:
        name, colon, value = word.partition(":")
        if not colon:
            raise BadEvent(f"{word[:80]!r} is no member of an event", place=line[:120])
        members[name] = value
    if words[1] != DUMP_ENDS and "name" not in members and words[1] in ("resource", "device", "connection"):
        raise BadEvent("the event names no resource", place=line[:120])
    return EventLine(action=words[0], object=words[1], members=members)


class EventStream:
    """What the stream has said of each resource."""

    def __init__(self) -> None:
        self._complete = False
        self._may_promote: dict[str, bool | None] = {}

    def reset(self) -> None:
        """Forget everything: the stream ended, or was not understood."""
        self._complete = False
        self._may_promote.clear()

    def may_promote(self, resource: str) -> bool | None:
        """Whether DRBD says that the resource may be promoted here; ``None``: not known."""
        return self._may_promote.get(resource) if self._complete else None

    def take(self, line: str) -> bool:
        """Take a line over. True if it may change what is to be done. ``BadEvent``: nothing is known any more."""
        try:
            event = read_event(line)
        except BadEvent:
            self.reset()
            raise
        if event.object == DUMP_ENDS:
            self._complete = True
            return True
        name = event.members.get("name", "")
        if event.object == "resource":
            self._take_resource(event, name)
        return self._complete and event.object not in QUIET_OBJECTS

    def _take_resource(self, event: EventLine, name: str) -> None:
        if event.action == "destroy":
            self._may_promote.pop(name, None)
        elif event.action == "rename":
            known = self._may_promote.pop(name, None)
            self._may_promote[event.members.get("new_name", "")] = known
        elif (said := event.members.get("may_promote")) is not None:
            self._may_promote[name] = {"yes": True, "no": False}.get(said)
        else:
            self._may_promote.setdefault(name, None)
        if len(self._may_promote) > RESOURCES_MOST:
            self.reset()
