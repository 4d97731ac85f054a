"""What reports show, as plain values: hosts with their figures, and how hosts are grouped."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from outlive.failover.model import HostView


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
        """What nobody has; below zero where too much is promised."""
        return None if self.capacity is None else self.capacity - self.used - self.reserved - self.committed

    def part(self, amount: int) -> float:
        """An amount as a share of the capacity."""
        return amount / self.capacity if self.capacity else 0.0


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


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """All hosts, and by what they are grouped."""

    hosts: tuple[HostFigures, ...]
    grouped_by: str
    """Name of the failure domain, such as ``rack``; empty: by zone only."""
    source: str
    """Where the state came from, in words."""
    when: str
    """When it was looked at, in words."""


def group_domain(views: Iterable[HostView], wanted: str = "") -> str:
    """The failure domain by which hosts are shown: the one in question, else racks, else the first by name."""
    domains = {name for view in views for name in view.domains}
    for name in (wanted, "rack", *sorted(domains)):
        if name in domains:
            return name
    return ""
