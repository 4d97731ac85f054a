"""What flavor groups have to sell in each zone: in total, running, free, and free after a fair split.

``CapacityTable`` keeps these numbers current over the columns of the one fleet: a host that changed is counted anew,
and only its zone is split anew (docs/reference/commitments.md#capacity). Which hosts a flavor may use says placement,
through ``Probe``; it is asked again only when facts of hosts, pipelines or flavors changed, because how full a host is
decides nothing there that the count of VMs does not say as well.

A refresh has three parts, because nobody may keep an event loop busy for long: ``begin`` looks at the fleet, ``ask``
asks placement about some flavors at a time, both where the fleet lives; ``finish`` counts, and may run in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from outlive.base.errors import BadInput, OutliveError
from outlive.commitments.split import Room, Taker, deal
from outlive.placement.engine import Engine
from outlive.placement.fleet import Fleet
from outlive.placement.request import SILENT, Intent, PlacementRequest
from outlive.placement.reservations import CapacityQuery
from outlive.placement.settings import MIB
from outlive.placement.vms import MILLI
from outlive.resources import (
    COMMITTED,
    FAILOVER,
    IN_FLIGHT,
    Amounts,
    FlavorGroupSpec,
    GroupFlavor,
)
from outlive.resources.commitments import FlavorCapacity

Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]
Counts = NDArray[np.int64]
Place = tuple[str, str]
"""Flavor group and zone."""

PROBE_PROJECT: Final = "cortex-capacity-probe"
"""The project of probes: nobody's, so that no commitment slot opens for one."""
ASKED_AT_ONCE: Final = 20
"""Flavors that placement is asked about without a pause."""
NOWHERE: Final = -1
"""The zone of hosts that say none: they count nowhere."""


class Probe(Protocol):
    """Who says which hosts may take a flavor, however full they are."""

    @property
    def revision(self) -> object:
        """Equal as long as no answer changes by itself: the pipelines, say."""
        ...

    def total(self, group: str, flavor: GroupFlavor) -> Rows:
        """Rows of the fleet whose hosts may ever take it; ``OutliveError`` where the probe fails."""
        ...

    def placeable(self, group: str, flavor: GroupFlavor) -> Rows:
        """Rows whose hosts may take it now, if they have room; ``OutliveError`` where the probe fails."""
        ...


class EngineProbe:
    """Placement's engine as a probe: one run for each flavor and pipeline, for all zones at once."""

    def __init__(self, engine: Engine, *, total: Callable[[str], str], placeable: Callable[[str], str]) -> None:
        """``total`` and ``placeable``: flavor group → pipeline."""
        self._engine = engine
        self._total, self._placeable = total, placeable

    @property
    def revision(self) -> object:
        """That of the pipelines."""
        return getattr(self._engine.pipelines, "revision", 0)

    def total(self, group: str, flavor: GroupFlavor) -> Rows:
        """Asked as if nothing ran and nothing was reserved."""
        return self._rows(flavor, self._total(group))

    def placeable(self, group: str, flavor: GroupFlavor) -> Rows:
        """Asked in the same way: whether there is room is counted from the figures of the fleet."""
        return self._rows(flavor, self._placeable(group))

    def _rows(self, flavor: GroupFlavor, pipeline: str) -> Rows:
        order = self._engine.rank(probe_request(flavor, pipeline)).order
        return np.sort(np.asarray(order, dtype=np.intp))


def probe_request(flavor: GroupFlavor, pipeline: str) -> PlacementRequest:
    """One VM of nobody, on hosts that are empty."""
    return PlacementRequest(
        resource_id=f"capacity-{flavor.name}",
        project=PROBE_PROJECT,
        need=Amounts(cpu=flavor.vcpus * MILLI, memory=flavor.memory_mb * MIB),
        flavor_name=flavor.name,
        extra_specs=flavor.extra_specs,
        intent=Intent.CAPACITY_PROBE,
        pipeline=pipeline,
        options=msgspec.structs.replace(
            SILENT,
            read_only=True,
            assume_empty_hosts=True,
            ignored_reservation_types=(COMMITTED, FAILOVER, IN_FLIGHT),
        ),
    )


class GroupCapacity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the table says of a group in a zone. Amounts are bytes and whole cores."""

    group: str
    zone: str
    flavors: tuple[FlavorCapacity, ...] = ()
    """By name; ``running_vms`` of each is filled in."""
    total: Amounts = Amounts()
    free: Amounts = Amounts()
    exclusive: Amounts = Amounts()
    exclusive_slots: int = 0
    failed: str = ""
    """Why a probe failed: then nothing else is known."""


class _Zone:
    """The rows of one zone, by the names of their hosts."""

    def __init__(self, name: str, rows: Rows) -> None:
        self.name, self.rows = name, rows


class _Flavors:
    """The flavors of all groups as columns, and what is known of each host and flavor."""

    def __init__(self, groups: Sequence[FlavorGroupSpec], rows: int) -> None:
        self.groups = groups
        self.of_group: dict[str, list[int]] = {}
        self.all: list[tuple[FlavorGroupSpec, GroupFlavor]] = []
        for group in groups:
            for flavor in sorted(group.flavors, key=lambda one: one.name):
                self.of_group.setdefault(group.group_name, []).append(len(self.all))
                self.all.append((group, flavor))
        count = len(self.all)
        self.memory: Counts = np.array([flavor.memory_mb * MIB for _, flavor in self.all], dtype=np.int64)
        self.cpu: Counts = np.array([flavor.vcpus * MILLI for _, flavor in self.all], dtype=np.int64)
        self.may_total: Mask = np.zeros((count, rows), dtype=np.bool_)
        self.may_place: Mask = np.zeros((count, rows), dtype=np.bool_)
        self.total: Counts = np.zeros((count, rows), dtype=np.int64)
        self.placeable: Counts = np.zeros((count, rows), dtype=np.int64)
        self.failed: dict[str, str] = {}
        """Group → why a probe of it failed."""

    def ask(self, probe: Probe, number: int) -> None:
        """Ask placement about one flavor."""
        group, flavor = self.all[number]
        try:
            if flavor.memory_mb <= 0:
                raise BadInput(f"flavor {flavor.name} has no memory", remedy="give it memory, or leave it out")
            for may, rows in (
                (self.may_total, probe.total(group.group_name, flavor)),
                (self.may_place, probe.placeable(group.group_name, flavor)),
            ):
                may[number, rows[rows < may.shape[1]]] = True
        except OutliveError as error:
            self.failed.setdefault(group.group_name, f"{flavor.name}: {error}")

    def count(self, capacity: Counts, free: Counts, rows: Rows | slice) -> None:
        """Count what fits on these rows. ``capacity`` and ``free``: (2, rows) milli-cores and bytes of all rows."""
        self.total[:, rows] = np.where(self.may_total[:, rows], self._fits(capacity[:, rows]), 0)
        self.placeable[:, rows] = np.where(self.may_place[:, rows], self._fits(free[:, rows]), 0)

    def _fits(self, amounts: Counts) -> Counts:
        """VMs of each flavor that fit into each column of amounts."""
        by_memory = amounts[1][None, :] // np.maximum(self.memory, 1)[:, None]
        by_cpu = amounts[0][None, :] // np.maximum(self.cpu, 1)[:, None]
        bound: Counts = np.where((self.cpu > 0)[:, None], np.minimum(by_memory, by_cpu), by_memory)
        return bound


class CapacityRefresh:
    """One refresh of a table: what the fleet said when it began. Only ``ask`` reads the fleet again."""

    def __init__(
        self, probe: Probe, flavors: _Flavors | None, capacity: Counts, free: Counts, begun: object, zones: list[_Zone]
    ) -> None:
        self._probe = probe
        self.flavors = flavors
        """New ones, about which placement is asked; ``None``: those of the table are good."""
        self.capacity, self.free, self.begun, self.zones = capacity, free, begun, zones
        self._next = 0 if flavors is not None else -1

    def ask(self, count: int = ASKED_AT_ONCE) -> bool:
        """Ask placement about so many more flavors; whether there are any left. To be called where the fleet lives."""
        if self.flavors is None:
            return False
        last = min(self._next + count, len(self.flavors.all))
        for number in range(self._next, last):
            self.flavors.ask(self._probe, number)
        self._next = last
        return last < len(self.flavors.all)


class CapacityTable:
    """The numbers of every group and zone, over one fleet."""

    def __init__(self, fleet: Fleet, probe: Probe) -> None:
        self._fleet, self.probe = fleet, probe
        self._begun: object = None
        self._zones: list[_Zone] = []
        self._zone_of: Counts = np.zeros(0, dtype=np.int64)
        """Row → number of its zone."""
        self._flavors = _Flavors((), 0)
        self._figures: tuple[Counts, Counts] | None = None
        """Capacity and free amounts that were counted last."""
        self._found: dict[Place, GroupCapacity] = {}

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones that hosts say, by name."""
        return tuple(zone.name for zone in self._zones)

    def refresh(self, groups: Sequence[FlavorGroupSpec]) -> Mapping[Place, GroupCapacity]:
        """All of a refresh at once."""
        begun = self.begin(groups)
        while begun.ask():
            pass
        return self.finish(begun)

    def begin(self, groups: Sequence[FlavorGroupSpec]) -> CapacityRefresh:
        """Look at the fleet. Groups whose smallest flavor has no memory are left out.

        Then ``ask`` until nothing is left to ask, then ``finish``; one refresh at a time.
        """
        wanted = tuple(
            sorted((group for group in groups if group.smallest_flavor.memory_mb > 0), key=lambda one: one.group_name)
        )
        capacity, free = self._now()
        begun = (self._fleet.static_revision, self.probe.revision, wanted)
        stale = self._figures is None or self._begun != begun or not np.array_equal(self._figures[0], capacity)
        flavors = _Flavors(wanted, self._fleet.size) if stale else None
        zones = self._zones_now() if stale else self._zones
        return CapacityRefresh(self.probe, flavors, capacity, free, begun, zones)

    def finish(self, refresh: CapacityRefresh) -> Mapping[Place, GroupCapacity]:
        """Count what changed, and say what every group has in every zone. It does not read the fleet, so that it may
        run in a thread."""
        capacity, free = refresh.capacity, refresh.free
        if refresh.flavors is not None or self._figures is None:
            self._flavors = refresh.flavors if refresh.flavors is not None else self._flavors
            self._set_zones(refresh.zones, free.shape[1])
            self._flavors.count(capacity, free, slice(None))
            changed = list(range(len(self._zones)))
            self._found = {}
        else:
            rows = np.flatnonzero((self._figures[1] != free).any(axis=0))
            self._flavors.count(capacity, free, rows)
            changed = sorted(set(self._zone_of[rows].tolist()) - {NOWHERE})
        self._begun, self._figures = refresh.begun, (capacity, free)
        for number in changed:
            self._found.update({(one.group, one.zone): one for one in self._measure(self._zones[number], free)})
        return dict(self._found)

    def _now(self) -> tuple[Counts, Counts]:
        """(2, rows) of what hosts have, and of what nobody uses or holds."""
        columns = self._fleet.columns
        known = columns.present("capacity")[:2]
        capacity = np.where(known, np.maximum(columns.amounts("capacity")[:2], 0), 0)
        free = np.maximum(self._fleet.available(_PROBED)[:2], 0)
        return capacity, free

    def _zones_now(self) -> list[_Zone]:
        fleet = self._fleet
        by_zone: dict[str, list[int]] = {}
        for name in fleet.names:
            row, facts = fleet.row(name), fleet.facts(name)
            if row is not None and facts is not None and facts.zone:
                by_zone.setdefault(facts.zone, []).append(row)
        return [_Zone(zone, np.array(by_zone[zone], dtype=np.intp)) for zone in sorted(by_zone)]

    def _set_zones(self, zones: list[_Zone], rows: int) -> None:
        self._zones = zones
        self._zone_of = np.full(rows, NOWHERE, dtype=np.int64)
        for number, zone in enumerate(zones):
            self._zone_of[zone.rows] = number

    def _measure(self, zone: _Zone, free: Counts) -> list[GroupCapacity]:
        """Every group in one zone."""
        flavors = self._flavors
        total, placeable = flavors.total[:, zone.rows], flavors.placeable[:, zone.rows]
        columns = np.stack((np.count_nonzero(placeable, 1), placeable.sum(1), np.count_nonzero(total, 1), total.sum(1)))
        counted = columns.T.tolist()
        shares = self._split(zone, placeable, free)
        return [self._group(zone, group, counted, shares) for group in flavors.groups]

    def _group(
        self, zone: _Zone, group: FlavorGroupSpec, counted: list[list[int]], shares: Mapping[str, int]
    ) -> GroupCapacity:
        name, smallest = group.group_name, group.smallest_flavor
        failed = self._flavors.failed.get(name, "")
        if failed:
            return GroupCapacity(group=name, zone=zone.name, failed=failed)
        numbers = self._flavors.of_group[name]
        flavors = [(self._flavors.all[number][1], counted[number]) for number in numbers]
        placeable = next(row[1] for flavor, row in flavors if flavor.name == smallest.name)
        slots = shares[name]
        return GroupCapacity(
            group=name,
            zone=zone.name,
            flavors=tuple(
                FlavorCapacity(
                    flavor_name=flavor.name,
                    placeable_hosts=row[0],
                    placeable_vms=row[1],
                    total_capacity_hosts=row[2],
                    total_capacity_vm_slots=row[3],
                )
                for flavor, row in flavors
            ),
            total=Amounts(
                memory=max(flavor.memory_mb * MIB * row[3] for flavor, row in flavors),
                cores=max(flavor.vcpus * row[3] for flavor, row in flavors),
            ),
            free=_times(smallest, placeable),
            exclusive=_times(smallest, slots),
            exclusive_slots=slots,
        )

    def _split(self, zone: _Zone, placeable: Counts, free: Counts) -> dict[str, int]:
        """Group → VMs of its smallest flavor that it may have for itself."""
        flavors, takers = self._flavors, dict[str, Taker]()
        for group in flavors.groups:
            name, smallest = group.group_name, group.smallest_flavor
            if name not in flavors.failed:
                number = next(one for one in flavors.of_group[name] if flavors.all[one][1].name == smallest.name)
                hosts = np.flatnonzero(placeable[number]).tolist()
                takers[name] = Taker(smallest.memory_mb * MIB, smallest.vcpus * MILLI, hosts)
        here = free[:, zone.rows]
        deal(Room(here[1].tolist(), here[0].tolist()), list(takers.values()))
        return {name: taker.taken for name, taker in takers.items()}


_PROBED: Final = CapacityQuery(intent=Intent.CAPACITY_PROBE)


def _times(flavor: GroupFlavor, count: int) -> Amounts:
    return Amounts(memory=flavor.memory_mb * MIB * count, cores=flavor.vcpus * count)
