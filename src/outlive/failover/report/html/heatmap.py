"""The map of hosts by zone and failure domain: what each has, what is used, held and free, and what a case does.

Each host is drawn as two bars, memory and CPU. Fleets of up to ``LARGE_HOSTS`` hosts are drawn with names; in larger
ones a host shows its figures when it is pointed at or reached with the keyboard. All figures are also in a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from outlive.base import count_of, natural_key
from outlive.failover.report.html.figures import (
    FleetFigures,
    HostFigures,
    HtmlTable,
    Share,
    describe_cpu,
    describe_memory,
    format_percent,
    sum_shares,
)

LARGE_HOSTS = 240
"""Fleets up to this many hosts are drawn with names."""


class CaseEffect(msgspec.Struct, frozen=True, kw_only=True):
    """What a case of failure does to hosts."""

    failed: frozenset[str] = frozenset()
    landing: Mapping[str, int] = {}
    """Host → VMs that restart there."""


NO_CASE = CaseEffect()


class Cell(NamedTuple):
    """One host of the map."""

    kinds: str
    style: str
    label: str
    name: str = ""
    note: str = ""
    mark: str = ""


class DomainGroup(NamedTuple):
    """The hosts of one failure domain."""

    name: str
    figures: str
    cells: list[Cell]


class HeatMap(NamedTuple):
    """What the template draws."""

    size: str
    legend: list[tuple[str, str]]
    """(colour, words); words alone have no colour."""
    zones: list[tuple[str, list[DomainGroup]]]


def heat_map(fleet: FleetFigures, effect: CaseEffect = NO_CASE) -> HeatMap:
    """The map with its legend; zones and domains in which a host fails come first."""
    zones: dict[str, dict[str, list[HostFigures]]] = {}
    hit = {(host.zone, host.group) for host in fleet.hosts if host.name in effect.failed}
    hit_zones = {zone for zone, _ in hit}

    def order(host: HostFigures) -> tuple[object, ...]:
        spared = (host.zone not in hit_zones, host.zone, (host.zone, host.group) not in hit)
        return (*spared, not host.group, natural_key(host.group), host.name)

    for host in sorted(fleet.hosts, key=order):
        zones.setdefault(host.zone, {}).setdefault(host.group, []).append(host)
    small = len(fleet.hosts) > LARGE_HOSTS
    return HeatMap(
        size="small" if small else "large",
        legend=_build_legend(fleet, effect, small=small),
        zones=[
            (
                f"Zone {zone}" if zone else "No zone",
                [_build_group(fleet, group, hosts, effect, small=small) for group, hosts in groups.items()],
            )
            for zone, groups in zones.items()
        ],
    )


def _build_legend(fleet: FleetFigures, effect: CaseEffect, *, small: bool) -> list[tuple[str, str]]:
    committed = any(host.memory.committed or host.cpu.committed for host in fleet.hosts)
    entries = [
        ("used", "used by VMs"),
        ("held", "held by slots and other reservations" if committed else "held by slots"),
        ("free", "free"),
    ]
    if effect.failed:
        entries.append(("down", "✕ fails"))
    if effect.landing:
        entries.append(("lands", "+n VMs restart here"))
    if small and any(host.uncovered for host in fleet.hosts):
        entries.append(("", "! a VM here misses slots"))
    entries.append(("", "left bar memory, right bar CPU" if small else "upper bar memory, lower bar CPU"))
    return entries


def _build_group(
    fleet: FleetFigures, group: str, hosts: Sequence[HostFigures], effect: CaseEffect, *, small: bool
) -> DomainGroup:
    name = f"{fleet.grouped_by} {group}" if group else f"no {fleet.grouped_by}" if fleet.grouped_by else "hosts"
    memory = sum_shares(host.memory for host in hosts)
    shares = f"memory {memory.describe()}"
    if small:
        free = format_percent(memory.part_of(max(0, memory.free or 0)))
        shares = f"{free} of memory free" if memory.capacity else "unknown"
    figures = f"{count_of(len(hosts), 'host')} · {count_of(sum(host.vms for host in hosts), 'VM')} · {shares}"
    return DomainGroup(name, figures, [_build_cell(host, effect, small=small) for host in hosts])


def _build_cell(host: HostFigures, effect: CaseEffect, *, small: bool) -> Cell:
    failed, lands = host.name in effect.failed, effect.landing.get(host.name, 0)
    kinds = ["h", *(["x"] if failed else ["t"] if lands else []), *(["u"] if host.uncovered and not failed else [])]
    (a, b), (c, d) = _bar_ends(host.memory), _bar_ends(host.cpu)
    style, label = f"--a:{a}%;--b:{b}%;--c:{c}%;--d:{d}%", host_text(host, effect)
    if small:
        unknown = host.memory.capacity is None and not failed
        mark = "✕" if failed else "?" if unknown else ""
        return Cell(" ".join([*kinds, *(["q"] if unknown else [])]), style, label, mark=mark)
    notes = [] if host.ready else ["not in service"]
    if host.uncovered:
        notes.append(f"{host.uncovered} without slots")
    fate = "✕ fails" if failed else f"+{count_of(lands, 'VM')}" if lands else ""
    figures = f"{count_of(host.vms, 'VM')} · {count_of(host.slots, 'slot')}"
    return Cell(" ".join(kinds), style, label, name=host.name, note=fate or ", ".join(notes) or figures)


def _bar_ends(share: Share) -> tuple[str, str]:
    used = min(1.0, share.part_of(share.used))
    held = min(1.0, share.part_of(share.used + share.reserved + share.committed))
    return f"{used * 100:.0f}", f"{held * 100:.0f}"


def host_text(host: HostFigures, effect: CaseEffect) -> str:
    """A host in a sentence."""
    parts = [f"{host.name}: memory {describe_memory(host.memory)}", f"CPU {describe_cpu(host.cpu)}"]
    parts.append(f"{count_of(host.vms, 'VM')}, {count_of(host.slots, 'slot')}")
    if host.uncovered:
        parts.append(f"{count_of(host.uncovered, 'VM')} without the slots they need")
    return "; ".join([*parts, *(["not in service"] if not host.ready else []), *_describe_fate(host, effect)])


def _describe_fate(host: HostFigures, effect: CaseEffect) -> list[str]:
    if host.name in effect.failed:
        return ["fails"]
    lands = effect.landing.get(host.name, 0)
    return [f"{count_of(lands, 'VM')} {'restarts' if lands == 1 else 'restart'} here"] if lands else []


def hosts_table(fleet: FleetFigures, effect: CaseEffect = NO_CASE) -> HtmlTable:
    """The same as figures."""
    group = fleet.grouped_by.capitalize() or "Group"
    rows = []
    for host in fleet.hosts:
        words = _describe_fate(host, effect)
        if host.name not in effect.failed:
            words += [f"{host.uncovered:,} without slots"] if host.uncovered else []
            words += [] if host.ready else ["not in service"]
        rows.append(
            (
                *(host.name, host.zone, host.group, f"{host.vms:,}", f"{host.slots:,}"),
                *(describe_memory(host.memory), describe_cpu(host.cpu), "; ".join(words)),
            )
        )
    columns = ("Host", "Zone", group, "VMs", "Slots", "Memory", "CPU", "What happens")
    return HtmlTable("Hosts", columns, rows, numbers=("VMs", "Slots"))
