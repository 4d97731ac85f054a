"""How tables and sentences name VMs: the display name before the id; only the id where the VM has no other name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from outlive.store import ObjectNames

if TYPE_CHECKING:
    from outlive.placement import VmView

ID_COLUMN: Final = "ID"
_UUID: Final = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_WORD: Final = re.compile(r"[A-Za-z0-9](?:[\w.-]*\w)?")
"""What may be the id of a VM in a sentence."""
_IN_COMMAND: Final = re.compile(r"\boutlive [^;()]*\Z")
"""What stands before a word of a command."""


class VmColumns(NamedTuple):
    """The columns that name a VM, and their cells."""

    names: Mapping[str, str] = {}
    """Id → display name, of those that have one."""

    def column_titles(self, title: str = "VM") -> tuple[str, ...]:
        """One or two titles."""
        return (title, ID_COLUMN) if self.names else (title,)

    def name_cells(self, vm: str) -> tuple[str, ...]:
        """As many cells as there are titles; empty ones for no VM."""
        return (self.display_name(vm), vm) if self.names else (vm,)

    def display_name(self, vm: str) -> str:
        """The display name, else the id."""
        return self.names.get(vm) or vm

    def replace_ids(self, text: str, about: str = "") -> str:
        """The text with names for ids. ``about``: the VM whose id stands beside the text, and not in it again.

        In a command that the text names, another VM keeps its id alone, so that the command can be typed.
        """

        def replace_word(word: re.Match[str]) -> str:
            vm = word[0]
            if vm not in self.names or (vm != about and _IN_COMMAND.search(text, 0, word.start())):
                return vm
            return self.names[vm] if vm == about else f"{self.names[vm]} ({vm})"

        return _WORD.sub(replace_word, text) if self.names else text


def vm_columns(vms: Iterable[VmView]) -> VmColumns:
    """The columns for tables about these VMs."""
    return columns_of(vm_names(vms))


def columns_of(vms: Iterable[ObjectNames]) -> VmColumns:
    """The same for VMs of which only the names are known."""
    return VmColumns({vm.id: vm.name for vm in vms if vm.name and vm.name != vm.id})


def uuids_in(texts: Iterable[str]) -> list[str]:
    """What the texts name by UUID, as most VMs are."""
    return [found for text in texts for found in _UUID.findall(text)]


def vm_names(vms: Iterable[VmView]) -> list[ObjectNames]:
    """What people call these VMs."""
    return [ObjectNames(vm.id, vm.name, vm.project) for vm in vms]
