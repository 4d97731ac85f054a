"""Copies of a VM: the places where it runs or ran, and what can be said of them.

A pod or a libvirt domain becomes a copy at the edge; all decisions about the network are made on copies
(docs/design/network-decisions.md#copies).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Final

import msgspec

from outlive.base import BadInput
from outlive.network.names import LAYER2, LOCALNET
from outlive.runtime import Decision

TimeText = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]
"""A time of RFC 3339 with its zone, kept as it was written."""
_Moment = Annotated[datetime, msgspec.Meta(tz=True)]
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class VmNameMissing(BadInput):
    """Nothing says what the VM is called."""

    code = "vm-name-missing"


class VmKey(msgspec.Struct, frozen=True, order=True):
    """A VM by namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PortRoute(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A route of the guest."""

    dest: str
    next_hop: str = ""


class PortAddresses(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one port of a copy has: an entry of the network annotation, read."""

    mac: str = ""
    """Required in an annotation."""
    addresses: tuple[str, ...] = ()
    """Host addresses with the subnet's mask."""
    gateways: tuple[str, ...] = ()
    """IPv4 first in dual stack."""
    routes: tuple[PortRoute, ...] = ()
    role: str | None = None
    tunnel_id: int | None = None
    ipv6_lla_gateway: str | None = None
    """The gateway's link-local address."""


class Copy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One place where a VM runs or ran."""

    id: str
    """Of a pod its uid; of a domain its run."""
    namespace: str = ""
    name: str = ""
    """Of the pod; of a domain that of its host."""
    vm: VmKey | None = None
    """``None``: a pod that is no copy of a VM."""
    hypervisor: str | None = None
    """``None``: not scheduled."""
    created: TimeText | None = None
    """``None`` counts as the oldest."""
    completed: bool = False
    host_network: bool = False
    migratable: bool = False
    """Whether addresses on a routed network follow it."""
    runs_on: str | None = None
    """Where the VM is said to run."""
    ready_at: str | None = None
    """Set on the target of a migration once the VM is active there, and for the rest of its life."""
    networks: dict[str, PortAddresses] = {}
    """By the key of the network attachment; only what can be read."""

    def __post_init__(self) -> None:
        """``ValueError`` for a time that cannot be read."""
        parse_time(self.created)


@lru_cache(maxsize=20_000)
def parse_time(text: str | None) -> datetime:
    """The time of a text, or one before all others for none; ``ValueError``."""
    if text is None:
        return _LONG_AGO
    try:
        return msgspec.convert(text, _Moment)
    except msgspec.ValidationError:
        raise ValueError(f"{text[:80]!r} is no time of RFC 3339 with its zone") from None


def age_key(copy: Copy) -> tuple[datetime, str]:
    """Sorts copies from the oldest to the newest; the id decides between equal times."""
    return parse_time(copy.created), copy.id


def is_newer(copy: Copy, other: Copy) -> bool:
    """True if the copy was created later; of two that were created in the same second neither is newer."""
    return parse_time(copy.created) > parse_time(other.created)


def find_copies(vm: VmKey | None, copies: Iterable[Copy]) -> list[Copy]:
    """The copies of a VM, oldest first; none for ``None``."""
    return sorted((copy for copy in copies if copy.vm == vm), key=age_key) if vm is not None else []


def find_siblings(copy: Copy, copies: Iterable[Copy]) -> list[Copy]:
    """The other copies of the same VM, oldest first. Names may be used again, ids are not."""
    return [other for other in find_copies(copy.vm, copies) if other.id != copy.id]


def group_by_vm(copies: Iterable[Copy]) -> dict[VmKey, list[Copy]]:
    """The copies of each VM, oldest first; pods that are no copies are left out."""
    groups: dict[VmKey, list[Copy]] = {}
    for copy in copies:
        if copy.vm is not None:
            groups.setdefault(copy.vm, []).append(copy)
    return {vm: sorted(group, key=age_key) for vm, group in groups.items()}


def find_migratable(copies: Iterable[Copy]) -> list[Copy]:
    """All copies whose addresses follow them, of all namespaces, completed ones too."""
    return [copy for copy in copies if copy.vm is not None and copy.migratable]


def is_stale(copy: Copy, siblings: Iterable[Copy]) -> bool:
    """True if the VM has moved on from this copy.

    A completed sibling never makes it stale: after a failed migration the newest copy is the one that failed, and the
    VM still runs in the older one.
    """
    if not copy.migratable:
        return False
    return copy.completed or any(is_newer(other, copy) for other in siblings if not other.completed)


def all_completed(copy: Copy, siblings: Iterable[Copy]) -> bool:
    """True if the VM runs nowhere: the copy and all its siblings are completed."""
    return copy.completed and all(other.completed for other in siblings)


def is_ready(copy: Copy, siblings: Iterable[Copy]) -> bool:
    """True if the copy may receive the VM's traffic on a routed network now."""
    if copy.host_network or not copy.migratable or is_stale(copy, siblings):
        return False
    runs_here = copy.runs_on is not None and copy.runs_on == copy.hypervisor
    return runs_here or bool(copy.ready_at)


def name_mac_owner(copy: Copy) -> str:
    """Under which name the MAC is reserved: source and target of a migration share the VM's."""
    return str(copy.vm) if copy.vm is not None else f"{copy.namespace}/{copy.name}"


class CopyQuestion(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A question about one of some copies."""

    asked: str
    """Its id."""
    copies: tuple[Copy, ...] = ()
    """Copies of other VMs, and pods that are none, may be among them."""

    def find_asked(self) -> Copy:
        """The copy that the question is about; ``BadInput`` where it is not there."""
        for copy in self.copies:
            if copy.id == self.asked:
                return copy
        raise BadInput(f"no copy has the id {self.asked[:80]!r}", remedy="asked names one of copies by its id")


class AllowedInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A copy and the topology of a network."""

    copy: Copy
    topology: str = ""


class AllowedResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Whether ports of the copy are switched over on that network."""

    allowed: bool


class CopyLifecycle(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where a copy is in the life of its VM."""

    vm: VmKey | None
    copies: tuple[str, ...]
    """All copies of the VM, oldest first."""
    siblings: tuple[str, ...]
    """The same without the asked one."""
    stale: bool
    all_completed: bool
    ready: bool
    mac_owner: str
    """Under which name the MAC is reserved; it is released once all are completed."""


class MigratableInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Copies of any VMs."""

    copies: tuple[Copy, ...] = ()


class MigratableResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Those whose addresses follow them, by id."""

    copies: tuple[str, ...]


def is_allowed(copy: Copy, topology: str) -> bool:
    """True if a migration of the copy switches ports of such a network over."""
    return copy.vm is not None and topology in (LAYER2, LOCALNET)


def describe_lifecycle(question: CopyQuestion) -> CopyLifecycle:
    """Where the asked copy is in the life of its VM."""
    asked = question.find_asked()
    siblings = find_siblings(asked, question.copies)
    return CopyLifecycle(
        vm=asked.vm,
        copies=_list_ids(find_copies(asked.vm, question.copies)),
        siblings=_list_ids(siblings),
        stale=is_stale(asked, siblings),
        all_completed=all_completed(asked, siblings),
        ready=is_ready(asked, siblings),
        mac_owner=name_mac_owner(asked),
    )


def _list_ids(copies: Sequence[Copy]) -> tuple[str, ...]:
    return tuple(copy.id for copy in copies)


ALLOWED: Final[Decision[AllowedInput, AllowedResult]] = Decision(
    "network.allowed",
    lambda given: AllowedResult(allowed=is_allowed(given.copy, given.topology)),
    AllowedInput,
    AllowedResult,
    "Whether a migration of a copy switches ports of a network over",
    nulls_are_absent=True,
)
LIFECYCLE: Final = Decision(
    "network.lifecycle",
    describe_lifecycle,
    CopyQuestion,
    CopyLifecycle,
    "Where a copy is in the life of its VM",
    nulls_are_absent=True,
)
MIGRATABLE: Final[Decision[MigratableInput, MigratableResult]] = Decision(
    "network.migratable",
    lambda given: MigratableResult(copies=_list_ids(find_migratable(given.copies))),
    MigratableInput,
    MigratableResult,
    "Which copies take their addresses along",
    nulls_are_absent=True,
)
