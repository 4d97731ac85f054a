"""Where VMs are: what a source believes, merged with what hosts report; and VMs of which that cannot be said.

A source knows every VM's attributes and *believes* where it is (``outlive.placement.vms``); each host *reports* the VMs
that are active on it. ``locate`` merges the two for one VM, in one of two trust modes
(docs/reference/failover-operation.md#vm-source). A VM that is to run and has no location is *unplaced*: it is counted
and reported with its reason, and covered by nothing. A stopped VM is neither: it needs no slots. ``merge`` answers for
a whole listing at once, ``Locations`` follows hosts and VMs change by change; both ask ``locate``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView, Mapping

import msgspec

from outlive.failover.model import HostView
from outlive.placement import VmView
from outlive.resources.reasons import CoverageReason


class Disagreement(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM that a host reports as active and that the source does not know, or that a second host reports."""

    vm: str
    name: str = ""
    hypervisor: str


class OnHypervisors(msgspec.Struct, frozen=True, kw_only=True):
    """The VMs whose location is known, the others with their reason, and what the two sides disagree about."""

    vms: tuple[VmView, ...] = ()
    unplaced: dict[str, CoverageReason] = {}
    """VM of the source that is to run and whose location is not known → why."""
    reporting: dict[str, str] = {}
    """VM → the host that reports it as active; of several the first by name, a lost one last."""
    duplicates: tuple[Disagreement, ...] = ()
    """Further hosts of a VM that another host, earlier by name, reports as well (a live migration)."""
    not_in_source: tuple[Disagreement, ...] = ()
    nowhere_active: int = 0
    """VMs of the source that no host reports as active."""
    on_unknown_hypervisor: int = 0
    on_another_hypervisor: int = 0
    """Without location where the source is trusted: another host than the source's reports the VM."""
    listed_nowhere: int = 0
    """Without location where the source is trusted: its host is known, and no host reports the VM."""


def locate(
    vm: VmView, reported_on: str | None, *, on_own_host: bool, trust_hosts: bool, past: bool = False
) -> VmView | None:
    """The VM where it is, or ``None`` where the two sides do not say so together.

    ``reported_on`` is the host that reports it, ``past`` whether only such ones do that are proven dead or cannot run
    it by the VM's own document, ``on_own_host`` whether the source's own host reports it. With ``trust_hosts`` the
    reporting host is the location; without, the source's is, and that very host must report the VM.

    Where nobody reports it, or what is reported is of the past, a VM that is due counts where it is to run: it has no
    domain only because it is being started, restarted or moved. If that host fails now, it is recovered like any other,
    so its slots stay; where it goes it needs some already.
    """
    is_due = vm.due and vm.host != ""
    if reported_on is None:
        return vm if is_due else None
    if trust_hosts and not (past and is_due):
        return msgspec.structs.replace(vm, host=reported_on, source="hypervisor")
    return vm if on_own_host or (past and is_due) else None


class Locations:
    """Which host reports which VMs, host by host, and where a VM therefore is."""

    def __init__(self, *, trust_hosts: bool) -> None:
        self._trust_hosts = trust_hosts
        self._on: dict[str, frozenset[str]] = {}
        self._stopped_on: dict[str, frozenset[str]] = {}
        self._of: dict[str, tuple[str, ...]] = {}
        self._names: dict[str, Mapping[str, str]] = {}
        self.lost: set[str] = set()
        """Hosts that are proven dead; what they reported last counts where nobody else reports the VM."""
        self.closed: dict[str, str] = {}
        """Host on which no slot can be used → why not, to follow its name."""

    def put_host(self, host: HostView, names: Mapping[str, str] | None = None) -> frozenset[str]:
        """The host looks like this now; the VMs whose location may have changed by it. ``names``: VM → host's name."""
        before, was_lost = self._on.get(host.name), host.name in self.lost
        now, stopped = frozenset(host.active), frozenset(host.stopped)
        changed = self._report(host.name, before or frozenset(), now)
        changed |= stopped ^ self._stopped_on.get(host.name, frozenset())
        self._on[host.name], self._stopped_on[host.name] = now, stopped
        self._names[host.name] = names or {}
        (self.lost.add if host.lost else self.lost.discard)(host.name)
        if host.unschedulable:
            self.closed[host.name] = host.unschedulable
        else:
            self.closed.pop(host.name, None)
        if host.lost != was_lost:
            changed |= now | (before or frozenset())
        return changed

    def remove_host(self, host: str) -> frozenset[str]:
        """The host is gone; the VMs that it listed."""
        listed = self._on.pop(host, frozenset())
        stopped = self._stopped_on.pop(host, frozenset())
        self._names.pop(host, None)
        self._report(host, listed, frozenset())
        self.lost.discard(host)
        self.closed.pop(host, None)
        return listed | stopped

    def _report(self, host: str, before: frozenset[str], now: frozenset[str]) -> frozenset[str]:
        for vm in before - now:
            left = tuple(name for name in self._of[vm] if name != host)
            if left:
                self._of[vm] = left
            else:
                del self._of[vm]
        for vm in now - before:
            self._of[vm] = tuple(sorted((*self._of.get(vm, ()), host)))
        return before ^ now

    def first_host(self, vm: str) -> str | None:
        """The first host, by name, that reports the VM; a lost one only where no other does."""
        found = self._of.get(vm)
        if not found:
            return None
        return next((host for host in found if host not in self.lost), found[0])

    def locate_vm(self, vm: VmView | None) -> VmView | None:
        """The VM where it is, or ``None`` where that is not known."""
        if vm is None:
            return None
        found = self._of.get(vm.id, ())
        present = tuple(host for host in found if host not in self.lost and (vm.held == () or host in vm.held))
        reported = present[0] if present else self.first_host(vm.id)
        own = vm.host in found
        return locate(vm, reported, on_own_host=own, trust_hosts=self._trust_hosts, past=not present)

    def unplaced_reason(self, vm: VmView) -> CoverageReason | None:
        """Why a VM without location counts as exposed; ``None`` for one that is stopped."""
        if vm.id in self._of:
            return CoverageReason.DISPUTED if vm.host in self._on else CoverageReason.HOST_UNKNOWN
        if vm.stopped:
            return None
        if vm.host not in self._on:
            return CoverageReason.HOST_UNKNOWN
        return None if vm.id in self._stopped_on[vm.host] else CoverageReason.NOT_REPORTED

    def vms_on(self, host: str) -> frozenset[str]:
        """The VMs that the host reports."""
        return self._on.get(host, frozenset())

    @property
    def names(self) -> KeysView[str]:
        """All hosts, in no particular order."""
        return self._on.keys()

    def __contains__(self, vm: object) -> bool:
        return vm in self._of

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def name_on_host(self, vm: str, host: str) -> str:
        """What the host calls the VM."""
        return self._names.get(host, {}).get(vm, "")

    def merge(
        self,
        known: Mapping[str, VmView],
        located: Mapping[str, VmView],
        *,
        listed: Iterable[str] | None = None,
        reported: Iterable[str] | None = None,
    ) -> OnHypervisors:
        """What the two sides disagree about. ``known``: what the source says; ``located``: VMs with a location.

        ``listed`` and ``reported``: only about these VMs of the source, and these that hosts report.
        """
        reporting = {
            vm: self.first_host(vm) or "" for vm in (self._of if reported is None else reported) if vm in self._of
        }
        unplaced: dict[str, CoverageReason] = {}
        nowhere = unknown = another = unlisted = 0
        for vm in known if listed is None else listed:
            nowhere += vm not in self._of
            if vm in located or vm not in known:
                continue
            view = known[vm]
            why = self.unplaced_reason(view)
            if why is not None:
                unplaced[vm] = why
            if not self._trust_hosts:
                unknown += view.host not in self._on
                another += view.host in self._on and vm in self._of
                unlisted += view.host in self._on and vm not in self._of
        return OnHypervisors(
            vms=tuple(located.values()) if listed is None else (),
            unplaced=unplaced,
            reporting=reporting,
            duplicates=tuple(
                Disagreement(vm=vm, name=self.name_on_host(vm, host), hypervisor=host)
                for vm, first in reporting.items()
                if len(self._of[vm]) > 1
                for host in self._of[vm]
                if host != first
            ),
            not_in_source=tuple(
                Disagreement(vm=vm, name=self.name_on_host(vm, host), hypervisor=host)
                for vm, host in reporting.items()
                if vm not in known
            ),
            nowhere_active=nowhere,
            on_unknown_hypervisor=unknown,
            on_another_hypervisor=another,
            listed_nowhere=unlisted,
        )


def merge(
    vms: Iterable[VmView], hosts: Iterable[HostView], *, trust_hosts: bool, names: Mapping[str, str] | None = None
) -> OnHypervisors:
    """The VMs of a source where they are, in the order of the source, or by host where hosts are trusted.

    ``names`` (VM id → the host's own name of it) only enriches what is reported.
    """
    locations = Locations(trust_hosts=trust_hosts)
    ordered = sorted(hosts, key=lambda host: (host.lost, host.name))
    for host in ordered:
        locations.put_host(host, {vm: names[vm] for vm in host.active if vm in names} if names else None)
    known = {vm.id: vm for vm in vms}
    order: dict[str, None] = dict.fromkeys(vm for host in ordered for vm in host.active if vm in known)
    if not trust_hosts:
        order = {}
    order.update(dict.fromkeys(known))
    located = {vm: found for vm in order if (found := locations.locate_vm(known[vm])) is not None}
    return locations.merge(known, located)
