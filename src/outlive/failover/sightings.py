"""Which hosts report which VMs as active, kept current host by host, and where a VM therefore is.

The same answers as ``outlive.failover.whereabouts.on_hypervisors`` gives for a whole listing, for one VM at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, KeysView

from outlive.failover.model import VmView
from outlive.failover.whereabouts import locate
from outlive.resources import Hypervisor
from outlive.resources.taking import unschedulable


class Sightings:
    """Host → the VMs that it reports as active, and back."""

    def __init__(self) -> None:
        self._on: dict[str, frozenset[str]] = {}
        self._of: dict[str, tuple[str, ...]] = {}
        self.lost: set[str] = set()
        """Hosts that are proven dead; what they reported last counts where nobody else reports the VM."""
        self.closed: dict[str, str] = {}
        """Host on which no slot can be used → why not."""

    def see(self, host: str, resource: Hypervisor | None) -> frozenset[str]:
        """The host looks like this now (``None``: it is gone); the VMs whose sightings changed."""
        before, was_lost = self._on.get(host, frozenset()), host in self.lost
        lost = resource is not None and bool(resource.status.lost)
        (self.lost.add if lost else self.lost.discard)(host)
        self.closed.pop(host, None)
        if resource is not None and (why := unschedulable(resource)):
            self.closed[host] = why
        if resource is None:
            now: frozenset[str] = frozenset()
            self._on.pop(host, None)
        else:
            now = frozenset(instance.id for instance in resource.status.instances if instance.active)
            self._on[host] = now
        for vm in before - now:
            left = tuple(name for name in self._of[vm] if name != host)
            if left:
                self._of[vm] = left
            else:
                del self._of[vm]
        for vm in now - before:
            self._of[vm] = tuple(sorted((*self._of.get(vm, ()), host)))
        return before | now if lost != was_lost else before ^ now

    def first(self, vm: str) -> str | None:
        """The first host, by name, that reports the VM; a lost one only where no other does."""
        found = self._of.get(vm)
        if not found:
            return None
        return next((host for host in found if host not in self.lost), found[0])

    def reports(self, host: str, vm: str) -> bool:
        """Whether this host reports the VM."""
        return host in self._of.get(vm, ())

    def located(self, vm: VmView | None, *, trust_hosts: bool) -> VmView | None:
        """The VM where it is, or ``None`` where nobody vouches for it."""
        if vm is None:
            return None
        first = self.first(vm.id)
        own = self.reports(vm.host, vm.id)
        return locate(vm, first, on_own_host=own, trust_hosts=trust_hosts, lost=first in self.lost)

    def on(self, host: str) -> frozenset[str]:
        """The VMs that the host reports."""
        return self._on.get(host, frozenset())

    @property
    def names(self) -> KeysView[str]:
        """All hosts, in no particular order."""
        return self._on.keys()

    @property
    def hosts(self) -> list[str]:
        """All hosts, by name."""
        return sorted(self._on)

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)
