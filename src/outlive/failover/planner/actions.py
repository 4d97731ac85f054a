"""What assignment is asked and what it answers: needs, offers, and one action for each change or refusal.

Plain, frozen data that serialises to JSON. Who carries the actions out does so in the given order, because each one
was decided in the state that the ones before it leave behind.
"""

from __future__ import annotations

import msgspec

from outlive.failover.model import SlotView, VmView
from outlive.failover.sizing import ResolvedSize, resource_group


class Offer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What placement answers for one class of VMs, before the slots of this cycle are taken off."""

    hosts: tuple[str, ...] = ()
    """Hosts that every filter lets pass, best first. A VM's own host may be among them: the rules refuse it."""
    scores: tuple[float, ...] = ()
    """Score of each host. Hosts next to each other with equal scores are ties; without scores the order is strict."""
    rejected: dict[str, int] = {}
    """Filter step → number of hosts that it refused; only for reasons."""
    error: str = ""
    """Why placement could not answer; then ``hosts`` means nothing."""


class Need(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM that misses slots."""

    vm: str
    needed: int
    size: ResolvedSize
    offer_class: str
    """Key of the offers that were asked for VMs of its kind: flavor, zone, project."""


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


def opening(slot: SlotView, vm: str, vm_host: str) -> Open:
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
