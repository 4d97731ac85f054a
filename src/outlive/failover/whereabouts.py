"""Where VMs are: what a source believes, merged with what hosts report.

A source knows every VM's attributes and *believes* where it is (``outlive.failover.vms``); each host *reports* the VMs
that are active on it. ``on_hypervisors`` merges the two, in one of two trust modes
(docs/reference/failover.md#vm-source). Nothing is dropped without being counted. A stopped VM is reported by no host as
active and is not due, and so is in no result: it has no slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from outlive.failover.model import HostView, VmView
from outlive.failover.portions import Portions, portioned, whole

HOSTS_OF_A_PORTION = 50
"""Hosts that are looked at together; each may report many VMs."""


class Disagreement(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM that a host reports as active and that the source does not know."""

    vm: str
    name: str = ""
    hypervisor: str


class OnHypervisors(msgspec.Struct, frozen=True, kw_only=True):
    """The VMs that both sides vouch for, and why the others are not among them."""

    vms: tuple[VmView, ...] = ()
    sightings: dict[str, str] = {}
    """VM → the first host, by name, that reports it as active."""
    duplicates: tuple[Disagreement, ...] = ()
    """Further sightings of a VM that another host, earlier by name, reports as well (a live migration)."""
    not_in_source: tuple[Disagreement, ...] = ()
    nowhere_active: int = 0
    """VMs of the source that no host reports as active."""
    on_unknown_hypervisor: int = 0
    on_another_hypervisor: int = 0
    """Dropped where the source is trusted: another host than the source's reports the VM."""
    listed_nowhere: int = 0
    """Dropped where the source is trusted: its host is known, and no host reports the VM."""


def active_on(hosts: Iterable[HostView]) -> dict[str, str]:
    """VM id → the host that reports it as active; of several the first by name."""
    found: dict[str, str] = {}
    for host in sorted(hosts, key=lambda h: h.name):
        for vm in host.active:
            found.setdefault(vm, host.name)
    return found


def on_hypervisors(
    vms: Sequence[VmView], hosts: Sequence[HostView], *, trust_hosts: bool, names: Mapping[str, str] | None = None
) -> OnHypervisors:
    """The VMs of the source that run on known hosts, with their location.

    With ``trust_hosts`` the reporting host is the location (order: hosts by name, then as each reports; last those that
    nobody reports and that are due); without, the source's host is, and that very host must report the VM, unless it is
    due and no living host does (order of ``vms``).
    ``names`` (VM id → the host's own name of it) only enriches the warnings.
    """
    return whole(merging(vms, hosts, trust_hosts=trust_hosts, names=names))


def merging(
    vms: Sequence[VmView],
    hosts: Sequence[HostView],
    *,
    trust_hosts: bool,
    names: Mapping[str, str] | None = None,
    located: Callable[[VmView, str], VmView] | None = None,
) -> Portions[OnHypervisors]:
    """``on_hypervisors`` in portions. ``located`` stands in for ``located_at``, for whoever remembers its answers."""
    place = located or located_at
    ordered = sorted(hosts, key=lambda h: (h.lost, h.name))
    sightings, duplicates = yield from _sightings(ordered, names or {})
    known: dict[str, VmView] = {}
    nowhere = 0
    for portion in portioned(vms):
        known.update((vm.id, vm) for vm in portion)
        nowhere += sum(vm.id not in sightings for vm in portion)
        yield
    strangers: list[Disagreement] = []
    found: list[VmView] = []
    for seen in portioned(sightings.items()):
        for vm, host in seen:
            if vm not in known:
                strangers.append(Disagreement(vm=vm, name=(names or {}).get(vm, ""), hypervisor=host))
            elif trust_hosts:
                found.append(place(known[vm], host))
        yield
    if trust_hosts:
        for portion in portioned(vms):
            found += [vm for vm in portion if vm.id not in sightings and is_due(vm)]
            yield
    merged = OnHypervisors(
        vms=tuple(found),
        sightings=sightings,
        duplicates=duplicates,
        not_in_source=tuple(strangers),
        nowhere_active=nowhere,
    )
    if trust_hosts:
        return merged
    kept, unknown, elsewhere, unlisted = yield from _vouched(vms, ordered, sightings)
    return msgspec.structs.replace(
        merged,
        vms=kept,
        on_unknown_hypervisor=unknown,
        on_another_hypervisor=elsewhere,
        listed_nowhere=unlisted,
    )


def _sightings(
    ordered: Sequence[HostView], names: Mapping[str, str]
) -> Portions[tuple[dict[str, str], tuple[Disagreement, ...]]]:
    """VM id → first host that reports it, and the further sightings."""
    first: dict[str, str] = {}
    again: list[Disagreement] = []
    for hosts in portioned(ordered, HOSTS_OF_A_PORTION):
        for host in hosts:
            for vm in host.active:
                if first.setdefault(vm, host.name) != host.name:
                    again.append(Disagreement(vm=vm, name=names.get(vm, ""), hypervisor=host.name))
        yield
    return first, tuple(again)


def _vouched(
    vms: Sequence[VmView], ordered: Sequence[HostView], sightings: Mapping[str, str]
) -> Portions[tuple[tuple[VmView, ...], int, int, int]]:
    """The VMs that the source's own host reports, and how many fell to each of the three reasons."""
    reports: dict[str, frozenset[str]] = {}
    lost = {host.name for host in ordered if host.lost}
    for hosts in portioned(ordered, HOSTS_OF_A_PORTION):
        reports.update((host.name, frozenset(host.active)) for host in hosts)
        yield
    kept: list[VmView] = []
    unknown = elsewhere = unlisted = 0
    for portion in portioned(vms):
        for vm in portion:
            if (vm.id not in sightings or is_past(vm, sightings[vm.id], lost=sightings[vm.id] in lost)) and is_due(vm):
                kept.append(vm)
            elif vm.host not in reports:
                unknown += 1
            elif vm.id in reports[vm.host]:
                kept.append(vm)
            elif vm.id in sightings:
                elsewhere += 1
            else:
                unlisted += 1
        yield
    return tuple(kept), unknown, elsewhere, unlisted


def located_at(vm: VmView, host: str) -> VmView:
    """The VM where a host reports it."""
    return msgspec.structs.replace(vm, host=host, source="hypervisor")


def locate(
    vm: VmView | None, sighting: str | None, *, on_own_host: bool, trust_hosts: bool, lost: bool = False
) -> VmView | None:
    """One VM as ``on_hypervisors`` would show it, or ``None`` where it would be left out.

    ``sighting`` is the first host that reports it, ``lost`` whether that one is proven dead (then only such ones do),
    ``on_own_host`` whether the source's own host reports it.
    """
    if vm is None:
        return None
    if sighting is None:
        return vm if is_due(vm) else None
    if trust_hosts:
        return located_at(vm, sighting)
    return vm if on_own_host or (is_past(vm, sighting, lost=lost) and is_due(vm)) else None


def is_past(vm: VmView, sighting: str, *, lost: bool) -> bool:
    """Whether what the host reports is of the past: it is proven dead, or cannot run the VM, by the VM's document."""
    return lost or (vm.held != () and sighting not in vm.held)


def is_due(vm: VmView) -> bool:
    """Whether it counts where it is to run although nobody reports it.

    It has no domain only because it is being started, restarted or moved, for example after its host has booted. If
    that host fails now, it is recovered like any other, so its slots stay; where it goes it needs some already.
    """
    return vm.due and vm.host != ""
