"""An inventory with the joins that all views share, under the filters that the user asked for.

A filter chooses hosts; a VM or a slot is shown with its host. Rules are always judged on everything that is there, so
that a filter never changes a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Literal

import msgspec

from outlive.failover.model import SlotView, host_view
from outlive.failover.protection import Demands
from outlive.failover.slots import building_block, slot_view
from outlive.failover.topology import Topology, TopologyChoice
from outlive.placement import VmView, placed_on, view_of_resource
from outlive.resources import COMMITTED, FAILOVER, Amounts, Hypervisor, Reservation, VirtualMachine


class ViewOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What to show, and in which order."""

    sort: Literal["vm", "vm-host", "res-host"] = "vm"
    views: tuple[str, ...] = ()
    """Only these views; none: all."""
    hide: tuple[str, ...] = ()
    """Not these views."""
    filter_name: str = ""
    """Only hosts with this in their name, whatever the case."""
    filter_trait: str = ""
    """Only hosts with this trait, whatever the case."""


class ReportedVm(msgspec.Struct, frozen=True, kw_only=True):
    """A VM as some host reports it."""

    vm: str
    name: str
    host: str
    active: bool


class ViewData:
    """What views read."""

    def __init__(self, inventory: ViewSnapshot, options: ViewOptions) -> None:
        self.inventory = inventory
        self.options = options

    # Hosts

    @cached_property
    def hosts(self) -> list[Hypervisor]:
        """The hosts that the filters let through, by building block and then name."""
        name, trait = self.options.filter_name.lower(), self.options.filter_trait.lower()
        chosen = [
            host
            for host in self.inventory.hypervisors
            if name in host.name.lower() and (not trait or any(one.lower() == trait for one in traits_of(host)))
        ]
        return sorted(chosen, key=lambda host: block_order(host.name))

    @cached_property
    def topology(self) -> Topology:
        """What fails together, by all hosts, unfiltered."""
        choice = self.inventory.choice
        return choice.topology_of([host_view(host) for host in self.inventory.hypervisors] if choice.domains else ())

    @cached_property
    def _chosen_names(self) -> frozenset[str]:
        return frozenset(host.name for host in self.hosts)

    @property
    def filtered(self) -> bool:
        """Whether any filter is on."""
        return bool(self.options.filter_name or self.options.filter_trait)

    def shows(self, host: str) -> bool:
        """Whether things on this host are shown; on a host that nobody knows, only without filters."""
        return host in self._chosen_names or not self.filtered

    # VMs

    @cached_property
    def reports(self) -> dict[str, ReportedVm]:
        """VM → where it is reported as active, else where it is reported at all; the first host by name counts."""
        found: dict[str, ReportedVm] = {}
        for host in sorted(self.inventory.hypervisors, key=lambda one: one.name):
            for one in host.status.instances:
                before = found.get(one.id)
                if before is None or (one.active and not before.active):
                    found[one.id] = ReportedVm(vm=one.id, name=one.name, host=host.name, active=one.active)
        return found

    @cached_property
    def servers(self) -> dict[str, VmView]:
        """VM → what the VM source says."""
        return {vm.id: vm for vm in self.inventory.servers or ()}

    @property
    def source_read(self) -> bool:
        """Whether the VM source could be read."""
        return self.inventory.servers is not None

    def host_of(self, vm: str) -> str:
        """Where the VM is: by the hosts, else by the source."""
        seen = self.reports.get(vm)
        if seen is not None:
            return seen.host
        server = self.servers.get(vm)
        return server.host if server is not None else ""

    @cached_property
    def reported(self) -> list[str]:
        """The VMs that hosts report and that are shown, in the order that was asked for."""
        return self.order_vms(vm for vm, seen in self.reports.items() if self.shows(seen.host))

    def order_vms(self, vms: Iterable[str]) -> list[str]:
        """VMs in the order that was asked for."""
        match self.options.sort:
            case "vm":
                return sorted(vms)
            case "vm-host":
                return sorted(vms, key=lambda vm: (self.host_of(vm), vm))
            case "res-host":
                return sorted(vms, key=lambda vm: (self._first_slot_host(vm), vm))

    def _first_slot_host(self, vm: str) -> tuple[bool, str]:
        mine = self.slots_of(vm)
        return (not mine, min((shown_host(slot) for slot in mine), default=""))

    def size_of(self, vm: str) -> tuple[float | None, int | None]:
        """Cores and bytes, where the source knows them."""
        server = self.servers.get(vm)
        if server is None or not (server.cpu_milli or server.memory_bytes):
            return None, None
        return server.cpu_milli / 1000, server.memory_bytes

    # Slots

    @cached_property
    def slots(self) -> list[SlotView]:
        """All slots, unfiltered, by name."""
        found = [slot_view(one) for one in self.inventory.reservations if one.spec.type == FAILOVER]
        return sorted(found, key=lambda slot: slot.name)

    @cached_property
    def shown_slots(self) -> list[SlotView]:
        """The slots on hosts that are shown, by name, or by host where that was asked for."""
        shown = [slot for slot in self.slots if self.shows(shown_host(slot))]
        by_host = self.options.sort == "res-host"
        return sorted(shown, key=lambda slot: (shown_host(slot), slot.name)) if by_host else shown

    @cached_property
    def _slots_of(self) -> dict[str, list[SlotView]]:
        found: dict[str, list[SlotView]] = {}
        for slot in self.slots:
            for vm in slot.members:
                found.setdefault(vm, []).append(slot)
        return found

    def slots_of(self, vm: str) -> Sequence[SlotView]:
        """The slots that the VM is a member of, by name."""
        return self._slots_of.get(vm, ())

    @cached_property
    def slots_on(self) -> dict[str, list[SlotView]]:
        """Host → the slots that it holds."""
        found: dict[str, list[SlotView]] = {}
        for slot in self.slots:
            found.setdefault(shown_host(slot), []).append(slot)
        return found

    @cached_property
    def committed_on(self) -> dict[str, Amounts]:
        """Host → what commitments hold there."""
        found: dict[str, Amounts] = {}
        for one in self.inventory.reservations:
            if one.spec.type == COMMITTED:
                if not (host := placed_on(one)):
                    continue
                found[host] = found.get(host, Amounts()) + one.spec.resources
        return found


def shown_host(slot: SlotView) -> str:
    """Where a slot is, for showing only: where it was found, else where it is wanted."""
    return slot.host or slot.target_host


def ready_word(slot: SlotView) -> str:
    """The ``Ready`` condition as a word."""
    return {True: "True", False: "False", None: "-"}[slot.ready]


def block_order(host: str) -> tuple[int, str]:
    """Building block, then name; hosts without a block come last."""
    block = building_block(host)
    return (int(block.removeprefix("bb")) if block else 2**31, host)


def traits_of(host: Hypervisor) -> list[str]:
    """All traits of a host, sorted."""
    return sorted({*host.status.traits, *host.spec.custom_traits})


Cell = str | int | float | bool | list[str] | None
"""A value as JSON has it; a list is shown with commas."""


class ViewTable(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Columns and rows; amounts have their unit in the column's name (``cpu``: cores, ``memoryBytes``)."""

    view: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...] = ()
    totals: tuple[Cell, ...] | None = None
    """One value a column, where sums mean something."""
    note: str = ""
    """What the reader must know, such as a source that could not be read."""

    def to_records(self) -> list[dict[str, Cell]]:
        """The rows as maps from column to value."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class ViewSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One look at everything."""

    hypervisors: tuple[Hypervisor, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    servers: tuple[VmView, ...] | None = None
    """All VMs of the VM source; ``None``: it could not be read.

    The host is empty where it places them nowhere, cpu and memory are 0 where their size is unknown.
    """
    demands: Demands = Demands({})
    """What VMs need by the settings in force."""
    choice: TopologyChoice = TopologyChoice()
    """What fails together and what is kept apart by the settings in force."""


def inventory_of(
    hypervisors: Sequence[Hypervisor],
    reservations: Sequence[Reservation],
    vms: Iterable[VirtualMachine],
    demands: Demands | None = None,
    choice: TopologyChoice = TopologyChoice(),
) -> ViewSnapshot:
    """From our own objects."""
    return ViewSnapshot(
        hypervisors=tuple(sorted(hypervisors, key=lambda host: host.name)),
        reservations=tuple(sorted(reservations, key=lambda slot: slot.name)),
        servers=tuple(view_of_resource(vm) for vm in sorted(vms, key=lambda vm: vm.name)),
        demands=demands or Demands({}),
        choice=choice,
    )
