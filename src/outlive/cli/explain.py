"""``outlive failover explain``: why a VM has no slot, host by host and slot by slot, and what would help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlive.base.errors import ExitCode, Usage
from outlive.cli.access import Access
from outlive.cli.output import Form, Output, and_more, progress, table
from outlive.cli.snapshot import Config, Slots, look

if TYPE_CHECKING:
    from outlive.failover.analysis.explain.fleet import FleetExplanation
    from outlive.failover.analysis.explain.model import Explanation

SHOWN = 20
"""Hosts, and slots, that a table names; wide and JSON name all."""


async def explain(
    access: Access,
    output: Output,
    vm: Annotated[str | None, typer.Argument(metavar="VM", help="The VM to explain.")] = None,
    fleet: Annotated[bool, typer.Option("--fleet", help="All VMs without their slots, grouped by what helps.")] = False,
    k: Slots = None,
    config: Config = None,
) -> ExitCode | None:
    """Why a VM has no slot, and what would help; exit code 0 if it is covered, 1 if not."""
    from outlive.failover.analysis.explain.fleet import agreed, explain_fleet
    from outlive.failover.analysis.explain.placement import explainer_of
    from outlive.failover.analysis.whatif.altered import as_it_is
    from outlive.failover.analysis.whatif.questions import whole_remedy

    if (vm is None) == (not fleet):
        raise Usage("which VM?", remedy="name one VM, or give --fleet for all")
    async with access.open() as store:
        gathered = await look(access, store, config, k)
        now = await as_it_is(store, gathered, k=k) if fleet else None
    explainer = explainer_of(gathered, now=access.clock.now())
    if now is not None:
        with progress("looking for what helps"):
            groups = explain_fleet(explainer)
            if groups.needs_hosts:
                zones = {one.id: one.zone for one in gathered.vms}
                groups = agreed(groups, await whole_remedy(now), zones=zones, hosts=now.hosts.keys())
        output.show(groups, lambda: fleet_lines(groups, wide=output.wide))
        return None if groups.covered == groups.required else ExitCode.NO
    assert vm is not None, "either a VM or the fleet is asked about"
    told = explainer.explain(vm, shown=SHOWN if output.form is Form.TABLE else None)
    output.show(told, lambda: vm_lines(told))
    return None if told.covered else ExitCode.NO


def vm_lines(told: Explanation) -> list[Any]:
    """The answer for people: what it is, why, what helps, and then the details."""
    lines: list[Any] = [_sentence(told.text)]
    if told.promises:
        rows = [(one.slot, one.host, one.counts, one.text) for one in told.promises]
        lines += ["", table(("Slot", "Host", "Counts", "What it is worth"), rows)]
    if told.covered:
        return lines
    lines += ["", *map(_sentence, told.summary)]
    if told.remedy is not None:
        lines += ["", f"What helps: {told.remedy.text}."]
    if told.otherwise is not None:
        lines.append(f"Or: {told.otherwise.text}.")
    if told.hosts:
        lines += ["", table(("Host", "Reason", "Why no new slot"), [(o.host, o.reason, o.message) for o in told.hosts])]
        lines += and_more(sum(one.count for one in told.host_tallies), len(told.hosts), "hosts")
    if told.slots:
        slots = [(one.slot, one.host, one.reason, one.message) for one in told.slots]
        lines += ["", table(("Slot", "Host", "Reason", "Why not"), slots)]
        lines += and_more(sum(one.count for one in told.slot_tallies), len(told.slots), "slots")
    return lines


def fleet_lines(told: FleetExplanation, *, wide: bool) -> list[Any]:
    """All groups for people, the largest first."""
    lines: list[Any] = [_sentence(told.text)]
    rows = []
    for group in told.groups:
        names = group.vms if wide else group.vms[:3]
        more = group.count - len(names)
        named = ", ".join(names) + (f" and {more:,} more" if more > 0 else "")
        rows.append((group.count, group.reason, group.who, group.text, named))
    if told.everybody:
        lines.append(_sentence(told.everybody))
    if rows:
        lines += ["", table(("VMs", "Reason", "Need", "What helps", "Which"), rows, numbers=("VMs",))]
    return lines


def _sentence(text: str) -> str:
    """With a capital, unless it begins with the name of a VM, and with a full stop."""
    begins = text.startswith(("of ", "there ", "all ", "no ", "a plan ", "with "))
    return f"{text[0].upper()}{text[1:]}." if begins else f"{text}."
