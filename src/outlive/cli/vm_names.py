"""How tables name VMs: the display name before the id; only the id in a cluster where no VM has another name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from outlive.placement.vms import VmView
from outlive.store.naming import ObjectNames

ID_COLUMN: Final = "ID"


class VmColumns(NamedTuple):
    """The columns that name a VM, and their cells."""

    names: Mapping[str, str] = {}
    """Id → display name, of those that have one."""

    def titles(self, title: str = "VM") -> tuple[str, ...]:
        """One or two titles."""
        return (title, ID_COLUMN) if self.names else (title,)

    def cells(self, vm: str) -> tuple[str, ...]:
        """As many cells as there are titles; empty ones for no VM."""
        return (self.text(vm), vm) if self.names else (vm,)

    def text(self, vm: str) -> str:
        """The display name, else the id."""
        return self.names.get(vm) or vm


def vm_columns(vms: Iterable[VmView]) -> VmColumns:
    """The columns for tables about these VMs."""
    return VmColumns({vm.id: vm.name for vm in vms if vm.name and vm.name != vm.id})


def vm_names(vms: Iterable[VmView]) -> list[ObjectNames]:
    """What people call these VMs."""
    return [ObjectNames(vm.id, vm.name, vm.project) for vm in vms]
