"""``outlive whatif``: hosts emptied, added or lost, VMs added, more slots asked for. Nothing is ever written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlive.base import ExitCode, NotFound, Usage, count_of
from outlive.cli.access import Access
from outlive.cli.arguments import Hosts, host_names
from outlive.cli.commands import command, make_group
from outlive.cli.output import Output, cut_table, make_table, show_progress
from outlive.cli.snapshot import Config, Slots, take_snapshot
from outlive.cli.values import flavor_named, gib_text, name_and_value, parse_amounts, pattern_and_count, unknown_flavor
from outlive.cli.vm_names import VmColumns, vm_columns

if TYPE_CHECKING:
    from outlive.failover.analysis.drain import Step
    from outlive.failover.analysis.whatif import Altered, WhatIfAnswer
    from outlive.placement import VmView
    from outlive.resources import Amounts, Hypervisor
    from outlive.store import Store

app = make_group("What would happen if hosts or VMs came or went, or more slots were asked for. Nothing is written.")

SHOWN = 20
"""Lines of each list; the wide form and JSON have all."""
ADVICE = frozenset({"Why", "Remedy"})
"""Last columns that are read whole, however narrow the terminal is."""
COUNT_LIMIT = 4_096
"""Hosts or VMs that one question may add."""


@command(app, "drain")
async def drain(
    access: Access,
    output: Output,
    hosts: Hosts,
    keep: Annotated[
        int | None,
        typer.Option("--keep", metavar="J", min=0, max=16, help="Failures to tolerate throughout; else as now."),
    ] = None,
    k: Slots = None,
    config: Config = None,
) -> ExitCode | None:
    """Find an order to empty hosts while VMs tolerate failures; exit code 1 if there is none, 8 if none was found."""
    from outlive.failover.analysis.whatif import questions as whatif

    return await _answer(access, output, config, k, lambda now, store: whatif.drain(now, host_names(hosts), keep=keep))


@command(app, "remove-host")
async def remove_host(
    access: Access, output: Output, hosts: Hosts, k: Slots = None, config: Config = None
) -> ExitCode | None:
    """Check where VMs go, and which are covered, without these hosts; exit code 1 if not all are."""
    from outlive.failover.analysis.whatif import questions as whatif

    return await _answer(access, output, config, k, lambda now, store: whatif.remove_hosts(now, host_names(hosts)))


@command(app, "add-host")
async def add_host(
    access: Access,
    output: Output,
    like: Annotated[str, typer.Option("--like", metavar="HOST", help="Hosts like this one.")] = "",
    count: Annotated[int, typer.Option("--count", min=1, max=COUNT_LIMIT, help="How many.")] = 1,
    cpu: Annotated[str, typer.Option("--cpu", help="Cores, such as 64.")] = "",
    memory: Annotated[str, typer.Option("--memory", help="Memory, such as 512Gi.")] = "",
    zone: Annotated[str, typer.Option("--zone", help="In this zone.")] = "",
    domain: Annotated[
        list[str] | None, typer.Option("--domain", metavar="NAME=VALUE", help="In this failure domain, as rack=r9.")
    ] = None,
    trait: Annotated[list[str] | None, typer.Option("--trait", help="With this trait.")] = None,
    k: Slots = None,
    config: Config = None,
) -> ExitCode | None:
    """Check what further hosts would cover, once planned; exit code 1 if not all VMs."""
    from outlive.failover.analysis.whatif import questions as whatif
    from outlive.resources import DOMAIN_LABEL_PREFIX, ZONE_LABEL

    size = parse_amounts(cpu, memory)
    labels = {ZONE_LABEL: zone} if zone else {}
    for text in domain or ():
        name, value = name_and_value(text, "--domain", "write rack=r9")
        labels[DOMAIN_LABEL_PREFIX + name] = value

    async def ask(now: Altered, store: Store) -> WhatIfAnswer:
        return await whatif.add_hosts(now, _new_hosts(now, like, count, size, labels, trait or []))

    return await _answer(access, output, config, k, ask)


@command(app, "add-vms")
async def add_vms(
    access: Access,
    output: Output,
    flavor: Annotated[str, typer.Option("--flavor", help="VMs of this flavor.")] = "",
    count: Annotated[int | None, typer.Option("--count", min=1, max=COUNT_LIMIT, help="How many; else one.")] = None,
    most: Annotated[bool, typer.Option("--most", help="As many as leave all VMs covered.")] = False,
    cpu: Annotated[str, typer.Option("--cpu", help="Cores of each, such as 4 or 500m.")] = "",
    memory: Annotated[str, typer.Option("--memory", help="Memory of each, such as 16Gi.")] = "",
    zone: Annotated[str, typer.Option("--zone", help="In this zone.")] = "",
    project: Annotated[str, typer.Option("--project", help="Of this project.")] = "",
    k: Slots = None,
    config: Config = None,
) -> ExitCode | None:
    """Check whether further VMs fit and all are covered; exit code 1 if not, 8 if a limit ended --most."""
    from outlive.failover.analysis.whatif import questions as whatif

    if most and count is not None:
        raise Usage("--most and --count at once", remedy="give one of them")
    size = parse_amounts(cpu, memory)

    async def ask(now: Altered, store: Store) -> WhatIfAnswer:
        like = await vm_like(now.vms.values(), store, flavor, size, zone=zone, project=project)
        return await (whatif.most_vms(now, like) if most else whatif.add_vms(now, like, count or 1))

    return await _answer(access, output, config, k, ask)


@command(app, "require")
async def require(
    access: Access,
    output: Output,
    patterns: Annotated[str, typer.Argument(metavar="PATTERN=N", help="Flavors, and the slots that they need.")],
    config: Config = None,
) -> ExitCode | None:
    """Check whether all VMs are covered if these flavors need N slots; exit code 1 if not."""
    from outlive.failover.analysis.whatif import questions as whatif

    pattern, count = pattern_and_count(patterns, "PATTERN=N")
    return await _answer(access, output, config, None, lambda now, store: whatif.require(now, pattern, count))


async def _answer(
    access: Access,
    output: Output,
    config: Path | None,
    k: int | None,
    ask: Callable[[Altered, Store], Awaitable[WhatIfAnswer]],
) -> ExitCode | None:
    """Ask about the cluster as it is and print the answer."""
    from outlive.failover.analysis.whatif import from_snapshot

    async with access.open() as store:
        gathered = await take_snapshot(access, store, config, k)
        now = await from_snapshot(store, gathered, k=k)
        with show_progress("planning"):
            answer = await ask(now, store)
    output.show(answer, lambda: answer_lines(answer, vm_columns(gathered.vms), wide=output.wide))
    if answer.limit and (answer.most is not None or not answer.proven):
        return ExitCode.LIMIT
    return None if answer.possible else ExitCode.NO


# What the options say.


def _new_hosts(
    now: Altered, like: str, count: int, size: Amounts, labels: dict[str, str], traits: list[str]
) -> list[Hypervisor]:
    from outlive.failover.analysis.whatif import empty_copies, plain_host, resize_host

    if like:
        pattern = now.hosts.get(like)
        if pattern is None:
            raise NotFound(f"there is no host {like!r}", place="--like", remedy="see outlive get hypervisors")
        pattern = resize_host(pattern, size) if size else pattern
    elif size.cpu_milli > 0 and size.memory_bytes > 0:
        pattern = plain_host(size)
    else:
        raise Usage("how large are the hosts?", remedy="give --like HOST, or --cpu and --memory")
    names = [f"new-host-{number}" for number in range(1, count + 1)]
    return empty_copies(pattern, names, labels=labels, traits=traits)


async def vm_like(
    vms: Iterable[VmView], store: Store, flavor: str, size: Amounts, *, zone: str, project: str
) -> VmView:
    """A VM of the flavor, which is known by its object or from one of these VMs, or of that size."""
    from outlive.placement import VmView
    from outlive.resources import CPU, MEMORY, Amounts

    known: dict[str, int] = {}
    specs: dict[str, str] = {}
    spec = await flavor_named(store, flavor) if flavor else None
    like = next((vm for vm in vms if vm.flavor == flavor), None) if flavor else None
    if spec is not None:
        known, specs, flavor = dict(spec.resources), spec.extra_specs, spec.flavor_name
    elif like is not None:
        known, specs = {CPU: like.cpu_milli, MEMORY: like.memory_bytes, **like.also_needs}, like.extra_specs
    needed = Amounts({**known, **size})
    if needed.cpu_milli <= 0 or needed.memory_bytes <= 0:
        if flavor and spec is None and like is None:
            raise unknown_flavor(flavor)
        raise Usage("how large are the VMs?", remedy="give --flavor NAME, or --cpu and --memory")
    return VmView(
        id="",
        host="",
        zone=zone,
        project=project,
        flavor=flavor,
        cpu_milli=needed.cpu_milli,
        memory_bytes=needed.memory_bytes,
        also_needs={name: amount for name, amount in needed.items() if name not in (CPU, MEMORY) and amount > 0},
        extra_specs=specs,
    )


# How an answer reads to people.


def answer_lines(answer: WhatIfAnswer, named: VmColumns, *, wide: bool = False) -> list[Any]:
    """The verdict, the numbers before and after, then what moves and what stands in the way."""
    changes = []
    if answer.order:
        opened = sum(_describe_step(step)[0] == "open" for step in answer.order)
        changes = [
            f"{count_of(len(answer.moves), 'VM')} to move, {count_of(len(answer.closed), 'slot')} to close, "
            f"{opened} to open; {count_of(len(answer.displaced), 'time')} a VM leaves a slot"
        ]
    return [
        _verdict_line(answer),
        *changes,
        "",
        _number_table(answer),
        *_shortage_lines(answer),
        *_list_tables(answer, named, wide=wide),
    ]


def _verdict_line(answer: WhatIfAnswer) -> str:
    if answer.question.startswith("drain"):
        now = "what it tolerates now"
        kept = now if answer.keep is None else f"{count_of(answer.keep, 'failure')}, or {now} if that is less"
        word = "no: there is no order of steps that does it"
        if answer.possible:
            word = f"yes, in {len(answer.order)} steps; after each of them every VM tolerates {kept}"
        elif not answer.proven:
            word = f"no order was found, which does not show that there is none; the limit is {answer.limit}"
        return f"{answer.question}: {word}"
    if answer.most is not None:
        least = "at least " if answer.limit else ""
        return f"{answer.question}: {least}{answer.most} VMs, and everybody is covered"
    word = "no" if answer.proven else "no plan was found that covers everybody, which does not show that there is none"
    if answer.possible:
        word = "yes, and everybody is covered"
    left = []
    if answer.unplaced:
        left.append(f"without a host: {count_of(len(answer.unplaced), 'VM')}")
    if answer.uncovered:
        left.append(f"not covered: {count_of(len(answer.uncovered), 'VM')}")
    return f"{answer.question}: {word}" + (f"; {', '.join(left)}" if left else "")


def _number_table(answer: WhatIfAnswer) -> Any:
    sides = [
        ("now", answer.coverage.before, answer.tolerance.before),
        ("planned as it is", answer.coverage.planned, answer.tolerance.planned),
        ("then", answer.coverage.after, answer.tolerance.after),
    ]
    rows = []
    for name, numbers, level in sides:
        if numbers is None or level is None:
            continue
        cores, gib = numbers.reserved.cpu_milli / 1000, numbers.reserved.memory_bytes / 2**30
        counts = (numbers.vms, numbers.required, numbers.covered, numbers.slots, numbers.bound.slots)
        zones = ", ".join(f"{zone or '-'} {tolerated}" for zone, tolerated in level.zones.items())
        rows.append((name, *counts, f"{cores:,.0f} cores, {gib_text(gib)} GiB", level.fleet, zones))
    columns = ("", "VMs", "Need slots", "Covered", "Slots", "At least", "Reserved", "Tolerance", "By zone")
    return make_table(columns, rows, numbers=columns[1:6])


def _shortage_lines(answer: WhatIfAnswer) -> list[str]:
    if answer.possible:
        return []
    found = [""]
    if answer.short_hosts is None:
        found.append("more hosts like those that are there would not help, or more than the limits of the search allow")
    elif answer.short_by:
        for one in answer.short_by:
            zone = f" in zone {one.zone}" if one.zone else ""
            found.append(f"short of {count_of(one.hosts, 'host')} like {one.like}{zone}")
    elif answer.short_hosts:
        found.append(f"short of {count_of(answer.short_hosts, 'host')} like the largest of these")
    if answer.keep_possible is not None:
        found.append(f"an order was found that keeps {answer.keep_possible}: --keep {answer.keep_possible}")
    return found if len(found) > 1 else []


def _list_tables(answer: WhatIfAnswer, named: VmColumns, *, wide: bool) -> list[Any]:
    taken = any(one.slot for one in answer.moves)
    vm = named.column_titles()
    moves = (*vm, "From", "To", *(("Its slot",) if taken else ()))
    lists: tuple[tuple[str, tuple[str, ...], list[tuple[Any, ...]]], ...] = (
        (
            "Where VMs come to",
            moves,
            [(*named.name_cells(one.vm), one.source, one.host, one.slot)[: len(moves)] for one in answer.moves],
        ),
        (
            "VMs without a host",
            (*vm, "Why"),
            [(*named.name_cells(one.vm), named.replace_ids(one.reason, one.vm)) for one in answer.unplaced],
        ),
        (
            "The steps, one after the other",
            ("", "Step", *vm, "What"),
            [(number, *_step_cells(step, named)) for number, step in enumerate(answer.order, start=1)],
        ),
        (
            "What stands in the way",
            ("Reason", *vm, "Slot", "Why"),
            [
                (one.reason, *named.name_cells(one.vm), one.slot, named.replace_ids(one.detail, one.vm))
                for one in answer.obstacles
            ],
        ),
        (
            "VMs that tolerate less already, and keep that",
            (*vm, "Tolerates"),
            [
                (*named.name_cells(one), count)
                for one, count in sorted(answer.weaker.items(), key=lambda item: item[::-1])
            ],
        ),
        (
            "Not covered then",
            (*vm, "Reason", "Remedy"),
            [
                (*named.name_cells(one.vm), one.reason, named.replace_ids(one.remedy, one.vm))
                for one in answer.uncovered
            ],
        ),
    )
    most = None if wide else SHOWN
    return [
        line
        for title, columns, rows in lists
        for line in cut_table(columns, rows, most, title=title, advice=columns[-1] in ADVICE)
    ]


def _step_cells(step: Step, named: VmColumns) -> tuple[str, ...]:
    done, vm, what = _describe_step(step)
    return done, *named.name_cells(vm), what


def _describe_step(step: Step) -> tuple[str, str, str]:
    """A step in words: what is done, with which VM, and where."""
    from outlive.failover.analysis.drain import Close
    from outlive.failover.planner import Join, Leave, Open

    match step:
        case Join():
            return "join", step.vm, f"slot {step.slot} on {step.host}"
        case Open():
            size = f"{step.cpu_milli / 1000:g} cores, {step.memory_bytes / 2**30:,.1f} GiB"
            return "open", step.vm, f"slot {step.slot_key} on {step.host}, {size}"
        case Leave():
            return "leave", step.vm, f"slot {step.slot} on {step.host}"
        case Close():
            return "close", "", f"slot {step.slot} on {step.host}"
    return "move", step.vm, f"from {step.source} to {step.host}"
