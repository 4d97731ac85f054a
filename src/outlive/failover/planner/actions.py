"""What planning is asked and what it answers: a fleet, needs, offers, and one action for each change or refusal.

Plain, frozen data that serialises to JSON. Who carries the actions out does so in the given order, because each one
was decided in the state that the ones before it leave behind.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from outlive.failover.model import SlotView
from outlive.failover.slots import ResolvedSize, enlarge_for_vm, resolve_size, resource_group
from outlive.failover.topology import Topology
from outlive.placement import VmView


class PlacementOffer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What placement answers for one class of VMs, before the slots of this cycle are taken off."""

    hosts: tuple[str, ...] = ()
    """Hosts that every filter lets pass, best first. A VM's own host may be among them: the rules refuse it."""
    scores: tuple[float, ...] = ()
    """Score of each host. Hosts next to each other with equal scores are ties; without scores the order is strict."""
    rejected: dict[str, int] = {}
    """Filter step → number of hosts that it refused; only for reasons."""
    error: str = ""
    """Why placement could not answer; then ``hosts`` means nothing."""


class SlotOffers(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What there is for VMs that miss slots, and in which order they come."""

    priorities: dict[str, int] = {}
    """VM → priority, larger is earlier; missing means 0."""
    reuse: dict[str, PlacementOffer] = {}
    """Class → hosts whose slots such VMs may join."""
    new: dict[str, PlacementOffer] = {}
    """Class → hosts that can hold a new slot for such VMs."""
    free: dict[str, tuple[int, int]] = {}
    """Host → free milli-cores and bytes before the new slots.

    A host that is missing here has no room; an empty table limits nothing.
    """
    hosts: tuple[str, ...] = ()
    """All hosts, for the numbers in reasons."""
    one_new_per_host: bool = False
    """At most one new slot a host and cycle."""
    topology: Topology = Topology()


class PlanInput(SlotOffers, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A fleet, what its VMs need, and what placement offers."""

    vms: tuple[VmView, ...]
    required: dict[str, int]
    """VM → slots that it needs; missing means none."""
    slots: tuple[SlotView, ...] = ()
    sizes: dict[str, ResolvedSize] = {}
    """VM → size of its slots; missing means its own."""
    classes: dict[str, str] = {}
    """VM → key of its offers; missing means the empty key."""
    packing: bool = True
    """Look for a plan that reserves less; off gives the plain greedy one of a cycle."""
    effort_s: float = msgspec.field(default=0.0, name="effort")
    """Nominal seconds of search for a plan that reserves still less; the same number gives the same plan."""
    seed: int = 0
    """Which of the equally likely searches it is."""

    @property
    def offered_hosts(self) -> list[str]:
        """All hosts, and any others that are offered for new slots."""
        return list(dict.fromkeys([*self.hosts, *(host for offer in self.new.values() for host in offer.hosts)]))

    def size_of(self, vm: VmView) -> ResolvedSize:
        """How large a slot is that the VM opens."""
        return enlarge_for_vm(vm, self.sizes.get(vm.id) or resolve_size(vm))


def offered_hosts(offers: Mapping[str, PlacementOffer]) -> dict[str, frozenset[str]]:
    """Class → the hosts that are offered; none where placement could not answer."""
    return {key: frozenset(() if offer.error else offer.hosts) for key, offer in offers.items()}


class Need(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM that misses slots."""

    vm: str
    needed: int
    size: ResolvedSize
    offer_class: str
    """Key of the offers that were asked for VMs of its kind: flavor, zone, project."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A VM that misses slots, and its turn to be served."""

    vm: VmView
    need: Need
    present: int = 0
    """Slots that it has."""
    priority: int = 0

    def subtract(self, got: int) -> Claim:
        """What is left of it once the VM got so many slots."""
        need = msgspec.structs.replace(self.need, needed=self.need.needed - got)
        return msgspec.structs.replace(self, need=need, present=self.present + got)


class Join(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="join", tag_field="action"):
    """Put the VM into an existing slot."""

    slot: str
    vm: str
    vm_host: str
    """Where the VM runs: what is recorded next to it."""
    host: str
    """Where the slot is."""


class Open(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="open", tag_field="action"):
    """Create a slot with this VM as its first member."""

    slot_key: str
    """What the other actions of the same answer call this slot; the real name is given when it is created."""
    vm: str
    vm_host: str
    """Where the VM runs: what is recorded next to it."""
    host: str
    """Where the slot shall be."""
    cpu_milli: int
    memory_bytes: int
    group: str
    zone: str


class Leave(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="leave", tag_field="action", omit_defaults=True
):
    """Take the VM out of a slot; a slot without members goes."""

    slot: str
    vm: str
    host: str = ""
    """Where the slot is; only in steps that empty hosts."""


class Fail(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="fail", tag_field="action"):
    """The VM gets no further slot in this cycle, and why."""

    vm: str
    reason: str
    """A code of ``outlive.resources.reasons.coverage``."""
    detail: str
    """The reason with its numbers, true in the state that the actions before it leave behind."""
    remedy: str
    missing: int = 0
    """Slots that the VM still misses."""


Action = Join | Open | Leave | Fail


def new_slot(key: str, host: str, vm: VmView, size: ResolvedSize) -> SlotView:
    """The slot that the VM opens on the host, without its member."""
    return SlotView(
        name=key,
        host=host,
        target_host=host,
        zone=vm.zone,
        group=resource_group(vm, size),
        cpu_milli=size.cpu_milli,
        memory_bytes=size.memory_bytes,
        ready=True,
    )


def open_action(slot: SlotView, vm: str, vm_host: str) -> Open:
    """The action that opens the slot for this VM."""
    return Open(
        slot_key=slot.name,
        vm=vm,
        vm_host=vm_host,
        host=slot.host,
        cpu_milli=slot.cpu_milli,
        memory_bytes=slot.memory_bytes,
        group=slot.group,
        zone=slot.zone,
    )
