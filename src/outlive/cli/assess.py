"""``outlive assess``: is that cluster N+1, and what would it cost? From files of another system; nothing is kept.

The files become a cluster in memory, and the planner plans slots for every VM that runs. What is not in the files is
not known here, and is named: a VM that a rule of its own system keeps on two hosts counts as free to go anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from outlive.base import ExitCode, Usage, as_datetime, count_of
from outlive.cli.access import Access
from outlive.cli.coverage import coverage_document, coverage_lines
from outlive.cli.inventory import Decimal, LeftOut, SourceChoice, check_decimal
from outlive.cli.output import Report, make_table, show_progress
from outlive.cli.settings import load
from outlive.cli.vm_names import vm_columns
from outlive.drivers import check_output, read_hosts, read_openstack, read_vms, write_output
from outlive.drivers.listings import read_ganeti, read_kubevirt, read_libvirt, read_proxmox, read_rvtools
from outlive.inventory import Existing, Inventory, Selection, apply_import, find_notices, plan_import
from outlive.resources import Amounts
from outlive.resources.reasons import render
from outlive.roles import role_settings

if TYPE_CHECKING:
    from outlive.failover.analysis.whatif import ClusterView, WholeRemedy
    from outlive.store import MemoryStore

FAILURES_LIMIT: Final = 8
NOT_KNOWN: Final = (
    "which networks and which storage each host reaches: every host counts as reaching all",
    "rules of the other system about which VMs stay together or apart, or on which hosts they may run",
    "how much of its CPU and memory a VM really uses: what it was given counts",
)
"""What files of other systems do not say."""


def _read_csv(files: list[Path], selection: Selection, decimal: str) -> Inventory:
    hosts, vms = files
    inventory = Inventory(what="csv")
    read_hosts(hosts, None, inventory, where=selection.hosts, decimal=decimal)
    read_vms(vms, None, inventory, where=selection.vms, decimal=decimal)
    return inventory


_READERS: Final[Mapping[str, tuple[str, Callable[[list[Path], Selection, str], Inventory]]]] = {
    "csv": ("HOSTS VMS", _read_csv),
    "openstack": ("DIR", lambda files, selection, _: read_openstack(files[0], selection)),
    "proxmox": ("FILE", lambda files, selection, _: read_proxmox(files[0], selection)),
    "libvirt": ("DIR", lambda files, selection, _: read_libvirt(files[0], selection)),
    "rvtools": (
        "VHOST VINFO",
        lambda files, selection, sign: read_rvtools(files[0], files[1], selection, decimal=sign),
    ),
    "kubevirt": ("FILE...", lambda files, selection, _: read_kubevirt(files, selection)),
    "ganeti": ("FILE...", lambda files, selection, _: read_ganeti(files, selection)),
}
"""Format → which files it has, and how they are read."""


async def assess(
    access: Access,
    output: Report,
    taken: SourceChoice,
    kind: Annotated[str, typer.Argument(metavar="FORMAT", help=f"One of {', '.join(_READERS)}.")],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="As outlive import FORMAT has them.")],
    failures: Annotated[
        int, typer.Option("--failures", min=1, max=FAILURES_LIMIT, help="Failures at the same time.")
    ] = 1,
    domain: Annotated[
        str, typer.Option("--domain", metavar="NAME", help="What fails at once, such as rack; otherwise a host.")
    ] = "host",
    decimal: Decimal = "",
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write a report to look at.")] = None,
) -> ExitCode | None:
    """Check whether every VM of a cluster could be restarted if a host failed; exit code 1 if not.

    Reads files of another system, as outlive import does, and stores nothing. If hosts overcommit
    CPU: --overcommit cpu=4
    """
    check_output(html)
    inventory = _read(kind, files, taken.selection, check_decimal(decimal))
    options, now = taken.import_options(), as_datetime(access.clock.now())
    wanted, left_out = taken.check(inventory, Existing(), options)
    plan = plan_import(wanted, Existing(), options, landed={}, now=now)
    store = access.memory_store()
    await apply_import(store, plan)
    seen, remedy = await _plan_slots(store, failures, domain)
    said = [*inventory.notices, *find_notices(wanted, Existing(), plan, {})]
    told = [message for one in said for message in (render(one),)]
    document = {
        "format": kind,
        "failures": failures,
        "unit": domain,
        "holds": seen.full,
        **_summarize_capacity(seen),
        "coverage": coverage_document(seen.coverage),
        "toAdd": remedy,
        "notices": [{"message": one.text, "remedy": one.remedy} for one in told],
        "notKnown": NOT_KNOWN,
    }
    output.show(document, lambda: _render_lines(document, seen, remedy, domain, wide=output.wide))
    if html is not None:
        from outlive.failover.report.html import coverage_picture

        source = f"{kind}: {', '.join(map(str, files))}"
        write_output(html, coverage_picture(seen.gathered, seen.coverage, source=source, when=now))
    if left_out.total:
        raise LeftOut(tuple(left_out.shown), left_out.total)
    return None if seen.full else ExitCode.NO


def _read(kind: str, files: list[Path], selection: Selection, decimal: str) -> Inventory:
    if kind not in _READERS:
        raise Usage(f"format {kind[:40]!r} is not known", place="FORMAT", remedy=f"one of {', '.join(_READERS)}")
    names, read = _READERS[kind]
    if not names.endswith("...") and len(files) != len(names.split()):
        raise Usage(f"{kind} takes {names}, not {count_of(len(files), 'file')}", remedy=f"outlive import {kind} --help")
    with show_progress("reading files"):
        return read(files, selection, decimal)


async def _plan_slots(store: MemoryStore, failures: int, unit: str) -> tuple[ClusterView, WholeRemedy | None]:
    """The cluster with the slots that the planner finds, and what is missing where these are not all."""
    from outlive.failover import gather
    from outlive.failover.analysis.whatif import from_snapshot, plan_altered, whole_remedy

    settings = role_settings(load(None, {"failoverUpkeep.failureUnit": unit}))
    with show_progress("planning"):
        now = await from_snapshot(store, await gather(store, settings, k=failures), k=failures)
        seen = await plan_altered(now)
        return seen, None if seen.full else await whole_remedy(now)


def _summarize_capacity(seen: ClusterView) -> dict[str, Any]:
    """Hosts that take VMs, and the room that they have, that VMs have, that slots hold, and that is left."""
    gathered, held = seen.gathered, seen.coverage.reserved
    sizes = [
        one.effective_capacity() or Amounts() for one in gathered.observation.hypervisors if not one.closed_reason()
    ]
    room = {
        "capacity": [sum(one.get(name, 0) for one in sizes) for name in ("cpu", "memory")],
        "vms": [sum(vm.cpu_milli for vm in gathered.vms), sum(vm.memory_bytes for vm in gathered.vms)],
        "slots": [held.cpu_milli, held.memory_bytes],
    }
    room["left"] = [most - vms - slots for most, vms, slots in zip(*room.values(), strict=True)]
    shown = {name: {"cpuMilli": cpu, "memoryBytes": memory} for name, (cpu, memory) in room.items()}
    return {"hosts": len(sizes), "room": shown}


def _render_lines(
    document: dict[str, Any], seen: ClusterView, remedy: WholeRemedy | None, unit: str, *, wide: bool
) -> list[Any]:
    """The same for people."""
    what = f"of any {unit}" if document["failures"] == 1 else f"of any {document['failures']} {unit}s"
    verdict = f"yes: every VM can be restarted after the failure {what}"
    if not seen.full:
        verdict = f"no: some VMs cannot be restarted after the failure {what}"
    total = document["room"]["capacity"]["memoryBytes"]
    rows = []
    for title, one in zip(
        ("hosts have", "VMs have", "slots would hold", "left"), document["room"].values(), strict=True
    ):
        memory = one["memoryBytes"]
        share = f"{100 * memory / total:.0f} %" if total else ""
        rows.append((title, f"{one['cpuMilli'] / 1000:,.0f}", f"{memory / 2**30:,.0f}", share))
    missing = [] if remedy is None else [remedy.text.replace("`outlive failover plan --apply`", "the planner's")]
    return [
        verdict,
        make_table(("", "Cores", "Memory (GiB)", "Of memory"), rows, numbers=("Cores", "Memory (GiB)", "Of memory")),
        *coverage_lines(seen.coverage, vm_columns(seen.gathered.vms), wide=wide, unit=unit),
        *missing,
        *("; ".join(filter(None, (one["message"], one["remedy"]))) for one in document["notices"]),
        "not known from these files:",
        *(f"  {one}" for one in document["notKnown"]),
        "nothing was kept; outlive import reads the same files into a cluster",
    ]
