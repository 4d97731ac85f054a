"""Which VMs were charged to which commitments, and when: one document for each project and month.

Each change of the assignment is two numbers in it, and what did not change takes nothing
(docs/reference/commitments.md#usage-history). Nothing here acts; ``controllers/usage.py`` writes the documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from outlive.base import BadInput, as_datetime, as_instant
from outlive.commitments.names import history_name
from outlive.commitments.state import is_active
from outlive.resources import CommitmentCoverage, CommittedResource, CommittedType, ObjectMeta, UsageHistory

HISTORY_BYTES: Final = 384 * 1024
"""About as large as a document becomes; beyond it times of single VMs are left out, those that ended first before
others."""
COMMITMENTS_LIMIT: Final = 2_000
"""Commitments of one project in one month; further ones are not listed."""
_RUN_BYTES: Final = 16
_VM_BYTES: Final = 8
_COMMITMENT_BYTES: Final = 120


class Charged(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What is charged to one commitment now."""

    type: CommittedType
    vms: tuple[str, ...] = ()


class CoverageShare(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How long VMs were charged to one commitment in a month."""

    project: str
    month: str
    commitment: str
    type: CommittedType
    covered_seconds: int
    """So long at least one VM was charged to it."""
    vm_seconds: int
    """The same of each VM that is listed, added up."""
    vms: dict[str, tuple[tuple[datetime, datetime], ...]] = {}
    """VM → from when to when it was charged, or until now."""


# Months.


def month_of(now: float) -> str:
    """The month of a time in seconds since 1970, in UTC: ``2026-11``."""
    return as_datetime(now).strftime("%Y-%m")


def month_begin(month: str) -> int:
    """When the month begins, in seconds since 1970; ``BadInput`` for a text that is no month."""
    try:
        if len(month) != len("2026-11"):
            raise ValueError
        return int(as_instant(datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)))
    except ValueError:
        raise BadInput(f"{month[:80]!r} is no month", remedy="write year and month, such as 2026-11") from None


def month_before(month: str, count: int = 1) -> str:
    """So many months earlier."""
    year, number = divmod(int(month[:4]) * 12 + int(month[5:]) - 1 - count, 12)
    return f"{year:04}-{number + 1:02}"


def month_seconds(month: str) -> int:
    """How long the month is."""
    return month_begin(month_before(month, -1)) - month_begin(month)


# What is recorded.


def charges_by_uuid(commitments: Iterable[CommittedResource], now: float) -> dict[str, Charged]:
    """Uuid → what the objects say is charged to it; only commitments that are active, and have VMs."""
    found: dict[str, Charged] = {}
    for one in commitments:
        if one.status.assigned_instances and is_active(one.spec, now):
            spec = one.status.accepted_spec or one.spec
            charged = Charged(type=spec.resource_type, vms=one.status.assigned_instances)
            found.setdefault(one.spec.commitment_uuid, charged)
    return found


def begin_month(project: str, month: str, before: UsageHistory | None) -> UsageHistory:
    """The document of a new month: what was charged at the end of the month ``before`` still is."""
    open_ones = before.commitments.items() if before is not None else ()
    return UsageHistory(
        metadata=ObjectMeta(name=history_name(project, month)),
        project_id=project,
        month=month,
        commitments={
            uuid: CommitmentCoverage(
                resource_type=one.resource_type,
                covered_since=0,
                vms={vm: (0,) for vm, times in one.vms.items() if len(times) % 2},
            )
            for uuid, one in open_ones
            if one.covered_since is not None
        },
    )


def list_still_charged(history: UsageHistory, ends: Mapping[str, float]) -> dict[str, Charged]:
    """Uuid → what the document says is charged at its end, but to commitments that ended in its month."""
    until = month_begin(month_before(history.month, -1))
    return {
        uuid: Charged(type=one.resource_type, vms=tuple(vm for vm, times in one.vms.items() if len(times) % 2))
        for uuid, one in history.commitments.items()
        if one.covered_since is not None and not (uuid in ends and ends[uuid] < until)
    }


def record_charges(
    history: UsageHistory, charged: Mapping[str, Charged], now: float, ends: Mapping[str, float] | None = None
) -> UsageHistory:
    """The document with what is charged now, in seconds since 1970; the same object where nothing changed.

    ``ends``: uuid → when a commitment ended that is over; nothing was charged to it after that.
    """
    begin, ends = month_begin(history.month), ends or {}
    at = min(max(0, int(now) - begin), month_seconds(history.month))
    found = dict(history.commitments)
    left_out = history.left_out
    for uuid in [*history.commitments, *(uuid for uuid in charged if uuid not in history.commitments)]:
        if uuid not in found and len(found) >= COMMITMENTS_LIMIT:
            left_out += 1
            continue
        end = min(at, max(0, int(ends[uuid]) - begin)) if uuid in ends else at
        one = found.get(uuid) or CommitmentCoverage(resource_type=charged[uuid].type)
        found[uuid] = _change_coverage(one, charged[uuid].vms if uuid in charged else (), end)
    made = replace(history, commitments=found, left_out=left_out)
    return history if found == history.commitments else _trim_history(made)


def _change_coverage(one: CommitmentCoverage, vms: tuple[str, ...], at: int) -> CommitmentCoverage:
    """The coverage of one commitment to which these VMs are charged from this second on."""
    now = frozenset(vms)
    changed = {
        vm: (*times, max(at, times[-1])) for vm, times in one.vms.items() if (len(times) % 2 == 1) != (vm in now)
    }
    changed |= {vm: (at,) for vm in vms if vm not in one.vms}
    if changed:
        one = replace(one, vms={**one.vms, **changed})
    if now and one.covered_since is None:
        return replace(one, covered_since=at)
    if not now and one.covered_since is not None:
        lasted = max(0, at - one.covered_since)
        return replace(one, covered_seconds=one.covered_seconds + lasted, covered_since=None)
    return one


def _trim_history(history: UsageHistory) -> UsageHistory:
    """The document without the times of single VMs that are too many: what ended first goes first."""
    size = sum(
        _COMMITMENT_BYTES + sum(len(vm) + _VM_BYTES + _RUN_BYTES * len(times) // 2 for vm, times in one.vms.items())
        for one in history.commitments.values()
    )
    if size <= HISTORY_BYTES:
        return history
    over = size - HISTORY_BYTES * 9 // 10  # some at once, so that not each write has to look for them
    listed = [
        (len(times) % 2, times[-1], uuid, vm)
        for uuid, one in history.commitments.items()
        for vm, times in one.vms.items()
    ]
    left: dict[str, dict[str, tuple[int, ...]]] = {uuid: dict(one.vms) for uuid, one in history.commitments.items()}
    gone = 0
    for _, _, uuid, vm in sorted(listed):
        if over <= 0:
            break
        times = left[uuid].pop(vm)
        gone += (len(times) + 1) // 2
        over -= len(vm) + _VM_BYTES + _RUN_BYTES * len(times) // 2
    return replace(
        history,
        commitments={uuid: replace(one, vms=left[uuid]) for uuid, one in history.commitments.items()},
        left_out=history.left_out + gone,
    )


# What is read of it.


def list_shares(history: UsageHistory, now: float) -> tuple[CoverageShare, ...]:
    """Every commitment of the month, by uuid; what still goes on counts until ``now``, or the end of the month."""
    begin = month_begin(history.month)
    at = min(max(0, int(now) - begin), month_seconds(history.month))
    found: list[CoverageShare] = []
    for uuid, one in sorted(history.commitments.items()):
        since = one.covered_since
        runs: dict[str, list[tuple[int, int]]] = {}
        for vm, changes in sorted(one.vms.items()):
            whole = changes if len(changes) % 2 == 0 else (*changes, max(at, changes[-1]))
            runs[vm] = list(zip(whole[::2], whole[1::2], strict=True))
        found.append(
            CoverageShare(
                project=history.project_id,
                month=history.month,
                commitment=uuid,
                type=one.resource_type,
                covered_seconds=one.covered_seconds + (max(0, at - since) if since is not None else 0),
                vm_seconds=sum(end - first for times in runs.values() for first, end in times),
                vms={
                    vm: tuple((as_datetime(begin + first), as_datetime(begin + end)) for first, end in times)
                    for vm, times in runs.items()
                },
            )
        )
    return tuple(found)


def is_old(history: UsageHistory, now: float, months: int) -> bool:
    """Whether the document is of none of the last ``months`` months, the present one included."""
    return history.month < month_before(month_of(now), months - 1)


def is_open(history: UsageHistory) -> bool:
    """Whether something is still charged, as far as the document knows."""
    return any(one.covered_since is not None for one in history.commitments.values())
