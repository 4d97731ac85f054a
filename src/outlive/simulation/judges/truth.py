"""What judges look at: machines, domains and the store as they really are, never what a process believes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from outlive.base import LoopClock
from outlive.resources import Cut, Holder, MemberRecord, Membership, VirtualMachine
from outlive.simulation.disks import SimDisks
from outlive.simulation.history import History, HistoryEvent
from outlive.simulation.hypervisors import SimHypervisor
from outlive.simulation.network.fabric import Fabric
from outlive.simulation.stores import WorldStore

VIOLATIONS_LIMIT = 50
"""Violations of one run that are kept."""


class InvariantViolation(msgspec.Struct, frozen=True, kw_only=True):
    """An invariant that did not hold."""

    invariant: str
    at_s: float
    subject: str
    text: str
    last_events: tuple[HistoryEvent, ...] = ()
    """Of the objects involved."""
    seed: int = 0
    replay: str = ""
    """The command that runs the same again."""

    def __str__(self) -> str:
        lines = [f"{self.invariant} at {self.at_s:.3f} s, {self.subject}: {self.text} (seed {self.seed})"]
        lines += [f"  {event}" for event in self.last_events]
        if self.replay:
            lines.append(f"  again with: {self.replay}")
        return "\n".join(lines)


@dataclass(slots=True)
class Truth:
    """See the module."""

    store: WorldStore
    hypervisors: Mapping[str, SimHypervisor]
    disks: SimDisks
    history: History
    lied: dict[str, str] = field(default_factory=dict)
    """Hosts about which somebody lied to the protocol on purpose, and how: what is proven of them may be untrue."""
    proven: dict[str, int] = field(default_factory=dict)
    """Membership, by uid → epoch through which it was on record as dead, also after somebody deleted it."""
    cut_when_deleted: dict[str, tuple[Cut, float]] = field(default_factory=dict)
    """Membership that somebody deleted, by uid → what its host was isolated from then, and when that was."""
    renewed_s: dict[str, float] = field(default_factory=dict)
    """Membership, by uid → when a write of it counted last while it was held."""
    ordered: dict[tuple[str, str], None] = field(default_factory=dict)
    """Host and order (``spec.fencing.requested``) where somebody asked for a fence, called off since or not."""
    deleted: dict[str, None] = field(default_factory=dict)
    """VMs that somebody deleted."""
    fabric: Fabric | None = None
    """OVN, where VMs have networks there."""
    daemons: bool = True
    """Whether hosts run our daemon."""
    restored: bool = False
    """Whether a backup was put back: until a host has registered again, the store knows less than is so of it."""
    holding: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """VM → hosts with a domain of it, each change of a domain updates it."""
    began_s: dict[tuple[str, str], float] = field(default_factory=dict)
    """Host and VM → when its domain there began to run, also of one that is paused now."""
    had: dict[str, dict[str, None]] = field(default_factory=dict)
    """Disk → VMs of which a domain has ever had it."""

    def running_hosts(self, vm: str) -> tuple[str, ...]:
        """Hosts whose domain of it really runs."""
        return tuple(host for host in self.holding.get(vm, ()) if self.hypervisors[host].runs(vm))

    def harms(self, host: str, vm: str) -> bool:
        """Whether the domain there still reaches a disk of it, or the network though the VM does not accept that."""
        domain = self.hypervisors[host].domains[vm]
        if self.disks.reaches_disks(host, domain):
            return True
        return self.is_answering(host, vm) and not domain.accept_duplicate

    def is_answering(self, host: str, vm: str) -> bool:
        """Whether the running domain there answers at any address of it: as OVN has it for interfaces that are there,
        else unless it is shut out of the port."""
        domain = self.hypervisors[host].domains[vm]
        own = self.fabric.ports_of(vm) if self.fabric is not None else ()
        if self.fabric is None or not own:
            return self.disks.reaches_network(host, domain)
        if any(self.fabric.answered_addresses(host, port) for port in own):
            return True
        others = tuple(one for one in domain.ports if self.fabric.vm_of(one) != vm)
        return bool(others) and self.disks.reaches_network(host, domain, others)

    def note_domain(self, host: str, vm: str) -> None:
        """Its domain on that host came, changed or went."""
        hosts = self.holding.get(vm, ())
        domain = self.hypervisors[host].domains.get(vm)
        there = domain is not None
        for disk in domain.disks if domain is not None else ():
            self.had.setdefault(disk, {})[vm] = None
        if not there:
            self.began_s.pop((host, vm), None)
        elif self.hypervisors[host].runs(vm):
            self.began_s.setdefault((host, vm), LoopClock().monotonic())
        if there and host not in hosts:
            self.holding[vm] = (*hosts, host)
        elif not there and host in hosts:
            self.holding[vm] = tuple(one for one in hosts if one != host)

    def find_member(self, holder: Holder) -> MemberRecord | None:
        """The record that the entry was written under."""
        found = self.store.find(Membership, holder.hypervisor)
        return found.record if found is not None and found.metadata.uid == holder.member_uid else None

    def is_lost_and_over(self, holder: Holder) -> bool:
        """Whether its membership is lost, and it is on record, with a proof, that what it ran is over."""
        found = self.store.find(Membership, holder.hypervisor)
        former = found.record.former if found is not None else ()
        return any(one.uid == holder.member_uid and one.dead_through >= holder.epoch for one in former)

    def is_unregistered(self, host: str) -> bool:
        """Whether the host has not registered yet what it runs, in a store that was restored."""
        member = self.store.find_member_record(host) if self.restored else None
        return self.restored and (member is None or member.incarnation != self.store.incarnation)

    def find_vm(self, name: str) -> VirtualMachine | None:
        """The VM's document."""
        return self.store.find(VirtualMachine, name)
