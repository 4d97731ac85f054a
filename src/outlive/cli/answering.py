"""How an answer of ``outlive whatif`` reads to people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlive.base.wording import count_of

if TYPE_CHECKING:
    from outlive.failover.analysis.drain.steps import Step
    from outlive.failover.analysis.whatif.answers import Answer, Numbers, Tolerated

SHOWN = 20
"""Lines of each list; the wide form and JSON have all."""


def lines(answer: Answer, *, wide: bool = False) -> list[Any]:
    """The verdict, the numbers before and after, then what moves and what stands in the way."""
    found: list[Any] = [_verdict(answer), *_changes(answer), "", _numbers(answer)]
    found += _short(answer)
    found += _lists(answer, wide=wide)
    return found


def _verdict(answer: Answer) -> str:
    if answer.question.startswith("drain"):
        return _drain_verdict(answer)
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


def _drain_verdict(answer: Answer) -> str:
    if answer.possible:
        now = "what it tolerates now"
        kept = now if answer.keep is None else f"{count_of(answer.keep, 'failure')}, or {now} if that is less"
        return f"{answer.question}: yes, in {len(answer.order)} steps; after each of them every VM tolerates {kept}"
    word = "no: there is no order of steps that does it"
    if not answer.proven:
        word = f"no order was found, which does not show that there is none; the limit is {answer.limit}"
    return f"{answer.question}: {word}"


def _changes(answer: Answer) -> list[str]:
    """How much emptying hosts changes."""
    if not answer.order:
        return []
    opened = sum(_told(step)[0] == "open" for step in answer.order)
    return [
        f"{count_of(len(answer.moves), 'VM')} to move, {count_of(len(answer.closed), 'slot')} to close, "
        f"{opened} to open; {count_of(len(answer.displaced), 'time')} a VM leaves a slot"
    ]


def _numbers(answer: Answer) -> Any:
    from outlive.cli.output import table

    sides = [
        ("now", answer.coverage.before, answer.tolerance.before),
        ("planned as it is", answer.coverage.planned, answer.tolerance.planned),
        ("then", answer.coverage.after, answer.tolerance.after),
    ]
    shown = [(name, numbers, level) for name, numbers, level in sides if numbers is not None and level is not None]
    rows = [(name, *_row(numbers, level)) for name, numbers, level in shown]
    columns = ("", "VMs", "Need slots", "Covered", "Slots", "At least", "Reserved", "Tolerance", "By zone")
    return table(columns, rows, numbers=columns[1:6])


def _row(numbers: Numbers, level: Tolerated) -> tuple[Any, ...]:
    cores, gib = numbers.reserved.cpu_milli / 1000, numbers.reserved.memory_bytes / 2**30
    zones = ", ".join(f"{zone or '-'} {tolerated}" for zone, tolerated in level.zones.items())
    return (
        numbers.vms,
        numbers.required,
        numbers.covered,
        numbers.slots,
        numbers.bound.slots,
        f"{cores:,.0f} cores, {gib:,.0f} GiB",
        level.fleet,
        zones,
    )


def _short(answer: Answer) -> list[str]:
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


def _lists(answer: Answer, *, wide: bool) -> list[Any]:
    found: list[Any] = []
    moved = [(one.vm, one.source, one.host, one.slot) for one in answer.moves]
    taken = any(one.slot for one in answer.moves)
    columns = ("VM", "From", "To", *(("Its slot",) if taken else ()))
    found += _table("Where VMs come to", columns, [row[: len(columns)] for row in moved], wide=wide)
    found += _table("VMs without a host", ("VM", "Why"), [(one.vm, one.reason) for one in answer.unplaced], wide=wide)
    steps = [(number, *_told(step)) for number, step in enumerate(answer.order, start=1)]
    found += _table("The steps, one after the other", ("", "Step", "VM", "What"), steps, wide=wide)
    obstacles = [(one.reason, one.vm, one.slot, one.detail) for one in answer.obstacles]
    found += _table("What stands in the way", ("Reason", "VM", "Slot", "Why"), obstacles, wide=wide)
    weaker = sorted(answer.weaker.items(), key=lambda item: (item[1], item[0]))
    found += _table("VMs that tolerate less already, and keep that", ("VM", "Tolerates"), weaker, wide=wide)
    uncovered = [(one.vm, one.reason, one.remedy) for one in answer.uncovered]
    found += _table("Not covered then", ("VM", "Reason", "Remedy"), uncovered, wide=wide)
    return found


def _table(title: str, columns: tuple[str, ...], rows: list[Any], *, wide: bool) -> list[Any]:
    from outlive.cli.output import and_more, table

    if not rows:
        return []
    shown = rows if wide else rows[:SHOWN]
    return [f"\n{title}:", table(columns, shown), *and_more(len(rows), len(shown))]


def _told(step: Step) -> tuple[str, str, str]:
    """A step in words: what is done, with which VM, and where."""
    from outlive.failover.analysis.drain.steps import Close, Leave
    from outlive.failover.planner.actions import Join, Open

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
