"""What continuous inventories need of the outside: a source that says what there is, and what has changed since."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from outlive.inventory.records import Inventory


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer of a source."""

    inventory: Inventory
    """All hosts, VMs and flavors; or, where it is not ``full``, those that changed, each whole."""
    full: bool
    deleted: frozenset[str] = frozenset()
    """VMs that the source says are gone, by id."""


class InventorySource(Protocol):
    """Who knows hosts and VMs. Every call may raise ``Unavailable``, and gives no part of an answer."""

    name: str
    """In a word; also the creator of what is made from it."""

    async def read(self) -> Reading:
        """Everything at first and now and then, in between what has changed since the reading before."""
        ...

    async def find_missing(self, vm_ids: Iterable[str]) -> frozenset[str]:
        """Those of these VMs of which the source says that there are none, as far as it could be asked now."""
        ...

    def forget(self) -> None:
        """Read everything next time: what the last readings said was not taken over."""
        ...
