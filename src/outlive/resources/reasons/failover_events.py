"""What failover reports as events: codes, the event that each is, and its note.

Some are one kind of event: `MemberRemoved` says in its note why
(docs/reference/failover-operation.md#events-and-metrics).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from outlive.resources.reasons.model import Value, fill

FULL_PROTECTION: Final = "FullProtection"
"""Reason of the event that says when every VM will have all its slots."""


class FailoverEvent(enum.StrEnum):
    """All of them: of slots, of VMs, of the cluster."""

    SLOT_CREATED = "slot-created"
    SLOT_REUSED = "slot-reused"
    MEMBER_LEFT = "member-left"
    MEMBER_REPACKED = "member-repacked"
    MEMBER_REFUSED = "member-refused"
    SLOT_DELETED = "slot-deleted"
    SLOT_UNUSABLE = "slot-unusable"
    SLOT_VALID = "slot-valid"
    RESOURCES_ILLEGAL = "resources-illegal"
    RESOURCES_LEGAL = "resources-legal"
    WITHOUT_SLOT = "vm-without-slot"
    UNKNOWN_LEVEL = "unknown-level"
    BRAKE_HELD = "brake-held"
    REMOVAL_HELD_BACK = "removal-held-back"
    STATE_DIVERGED = "state-diverged"


class EventTemplate(NamedTuple):
    """How a code reads as an event."""

    reason: str
    """The event's reason."""
    action: str
    note: str | Callable[[Mapping[str, Value]], str]
    warning: bool = False


def _with_detail(text: str) -> Callable[[Mapping[str, Value]], str]:
    return lambda fields: fill(text, fields) + (f"; {fields['detail']}" if fields["detail"] else "")


def _without_slot(fields: Mapping[str, Value]) -> str:
    return fill("{why}: {detail}", fields) + (f"; {fields['remedy']}" if fields["remedy"] else "")


EVENTS: Final[Mapping[FailoverEvent, EventTemplate]] = {
    FailoverEvent.SLOT_CREATED: EventTemplate("SlotCreated", "Created", "created on {host} for VM {vm}"),
    FailoverEvent.SLOT_REUSED: EventTemplate("SlotReused", "Joined", "VM {vm} joined on {host}; {members} members"),
    FailoverEvent.MEMBER_LEFT: EventTemplate("MemberRemoved", "Removed", _with_detail("VM {vm} left: {cause}")),
    FailoverEvent.MEMBER_REPACKED: EventTemplate(
        "MemberRemoved",
        "Removed",
        lambda fields: fill("VM {vm} left: repacked", fields) + (f" into {fields['to']}" if fields["to"] else ""),
    ),
    FailoverEvent.MEMBER_REFUSED: EventTemplate(
        "MemberRemoved", "Removed", "VM {vm} left: validation failed; {why}", warning=True
    ),
    FailoverEvent.SLOT_DELETED: EventTemplate("SlotDeleted", "Deleted", _with_detail("{cause}")),
    FailoverEvent.SLOT_UNUSABLE: EventTemplate("SlotDeleted", "Deleted", "validation failed; {why}", warning=True),
    FailoverEvent.SLOT_VALID: EventTemplate("ValidationPassed", "Validated", "on {host} with {members} members"),
    FailoverEvent.RESOURCES_ILLEGAL: EventTemplate("InvalidResources", "Validated", "{why}", warning=True),
    FailoverEvent.RESOURCES_LEGAL: EventTemplate(
        "ResourcesLegal", "Validated", "the resources are legal again; the slot counts"
    ),
    FailoverEvent.WITHOUT_SLOT: EventTemplate("VMWithoutSlot", "Assign", _without_slot, warning=True),
    FailoverEvent.UNKNOWN_LEVEL: EventTemplate(
        "UnknownProtectionLevel",
        "Assign",
        "there is no protection level {level!r}, so the VM is treated as naming none; add it to protection.levels, or "
        "correct spec.protection",
        warning=True,
    ),
    FailoverEvent.BRAKE_HELD: EventTemplate(
        "RemovalBrake",
        "HeldBack",
        "a cycle would have dropped {dropped} of {memberships} allocations ({causes}) and dropped none; check the VM "
        "source, or raise failoverUpkeep.brakeShare and brakeNumber for one cycle",
        warning=True,
    ),
    FailoverEvent.REMOVAL_HELD_BACK: EventTemplate(
        "RemovalBrake",
        "HeldBack",
        "{what} would have dropped {members} more of {memberships} allocations before the next cycle and dropped none; "
        "check hosts and VM source, or raise failoverUpkeep.brakeShare and brakeNumber",
        warning=True,
    ),
    FailoverEvent.STATE_DIVERGED: EventTemplate(
        "StateDiverged",
        "Rebuilt",
        "the state kept from changes differed from the one built from scratch and was rebuilt: {differences}",
        warning=True,
    ),
}
