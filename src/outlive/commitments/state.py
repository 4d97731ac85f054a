"""A commitment as numbers and times: from its object, from Limes and from a change, and what becomes of it.

The rules are in docs/reference/commitments.md#states and #conversions. Nothing here acts.
"""

from __future__ import annotations

import enum
from datetime import UTC, datetime
from typing import Final, get_args

import msgspec

from outlive.base import QUANTITY_LIMIT, BadInput, as_datetime, as_instant, format_bytes
from outlive.commitments.names import check_uuid, parse_resource
from outlive.commitments.units import GroupUnit
from outlive.resources import (
    ACTIVE_STATES,
    CommitmentState,
    CommittedResource,
    CommittedResourceSpec,
    CommittedType,
    Condition,
    find_condition,
)

STATES: Final[frozenset[CommitmentState]] = frozenset(get_args(CommitmentState))
SLOT_STATES: Final[frozenset[CommitmentState]] = frozenset({"pending", "guaranteed", "confirmed"})
"""States in which a commitment of memory has slots."""
READY: Final = "Ready"
DOUBLINGS_LIMIT: Final = 6
"""How often the time between two tries doubles."""
SUMMARY_MESSAGE_BYTES: Final = 80
"""What a summary shows of a message."""

ACCEPTED_TEXT: Final = "commitment successfully reserved"
PLANNED_TEXT: Final = "commitment is not yet active"
OVER_TEXT: Final = "commitment is no longer active"
WAITING_FOR_SLOTS: Final = "waiting for reservation placement"
WAITING_FOR_CAPACITY: Final = "waiting for capacity data"
WAITING_FOR_CORES: Final = "waiting for CPU capacity data"


class ReadyReason(enum.StrEnum):
    """Why condition ``Ready`` of a commitment is what it is."""

    ACCEPTED = "Accepted"
    PLANNED = "Planned"
    RESERVING = "Reserving"
    REJECTED = "Rejected"
    SUPERSEDED = "superseded"
    EXPIRED = "expired"


class Commitment(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One commitment. ``memory_bytes`` counts where the type is memory, ``cores`` where it is cores."""

    uuid: str
    project: str
    domain: str = ""
    group: str
    zone: str
    type: CommittedType = "memory"
    memory_bytes: int = 0
    cores: int = 0
    start: datetime | None = None
    end: datetime | None = None
    """Absent: it does not end."""
    state: CommitmentState
    generation: int = 0
    """Of its object; 0: not known."""

    @property
    def total(self) -> int:
        """Bytes of memory, or cores."""
        return self.memory_bytes if self.type == "memory" else self.cores


class ListedCommitment(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A commitment as Limes lists it, times in seconds since 1970."""

    uuid: str
    project: str
    domain: str = ""
    service_type: str = ""
    resource_name: str
    zone: str
    amount: int
    unit: str = ""
    status: str = ""
    created_at: int = 0
    confirm_by: int | None = None
    confirmed_at: int | None = None
    expires_at: int = 0


def from_spec(spec: CommittedResourceSpec, generation: int = 0) -> Commitment:
    """The commitment that an object holds; ``BadInput`` for a spec that nobody could fulfil."""
    if spec.resource_type not in get_args(CommittedType):
        raise BadInput(f'unsupported resource type "{spec.resource_type}"', remedy="memory or cores")
    check_uuid(spec.commitment_uuid)
    total = spec.total
    return Commitment(
        uuid=spec.commitment_uuid,
        project=spec.project_id,
        domain=spec.domain_id,
        group=spec.flavor_group_name,
        zone=spec.availability_zone,
        type=spec.resource_type,
        memory_bytes=total if spec.resource_type == "memory" else 0,
        cores=total if spec.resource_type == "cores" else 0,
        start=normalise_time(spec.start_time),
        end=normalise_time(spec.end_time),
        state=spec.state,
        generation=generation,
    )


def spec_of(commitment: Commitment, *, allow_rejection: bool = False) -> CommittedResourceSpec:
    """The spec of a commitment's object."""
    return CommittedResourceSpec(
        commitment_uuid=commitment.uuid,
        flavor_group_name=commitment.group,
        resource_type=commitment.type,
        amount=amount_text(commitment.type, commitment.total),
        availability_zone=commitment.zone,
        project_id=commitment.project,
        domain_id=commitment.domain,
        start_time=commitment.start,
        end_time=commitment.end,
        state=commitment.state,
        allow_rejection=allow_rejection,
    )


def from_listed(listed: ListedCommitment, unit: GroupUnit) -> Commitment:
    """The commitment that Limes lists, whose group is counted in ``unit``; ``BadInput`` for what cannot be one.

    It starts when it was confirmed; one that is not, when it is to be confirmed, as a change says it too.
    """
    check_uuid(listed.uuid)
    known = (at for at in (listed.confirmed_at, listed.confirm_by) if at is not None)
    group, kind = parse_resource(listed.resource_name)
    return Commitment(
        uuid=listed.uuid,
        project=listed.project,
        domain=listed.domain,
        group=group,
        zone=listed.zone,
        type=kind,
        memory_bytes=unit.to_bytes(listed.amount) if kind == "memory" else 0,
        cores=check_cores(listed.amount) if kind == "cores" else 0,
        start=_from_seconds(next(known, listed.created_at)),
        end=_from_seconds(listed.expires_at) if listed.expires_at > 0 else None,
        state=check_state(listed.status),
    )


def from_change(
    *,
    uuid: str,
    status: str,
    amount: int,
    confirm_by: datetime | None,
    expires_at: datetime | None,
    project: str,
    domain: str,
    group: str,
    kind: CommittedType,
    zone: str,
    unit: GroupUnit,
    now: float,
) -> Commitment:
    """The commitment that a change asks for; ``BadInput`` names what it cannot be.

    Only a state that has slots keeps the amount, and only until it ends: a planned one gets it when its time comes.
    """
    check_uuid(uuid)
    state, end = check_state(status), normalise_time(expires_at)
    size = unit.to_bytes(amount) if kind == "memory" else check_cores(amount)
    start = None
    if state in SLOT_STATES:
        start = normalise_time(confirm_by) or as_datetime(now)
    if state not in SLOT_STATES or _has_passed(end, now):
        size = 0
    return Commitment(
        uuid=uuid,
        project=project,
        domain=domain,
        group=group,
        zone=zone,
        type=kind,
        memory_bytes=size if kind == "memory" else 0,
        cores=size if kind == "cores" else 0,
        start=start,
        end=end,
        state=state,
    )


def check_state(text: str) -> CommitmentState:
    """The state of that name; ``BadInput`` if there is none."""
    for state in STATES:
        if state == text:
            return state
    raise BadInput(f'unknown status "{text[:80]}"', remedy=f"one of {', '.join(sorted(STATES))}")


def check_cores(amount: int) -> int:
    """The number of cores; ``BadInput`` for one that is negative or beyond 63 bits."""
    if not 0 <= amount <= QUANTITY_LIMIT:
        raise BadInput(f"an amount of {amount} cores is out of range", remedy="0 to 2^63-1")
    return amount


def amount_text(kind: CommittedType, total: int) -> str:
    """An amount as objects hold it: bytes as a quantity, cores as a whole number."""
    return format_bytes(total) if kind == "memory" else str(total)


def normalise_time(given: datetime | None) -> datetime | None:
    """The time in UTC and whole seconds, as objects hold it. The year 1, Go's word for no time, is none, and what UTC
    cannot say is the end of the year 9999."""
    if given is None or given.year <= 1:
        return None
    aware = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
    try:
        return aware.astimezone(UTC).replace(microsecond=0)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC, microsecond=0)


def is_active(spec: CommittedResourceSpec, now: float) -> bool:
    """Whether the capacity is promised now. A pending commitment gets slots, and is not active."""
    return spec.state in ACTIVE_STATES and not is_over(spec, now)


def is_over(spec: CommittedResourceSpec, now: float) -> bool:
    """Whether it has ended: by its state, or because its time has."""
    return spec.state in ("superseded", "expired") or _has_passed(normalise_time(spec.end_time), now)


def has_slots(commitment: Commitment, now: float) -> bool:
    """Whether slots are made for it: memory of a state that has slots, until it ends."""
    return (
        commitment.type == "memory"
        and commitment.state in SLOT_STATES
        and not _has_passed(normalise_time(commitment.end), now)
    )


def reason_over(spec: CommittedResourceSpec) -> ReadyReason:
    """Why one that is over is: what replaced it, or its time."""
    return ReadyReason.SUPERSEDED if spec.state == "superseded" else ReadyReason.EXPIRED


def set_ready(
    conditions: tuple[Condition, ...],
    *,
    ready: bool,
    reason: ReadyReason,
    message: str,
    generation: int,
    now: float,
    restart: bool = False,
) -> tuple[Condition, ...]:
    """The conditions with this ``Ready``. Its time is that of the last change of status or reason; ``restart`` sets it
    anew, from which ``retry_delay`` counts."""
    old = find_condition(conditions, READY)
    since: datetime | None = as_datetime(now)
    if old is not None and not restart and (old.status == "True") == ready and old.reason == reason.value:
        since = old.last_transition_time or since
    new = Condition(
        type=READY,
        status="True" if ready else "False",
        reason=reason.value,
        message=message,
        last_transition_time=since,
        observed_generation=generation,
    )
    return (*(one for one in conditions if one.type != READY), new)


def is_judged(found: Condition | None, reason: ReadyReason, generation: int) -> bool:
    """Whether ``Ready`` says this of this generation."""
    return found is not None and found.reason == reason.value and found.observed_generation == generation


def retry_delay(found: Condition | None, now: float, base_s: float, cap_s: float) -> float:
    """Seconds until a commitment is tried again: twice as long each time that so much has passed, ``cap_s`` at most.

    ``found`` is its ``Ready``; while it is not ``Reserving`` the delay is ``base_s``. A ``cap_s`` of 0 caps nothing.
    """
    delay = base_s
    if found is not None and found.reason == ReadyReason.RESERVING and found.last_transition_time is not None:
        elapsed = now - as_instant(found.last_transition_time)
        delay *= 2 ** sum(elapsed >= base_s * 2**n for n in range(DOUBLINGS_LIMIT))
    return min(delay, cap_s) if cap_s > 0 else delay


def summarise(cr: CommittedResource, now: float) -> str:
    """One line on what became of a commitment; empty before anybody looked at it."""
    found = find_condition(cr.status.conditions, READY)
    if found is None:
        return ""
    reason, message = found.reason, found.message
    parts = [reason]
    if diffs := _list_differences(cr.status.accepted_spec, cr.spec):
        parts[0] = f"{reason} ({'; '.join(diffs)})"
    if reason in (ReadyReason.REJECTED, ReadyReason.RESERVING) and message and message != WAITING_FOR_SLOTS:
        raw = message.encode()
        short = raw[: SUMMARY_MESSAGE_BYTES - 3].decode(errors="ignore") + "..."
        parts.append(message if len(raw) <= SUMMARY_MESSAGE_BYTES else short)
    if reason == ReadyReason.ACCEPTED:
        count = len(cr.status.assigned_instances)
        parts.append("1 VM" if count == 1 else f"{count} VMs")
    if reason != ReadyReason.REJECTED:
        parts.append(_format_expiry(cr.spec.end_time, now))
    return " · ".join(parts)


def _list_differences(old: CommittedResourceSpec | None, new: CommittedResourceSpec) -> list[str]:
    if old is None:
        return []
    diffs: list[str] = []
    if old.total != new.total:
        before, after = (amount_text(spec.resource_type, spec.total) for spec in (old, new))
        diffs.append(f"amount {before}→{after}")
    for word, before, after in (
        ("fg", old.flavor_group_name, new.flavor_group_name),
        ("az", old.availability_zone, new.availability_zone),
        ("type", old.resource_type, new.resource_type),
    ):
        if before != after:
            diffs.append(f"{word} {before}→{after}")
    return diffs


def _format_expiry(end: datetime | None, now: float) -> str:
    until = normalise_time(end)
    if until is None:
        return "no expiry"
    left = int(as_instant(until) - now)
    if left <= 0:
        return "expired"
    minutes, seconds = divmod(left, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"exp in {days}d {hours}h"
    if hours:
        return f"exp in {hours}h {minutes}m"
    return f"exp in {minutes}m {seconds}s" if minutes else f"exp in {seconds}s"


def _has_passed(end: datetime | None, now: float) -> bool:
    return end is not None and as_instant(end) <= now


def _from_seconds(seconds: int) -> datetime:
    try:
        return as_datetime(seconds)
    except (OverflowError, OSError, ValueError):
        raise BadInput(f"{seconds} is no time", remedy="seconds since 1970") from None
