"""One entry of a listing: named values, read with their units, and what is wrong with them at its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outlive.base import BadInput, parse_bytes, parse_milli
from outlive.inventory import HostRecord, Inventory, RowCondition, VmRecord, check_columns, selects
from outlive.resources import Amounts


class ListingEntry:
    """A host or VM as a listing has it: ``values`` are of JSON, or texts."""

    def __init__(self, values: Mapping[str, Any], place: str, inventory: Inventory) -> None:
        self.values = values
        self.place = place
        self._inventory = inventory

    def get_text(self, *names: str) -> str:
        """The first of these values that there is; empty: none."""
        found = next((self.values[one] for one in names if self.values.get(one) not in (None, "")), "")
        return str(found).strip()

    def is_set(self, name: str) -> bool:
        """Whether the value says yes."""
        return self.get_text(name).lower() in ("1", "true", "yes", "y")

    def read_amounts(
        self, what: str, *, cpu: tuple[str, ...], memory: tuple[str, ...], unit: str = ""
    ) -> Amounts | None:
        """Cores and memory from the first value of each that there is; ``None`` where one is no quantity: a problem.

        ``unit``: what memory is counted in where the value names no unit, such as ``Mi``.
        """
        cores, size = self.get_text(*cpu), self.get_text(*memory)
        missing = " and ".join(name for name, value in (("cpu", cores), ("memory", size)) if not value)
        if missing:
            self.add_problem(f"{what} has no {missing}", "list it again while it answers, or leave it out with --where")
            return None
        try:
            return Amounts(cpu=parse_milli(cores), memory=parse_bytes(size if not size.isdigit() else f"{size}{unit}"))
        except BadInput as error:
            self.add_problem(f"{what}: {error.message}", error.remedy)
            return None

    def add_host(
        self, name: str, what: str, *, cpu: tuple[str, ...], memory: tuple[str, ...], unit: str = "", **facts: Any
    ) -> None:
        """List the host, and record it where its sizes can be read. ``what``: the word of its source; ``facts``: more
        fields of its record."""
        self._inventory.listed_hosts.add(name)
        capacity = self.read_amounts(f"{what} {name!r}", cpu=cpu, memory=memory, unit=unit)
        if capacity is not None:
            self._inventory.hosts.append(HostRecord(name=name, place=self.place, capacity=capacity, **facts))

    def add_vm(
        self, vm_id: str, what: str, *, cpu: tuple[str, ...], memory: tuple[str, ...], unit: str = "", **facts: Any
    ) -> None:
        """List the VM, and record it where its sizes can be read. ``what``: how its source calls it; ``facts``: more
        fields of its record."""
        self._inventory.listed_vms.add(vm_id)
        resources = self.read_amounts(what, cpu=cpu, memory=memory, unit=unit)
        if resources is not None:
            self._inventory.vms.append(VmRecord(id=vm_id, place=self.place, resources=resources, **facts))

    def add_problem(self, message: str, remedy: str) -> None:
        """Note what is wrong with it."""
        self._inventory.problems.add(self.place, message, remedy)


def select_entries(
    entries: Sequence[ListingEntry], conditions: Sequence[RowCondition], inventory: Inventory, option: str
) -> list[ListingEntry]:
    """The entries that meet all conditions; ``BadInput`` for a condition on what no entry has."""
    if entries:
        check_columns(conditions, sorted({name for one in entries for name in one.values}), inventory.what, option)
    chosen = [one for one in entries if selects(conditions, one.get_text)]
    inventory.rows_left_out += len(entries) - len(chosen)
    return chosen
