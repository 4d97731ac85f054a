"""``outlive commitments usage --history MONTH``: how long VMs were charged to each commitment in a month."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlive.cli.output import table

if TYPE_CHECKING:
    from outlive.cli.access import Access
    from outlive.commitments.history import CoverageShare

HOUR_S = 3600


async def history_of(access: Access, month: str, project: str) -> tuple[CoverageShare, ...]:
    """Every commitment of the month, of a project or of all; ``BadInput`` for a text that is no month."""
    from outlive.commitments.history import month_begin, shares
    from outlive.commitments.names import history_name
    from outlive.resources import UsageHistory
    from outlive.store import list_all
    from outlive.store.access import read

    month_begin(month)
    async with access.open() as store:
        if project:
            one = await read(store, UsageHistory, history_name(project, month))
            found = [one] if one is not None else []
        else:
            found = [one async for one in list_all(store, UsageHistory) if one.month == month]
        now = access.state_clock.now()
    return tuple(share for one in sorted(found, key=lambda one: one.project_id) for share in shares(one, now))


def history_lines(shares: tuple[CoverageShare, ...], month: str) -> list[Any]:
    """A line for each commitment, in hours."""
    columns = ("Project", "Commitment", "Type", "Hours covered", "VM hours", "VMs")
    rows = [
        (
            one.project,
            one.commitment,
            one.type,
            f"{one.covered_seconds / HOUR_S:.2f}",
            f"{one.vm_seconds / HOUR_S:.2f}",
            len(one.vms),
        )
        for one in shares
    ]
    if not rows:
        return [f"no VM was charged to a commitment in {month}, or its history is not kept any more"]
    return [table(columns, rows, numbers=columns[3:])]
