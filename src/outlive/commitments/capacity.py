"""What flavor groups have to sell in each zone: in total, running, free, and free after a fair split.

``CapacityTable`` keeps these numbers current over the columns of the one fleet: a host that changed is counted anew,
and only its zone is split anew (docs/reference/commitments.md#capacity). Which hosts a flavor may use says placement,
through ``EngineProbe``; it is asked again only when facts of hosts, pipelines or flavors changed, because how full a
host is decides nothing there that the count of VMs does not say as well.

A refresh has three parts, because nobody may keep an event loop busy for long: ``begin`` looks at the fleet, ``ask``
asks placement about some flavors at a time, both where the fleet lives; ``finish`` counts, and may run in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from outlive.base import BadInput, OutliveError
from outlive.commitments.split import RemainingRoom, Taker, deal
from outlive.placement import MIB, MILLI, SILENT, CapacityQuery, Engine, Fleet, Intent, PlacementRequest
from outlive.resources import (
    COMMITTED,
    FAILOVER,
    IN_FLIGHT,
    Amounts,
    FlavorCapacity,
    FlavorGroupSpec,
    GroupFlavor,
)

Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]
Counts = NDArray[np.int64]
Place = tuple[str, str]
"""Flavor group and zone."""

PROBE_PROJECT: Final = "cortex-capacity-probe"
"""The project of probes: nobody's, so that no commitment slot opens for one."""
ASKED_AT_ONCE: Final = 5
"""Flavors that placement is asked about without a pause."""
NOWHERE: Final = -1
"""The zone of hosts that say none: they count nowhere."""


class EngineProbe:
    """Placement's engine as a probe: one run for each flavor and pipeline, for all zones at once."""

    def __init__(self, engine: Engine, *, total: str, placeable: str) -> None:
        """``total``, ``placeable``: names of pipelines."""
        self._engine, self.total, self.placeable = engine, total, placeable

    @property
    def revision(self) -> object:
        """That of the pipelines."""
        return getattr(self._engine.pipelines, "revision", 0)

    def rank_rows(self, flavor: GroupFlavor, pipeline: str) -> Rows:
        """Hosts that suit the flavor if nothing runs and nothing is reserved. The fleet's figures say where room is."""
        wanted = PlacementRequest(  # one VM of nobody, on hosts that are empty
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
        return np.sort(np.asarray(self._engine.rank(wanted).order, dtype=np.intp))


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


class _ZoneRows:
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

    def ask(self, probe: EngineProbe, number: int) -> None:
        """Ask placement about one flavor."""
        group, flavor = self.all[number]
        try:
            if flavor.memory_mb <= 0:
                raise BadInput(f"flavor {flavor.name} has no memory", remedy="give it memory, or leave it out")
            for may, pipeline in ((self.may_total, probe.total), (self.may_place, probe.placeable)):
                rows = probe.rank_rows(flavor, pipeline)
                may[number, rows[rows < may.shape[1]]] = True
        except OutliveError as error:
            self.failed.setdefault(group.group_name, f"{flavor.name}: {error}")

    def count(self, capacity: Counts, free: Counts, rows: Rows | slice) -> None:
        """Count what fits on these rows. ``capacity`` and ``free``: (2, rows) milli-cores and bytes of all rows."""
        self.total[:, rows] = np.where(self.may_total[:, rows], self._count_fits(capacity[:, rows]), 0)
        self.placeable[:, rows] = np.where(self.may_place[:, rows], self._count_fits(free[:, rows]), 0)

    def _count_fits(self, amounts: Counts) -> Counts:
        """VMs of each flavor that fit into each column of amounts."""
        by_memory = amounts[1][None, :] // np.maximum(self.memory, 1)[:, None]
        by_cpu = amounts[0][None, :] // np.maximum(self.cpu, 1)[:, None]
        bound: Counts = np.where((self.cpu > 0)[:, None], np.minimum(by_memory, by_cpu), by_memory)
        return bound


class CapacityRefresh:
    """One refresh of a table: what the fleet said when it began. Only ``ask`` reads the fleet again."""

    def __init__(
        self,
        probe: EngineProbe,
        flavors: _Flavors | None,
        capacity: Counts,
        free: Counts,
        begun: object,
        zones: list[_ZoneRows],
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

    def __init__(self, fleet: Fleet, probe: EngineProbe) -> None:
        self._fleet, self.probe = fleet, probe
        self._begun: object = None
        self._zones: list[_ZoneRows] = []
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
        columns = self._fleet.columns
        known = columns.get_known("capacity")[:2]
        capacity = np.where(known, np.maximum(columns.get_amounts("capacity")[:2], 0), 0)
        free = np.maximum(self._fleet.available_amounts(_PROBED)[:2], 0)
        begun = (self._fleet.static_revision, self.probe.revision, wanted)
        stale = self._figures is None or self._begun != begun or not np.array_equal(self._figures[0], capacity)
        flavors = _Flavors(wanted, self._fleet.size) if stale else None
        zones = self._read_zones() if stale else self._zones
        return CapacityRefresh(self.probe, flavors, capacity, free, begun, zones)

    def finish(self, refresh: CapacityRefresh) -> Mapping[Place, GroupCapacity]:
        """Count what changed, and say what every group has in every zone. It does not read the fleet, so that it may
        run in a thread."""
        capacity, free = refresh.capacity, refresh.free
        if refresh.flavors is not None or self._figures is None:
            self._flavors = refresh.flavors if refresh.flavors is not None else self._flavors
            self._zones = refresh.zones
            self._zone_of = np.full(free.shape[1], NOWHERE, dtype=np.int64)
            for number, zone in enumerate(self._zones):
                self._zone_of[zone.rows] = number
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

    def _read_zones(self) -> list[_ZoneRows]:
        fleet = self._fleet
        by_zone: dict[str, list[int]] = {}
        for name in fleet.names:
            row, facts = fleet.find_row(name), fleet.find_facts(name)
            if row is not None and facts is not None and facts.zone:
                by_zone.setdefault(facts.zone, []).append(row)
        return [_ZoneRows(zone, np.array(by_zone[zone], dtype=np.intp)) for zone in sorted(by_zone)]

    def _measure(self, zone: _ZoneRows, free: Counts) -> list[GroupCapacity]:
        """Every group in one zone."""
        flavors, found = self._flavors, list[GroupCapacity]()
        total, placeable = flavors.total[:, zone.rows], flavors.placeable[:, zone.rows]
        columns = np.stack((np.count_nonzero(placeable, 1), placeable.sum(1), np.count_nonzero(total, 1), total.sum(1)))
        counted = columns.T.tolist()
        shares = self._split(zone, placeable, free)
        for group in flavors.groups:
            name, smallest = group.group_name, group.smallest_flavor
            failed = flavors.failed.get(name, "")
            if failed:
                found.append(GroupCapacity(group=name, zone=zone.name, failed=failed))
                continue
            rows = [(flavors.all[number][1], counted[number]) for number in flavors.of_group[name]]
            one = GroupCapacity(
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
                    for flavor, row in rows
                ),
                total=Amounts(
                    memory=max(flavor.memory_mb * MIB * row[3] for flavor, row in rows),
                    cores=max(flavor.vcpus * row[3] for flavor, row in rows),
                ),
                free=_multiply_flavor(smallest, next(row[1] for flavor, row in rows if flavor.name == smallest.name)),
                exclusive=_multiply_flavor(smallest, shares[name]),
                exclusive_slots=shares[name],
            )
            found.append(one)
        return found

    def _split(self, zone: _ZoneRows, placeable: Counts, free: Counts) -> dict[str, int]:
        """Group → VMs of its smallest flavor that it may have for itself."""
        flavors, takers = self._flavors, dict[str, Taker]()
        for group in flavors.groups:
            name, smallest = group.group_name, group.smallest_flavor
            if name not in flavors.failed:
                number = next(one for one in flavors.of_group[name] if flavors.all[one][1].name == smallest.name)
                hosts = np.flatnonzero(placeable[number]).tolist()
                takers[name] = Taker(smallest.memory_mb * MIB, smallest.vcpus * MILLI, hosts)
        here = free[:, zone.rows]
        deal(RemainingRoom(here[1].tolist(), here[0].tolist()), list(takers.values()))
        return {name: taker.taken for name, taker in takers.items()}


_PROBED: Final = CapacityQuery(intent=Intent.CAPACITY_PROBE)


def _multiply_flavor(flavor: GroupFlavor, count: int) -> Amounts:
    return Amounts(memory=flavor.memory_mb * MIB * count, cores=flavor.vcpus * count)
