"""Give VMs the slots that they miss: reuse an existing slot, else open a new one.

The greedy order of docs/reference/failover.md#assigning. It is exact about the rules and about capacity as offered, and
makes no attempt at the smallest number of slots.
"""

from __future__ import annotations

import msgspec

from outlive.failover.actions import Action, Fail, Join, Need, Offer, Open
from outlive.failover.compat import Compat
from outlive.failover.model import SlotView, VmView

__all__ = ["Action", "AssignInput", "AssignResult", "Fail", "Join", "Need", "Offer", "Open", "assign"]


class AssignInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The state after clean-up, who misses slots, and what placement offers."""

    slots: tuple[SlotView, ...]
    vms: tuple[VmView, ...]
    """At least the VMs of ``needs``."""
    needs: tuple[Need, ...]
    """In the order in which they are served."""
    reuse: dict[str, Offer] = {}
    """Class → hosts whose slots such VMs may join."""
    new: dict[str, Offer] = {}
    """Class → hosts that can hold a new slot for such VMs."""
    free: dict[str, tuple[int, int]] = {}
    """Host → free milli-cores and bytes before this answer's slots; a host that is missing here has no limit."""
    hosts: tuple[str, ...] = ()
    """All hosts, for the numbers in reasons."""
    one_new_per_host: bool = False
    """At most one new slot a host and cycle."""
    used_hosts: tuple[str, ...] = ()
    """Hosts that already received a new slot in this cycle."""
    excluded_slots: tuple[str, ...] = ()
    """Slots whose write failed in this cycle: nobody may join them and the rules overlook them."""
    key_prefix: str = "new-"
    """Keys of new slots are this and a number; it must not begin the name of an existing slot."""
    compat: Compat = Compat()


class AssignResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What to do, in order."""

    actions: tuple[Action, ...] = ()
    slots: tuple[SlotView, ...] = ()
    """The slots as the actions leave them; new ones are named by their key."""
    reused: int = 0
    created: int = 0
    failed: int = 0


def assign(given: AssignInput) -> AssignResult:
    """Serve every need in order; each VM ends with the slots it misses or with one ``Fail``."""
    raise NotImplementedError
