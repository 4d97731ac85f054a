"""The page and its figures: templates, the hosts of a fleet in figures, and amounts as people read them."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

import jinja2
import msgspec

from outlive.failover.model import HostView
from outlive.failover.offers import free_capacity
from outlive.failover.snapshot import Snapshot
from outlive.placement import facts_of
from outlive.resources import Amounts, Hypervisor

# Renders the templates: one file that needs nothing else, loads nothing, and runs only its own script.


class Bar(NamedTuple):
    """A horizontal bar of (colour, share of 0 to 1); ``text`` says the same."""

    parts: Sequence[tuple[str, float]]
    text: str


class Word(NamedTuple):
    """A word in a coloured frame."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class HtmlTable:
    """A table with its caption; the first cell of a row is its heading.

    Columns in ``numbers`` are figures, those in ``prose`` may be broken into lines.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | Bar | Word]]
    numbers: Sequence[str] = ()
    prose: Sequence[str] = ()
    note: str = ""

    @property
    def kinds(self) -> list[str]:
        """The class of each column."""
        return ["n" if one in self.numbers else "p" if one in self.prose else "" for one in self.columns]


class Card(NamedTuple):
    """One figure: what, value, remark, and ``good``, ``bad`` or nothing."""

    what: str
    value: str
    remark: str = ""
    kind: str = ""


@cache
def _template_environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("outlive.failover.report.html"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, fleet: FleetFigures, **values: Any) -> bytes:
    """The page as UTF-8."""
    environment = _template_environment()
    script = environment.get_template("report.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment.get_template(template).render(fleet=fleet, script=script, script_digest=digest, **values)
    return page.encode()


GIB = 2**30


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """One resource of a host, in milli-cores or bytes."""

    capacity: int | None
    """``None`` where it is not known."""
    used: int
    reserved: int
    """Held by slots."""
    committed: int = 0
    """Held by other reservations."""

    @property
    def free(self) -> int | None:
        """Capacity that is neither used nor held; below zero where too much is promised."""
        return None if self.capacity is None else self.capacity - self.used - self.reserved - self.committed

    def part_of(self, amount: int) -> float:
        """An amount as a share of the capacity."""
        return amount / self.capacity if self.capacity else 0.0

    def describe(self) -> str:
        """What is used, held, committed and free, in percent."""
        if not self.capacity:
            return "unknown"
        words = [
            f"{format_percent(self.part_of(self.used))} used",
            f"{format_percent(self.part_of(self.reserved))} held",
        ]
        if self.committed:
            words.append(f"{format_percent(self.part_of(self.committed))} committed")
        free = self.free or 0
        words.append(
            f"{format_percent(self.part_of(free))} free"
            if free >= 0
            else f"{format_percent(self.part_of(-free))} too much"
        )
        return ", ".join(words)


class HostFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A host in figures."""

    name: str
    zone: str
    group: str
    """The failure domain that it is shown in; empty where it names none."""
    memory: Share
    cpu: Share
    vms: int
    slots: int
    uncovered: int
    """VMs here without the slots that they need."""
    ready: bool = True


class FleetFigures(msgspec.Struct, frozen=True, kw_only=True):
    """All hosts, and by what they are grouped."""

    hosts: tuple[HostFigures, ...]
    grouped_by: str
    """Name of the failure domain, such as ``rack``; empty: by zone only."""
    source: str
    """Where the state came from, in words."""
    when: str
    """When it was read, in words."""

    @property
    def memory(self) -> Share:
        """Memory of all hosts."""
        return sum_shares(host.memory for host in self.hosts)

    @property
    def cpu(self) -> Share:
        """Cores of all hosts."""
        return sum_shares(host.cpu for host in self.hosts)


def sum_shares(shares: Iterable[Share]) -> Share:
    """The sum, over those whose capacity is known."""
    listed = [share for share in shares if share.capacity is not None]
    return Share(
        capacity=sum(share.capacity or 0 for share in listed),
        used=sum(share.used for share in listed),
        reserved=sum(share.reserved for share in listed),
        committed=sum(share.committed for share in listed),
    )


def group_domain(views: Iterable[HostView], wanted: str = "") -> str:
    """The failure domain by which hosts are shown: the one in question, else racks, else the first by name."""
    domains = {name for view in views for name in view.domains}
    for name in (wanted, "rack", *sorted(domains)):
        if name in domains:
            return name
    return ""


def fleet_of(
    gathered: Snapshot, uncovered: dict[str, str], *, source: str, when: datetime, domain: str = ""
) -> FleetFigures:
    """The hosts in figures; ``uncovered``: VM → host, ``domain``: by which hosts are shown, where it is one."""
    observation = gathered.observation
    shown_by = group_domain(observation.hosts, domain)
    views = {view.name: view for view in observation.hosts}
    missing = Counter(uncovered.values())
    running = Counter(vm.host for vm in observation.vms)
    slots = Counter(slot.host for slot in observation.slots)
    used: dict[str, Amounts] = {}
    held: dict[str, Amounts] = {}
    for vm in observation.vms:
        used[vm.host] = used.get(vm.host, Amounts()) + Amounts({"cpu": vm.cpu_milli, "memory": vm.memory_bytes})
    for slot in observation.slots:
        held[slot.host] = held.get(slot.host, Amounts()) + Amounts({"cpu": slot.cpu_milli, "memory": slot.memory_bytes})
    free = free_capacity(gathered.fleet)
    figures = []
    for host in observation.hypervisors:
        name, view = host.name, views.get(host.name)
        in_use = host.status.allocation or used.get(name, Amounts())
        facts = facts_of(host)
        figures.append(
            HostFigures(
                name=name,
                zone=view.zone if view else "",
                group=view.domains.get(shown_by, "") if view else "",
                memory=_build_share(host, "memory", in_use, held.get(name), free.get(name, (0, 0))[1]),
                cpu=_build_share(host, "cpu", in_use, held.get(name), free.get(name, (0, 0))[0]),
                vms=running[name],
                slots=slots[name],
                uncovered=missing[name],
                ready=facts.in_service and facts.bad_condition is None,
            )
        )
    return FleetFigures(hosts=tuple(figures), grouped_by=shown_by, source=source, when=f"{when:%Y-%m-%d %H:%M} UTC")


def _build_share(host: Hypervisor, resource: str, used: Amounts, held: Amounts | None, free: int) -> Share:
    capacity = host.effective_capacity()
    amount = None if capacity is None else capacity.get(resource, 0)
    taken, slots = used.get(resource, 0), (held or Amounts()).get(resource, 0)
    other = 0 if amount is None else max(0, amount - taken - slots - free) if free > 0 else 0
    return Share(capacity=amount, used=taken, reserved=slots, committed=other)


def format_gib(amount: int) -> str:
    """Bytes as GiB or TiB."""
    if abs(amount) >= 10 * 1024 * GIB:
        return f"{amount / (1024 * GIB):,.1f} TiB"
    return f"{amount / GIB:,.0f} GiB" if abs(amount) >= 10 * GIB else f"{amount / GIB:,.1f} GiB"


def format_cores(milli: int) -> str:
    """Milli-cores as cores."""
    return f"{milli / 1000:,.0f} cores" if milli % 1000 == 0 or milli >= 100_000 else f"{milli / 1000:,.1f} cores"


def format_percent(share: float) -> str:
    """A share of one; what is not nothing is not called 0 %, and what is not all is not called 100 %."""
    if 0 < share < 0.01:
        return "below 1 %"
    if 0.99 < share < 1:
        return f"{int(share * 1000) / 10:.1f} %"
    return f"{share * 100:.0f} %"


def format_times(amount: float, least: float) -> str:
    """How many times the least."""
    return f"{amount / least:.2f} times" if least else "–"


def describe_memory(share: Share) -> str:
    """Shares of memory in words, with the capacity."""
    return f"{share.describe()} of {'an unknown amount' if share.capacity is None else format_gib(share.capacity)}"


def describe_cpu(share: Share) -> str:
    """Shares of cpu in words, with the capacity."""
    return f"{share.describe()} of {'an unknown amount' if share.capacity is None else format_cores(share.capacity)}"
