"""The hosts of a fleet by zone and failure domain: what each has, what is used, held and free, and what happens to it.

Every host is drawn as two bars, memory and CPU. Up to ``LARGE_HOSTS`` hosts have their name beside them; of more only
the bars are drawn, and pointing at one, or going to it with the keyboard, tells its figures. All figures are also in a
table (``hosts_table``), for whoever cannot or does not want to look at bars.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from outlive.base.natural import natural_key
from outlive.base.wording import count_of
from outlive.failover.pictures.amounts import cores, gib, percent
from outlive.failover.pictures.markup import Child, Markup, bar, table, tag
from outlive.failover.pictures.model import Fleet, HostFigures, Share

LARGE_HOSTS = 240
"""Fleets up to this many hosts are drawn with names."""


class Happens(msgspec.Struct, frozen=True, kw_only=True):
    """What a case of failure does to hosts."""

    failed: frozenset[str] = frozenset()
    landing: Mapping[str, int] = {}
    """Host → VMs that come up there."""


NOTHING = Happens()


def heat_map(fleet: Fleet, happens: Happens = NOTHING) -> Markup:
    """The map with its legend."""
    size = "large" if len(fleet.hosts) <= LARGE_HOSTS else "small"
    zones: dict[str, dict[str, list[HostFigures]]] = {}
    hit = {(host.zone, host.group) for host in fleet.hosts if host.name in happens.failed}
    hit_zones = {zone for zone, _ in hit}

    def order(host: HostFigures) -> tuple[object, ...]:
        """What fails first, then by name."""
        spared = (host.zone not in hit_zones, host.zone, (host.zone, host.group) not in hit)
        return (*spared, not host.group, natural_key(host.group), host.name)

    for host in sorted(fleet.hosts, key=order):
        zones.setdefault(host.zone, {}).setdefault(host.group, []).append(host)
    drawn = [
        tag(
            "div",
            tag("h3", f"Zone {zone}" if zone else "No zone"),
            tag(
                "div", *(_group(fleet, group, hosts, happens, size) for group, hosts in groups.items()), class_="racks"
            ),
            class_="zone",
        )
        for zone, groups in zones.items()
    ]
    return tag("div", legend(fleet, happens), *drawn, class_=size, id="map")


def legend(fleet: Fleet, happens: Happens) -> Markup:
    """What colours and marks mean."""
    committed = any(host.memory.committed or host.cpu.committed for host in fleet.hosts)
    known = [
        ("used", "used by VMs", True),
        ("held", "held by slots and other reservations" if committed else "held by slots", True),
        ("free", "free", True),
        ("down", "✕ fails", bool(happens.failed)),
        ("lands", "+n VMs come up here", bool(happens.landing)),
    ]
    words = "left bar memory, right bar CPU" if len(fleet.hosts) > LARGE_HOSTS else "upper bar memory, lower bar CPU"
    items = [tag("li", tag("i", class_=kind), text) for kind, text, shown in known if shown]
    if any(host.uncovered for host in fleet.hosts) and len(fleet.hosts) > LARGE_HOSTS:
        items.append(tag("li", "! a VM here misses slots"))
    return tag("ul", *items, tag("li", words), class_="legend", aria_label="Legend")


def _group(fleet: Fleet, group: str, hosts: Sequence[HostFigures], happens: Happens, size: str) -> Markup:
    name = f"{fleet.grouped_by} {group}" if group else f"no {fleet.grouped_by}" if fleet.grouped_by else "hosts"
    memory = _total(host.memory for host in hosts)
    shares = f"memory {_shares(memory)}" if size == "large" else _free(memory)
    figures = f"{count_of(len(hosts), 'host')} · {count_of(sum(host.vms for host in hosts), 'VM')} · {shares}"
    cells = [_host(host, happens, size, first=at == 0) for at, host in enumerate(hosts)]
    return tag(
        "div",
        tag("h4", name, tag("span", figures)),
        tag("div", *cells, class_="hosts", role="group", aria_label=f"Hosts of {name}"),
        class_="rack",
    )


def _host(host: HostFigures, happens: Happens, size: str, *, first: bool) -> Markup:
    failed, lands = host.name in happens.failed, happens.landing.get(host.name, 0)
    kinds = ["h", *(["x"] if failed else ["t"] if lands else []), *(["u"] if host.uncovered and not failed else [])]
    text: list[Child] = []
    if size == "large":
        fate = "✕ fails" if failed else f"+{count_of(lands, 'VM')}" if lands else ""
        note = f"{host.uncovered} without slots" if host.uncovered else ""
        if not host.ready:
            note = "not in service" if not note else f"not in service, {note}"
        small = fate or note or f"{count_of(host.vms, 'VM')} · {count_of(host.slots, 'slot')}"
        text = [tag("b", host.name), tag("small", small)]
    elif failed:
        text = ["✕"]
    elif host.memory.capacity is None:
        kinds.append("q")
        text = ["?"]
    a, b = _ends(host.memory)
    c, d = _ends(host.cpu)
    return tag(
        "div",
        *text,
        class_=" ".join(kinds),
        style=f"--a:{a}%;--b:{b}%;--c:{c}%;--d:{d}%",
        role="img",
        tabindex="0" if first else "-1",
        aria_label=host_text(host, happens),
    )


def host_text(host: HostFigures, happens: Happens) -> str:
    """A host in a sentence."""
    parts = [f"{host.name}: memory {_shares(host.memory)} of {_capacity(host.memory, gib)}"]
    parts.append(f"CPU {_shares(host.cpu)} of {_capacity(host.cpu, cores)}")
    parts.append(f"{count_of(host.vms, 'VM')}, {count_of(host.slots, 'slot')}")
    if host.uncovered:
        parts.append(f"{count_of(host.uncovered, 'VM')} without the slots they need")
    if not host.ready:
        parts.append("not in service")
    if host.name in happens.failed:
        parts.append("fails")
    elif lands := happens.landing.get(host.name, 0):
        parts.append(_comes(lands))
    return "; ".join(parts)


def hosts_table(fleet: Fleet, happens: Happens = NOTHING) -> Markup:
    """The same as figures."""
    columns = (
        "Host",
        "Zone",
        fleet.grouped_by.capitalize() or "Group",
        "VMs",
        "Slots",
        "Memory",
        "CPU",
        "What happens",
    )
    rows = [
        (
            host.name,
            host.zone,
            host.group,
            f"{host.vms:,}",
            f"{host.slots:,}",
            f"{_shares(host.memory)} of {_capacity(host.memory, gib)}",
            f"{_shares(host.cpu)} of {_capacity(host.cpu, cores)}",
            _fate(host, happens),
        )
        for host in fleet.hosts
    ]
    inside = table("Hosts", columns, rows, numbers=("VMs", "Slots"))
    return tag("details", tag("summary", f"All {len(fleet.hosts):,} hosts as a table"), inside, id="hosts")


def total_bar(fleet: Fleet) -> tuple[Markup, Markup]:
    """Memory and CPU of the whole fleet, as bars."""
    return _bar(_total(host.memory for host in fleet.hosts)), _bar(_total(host.cpu for host in fleet.hosts))


def total_text(fleet: Fleet, *, cpu: bool = False) -> str:
    """The fleet's memory, or CPU, in words."""
    total = _total(host.cpu if cpu else host.memory for host in fleet.hosts)
    return f"{_shares(total)} of {_capacity(total, cores if cpu else gib)}"


def _fate(host: HostFigures, happens: Happens) -> str:
    if host.name in happens.failed:
        return "fails"
    words = [_comes(happens.landing[host.name])] if host.name in happens.landing else []
    if host.uncovered:
        words.append(f"{host.uncovered:,} without slots")
    if not host.ready:
        words.append("not in service")
    return "; ".join(words)


def _bar(share: Share) -> Markup:
    parts = (
        ("used", share.part(share.used)),
        ("held", share.part(share.reserved)),
        ("other", share.part(share.committed)),
    )
    return bar(parts, _shares(share))


def _ends(share: Share) -> tuple[str, str]:
    used = min(1.0, share.part(share.used))
    held = min(1.0, share.part(share.used + share.reserved + share.committed))
    return f"{used * 100:.0f}", f"{held * 100:.0f}"


def _shares(share: Share) -> str:
    if not share.capacity:
        return "unknown"
    words = [f"{percent(share.part(share.used))} used", f"{percent(share.part(share.reserved))} held"]
    if share.committed:
        words.append(f"{percent(share.part(share.committed))} committed")
    free = share.free or 0
    words.append(f"{percent(share.part(free))} free" if free >= 0 else f"{percent(share.part(-free))} too much")
    return ", ".join(words)


def _free(share: Share) -> str:
    return f"{percent(share.part(max(0, share.free or 0)))} of memory free" if share.capacity else "unknown"


def _capacity(share: Share, form: object) -> str:
    if share.capacity is None:
        return "an unknown amount"
    return gib(share.capacity) if form is gib else cores(share.capacity)


def _total(shares: Iterable[Share]) -> Share:
    listed = [share for share in shares if share.capacity is not None]
    return Share(
        capacity=sum(share.capacity or 0 for share in listed),
        used=sum(share.used for share in listed),
        reserved=sum(share.reserved for share in listed),
        committed=sum(share.committed for share in listed),
    )


def _comes(number: int) -> str:
    return f"{count_of(number, 'VM')} {'comes' if number == 1 else 'come'} up here"
