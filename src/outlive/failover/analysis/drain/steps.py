"""What is asked about emptying hosts, and what is answered: steps of which every prefix is a state that holds.

A step is the smallest change that somebody can carry out by itself. Their order is the answer: after each of them the
rules hold, no host holds more than it can, and every VM tolerates as many failures as was asked for
(docs/reference/failover-analysis.md#what-if).
"""

from __future__ import annotations

import enum

import msgspec

from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Join, Leave, Offer, Open
from outlive.failover.sizes import ResolvedSize
from outlive.failover.topology import Topology
from outlive.placement.vms import VmView

SEARCHED_CHANGES = 30_000
"""Changes from one arrangement to another that a search looks at."""


class Close(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="close", tag_field="action"):
    """Give up an empty slot; what it held is free from here on."""

    slot: str
    host: str


class Move(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="move", tag_field="action"):
    """Bring the VM to another host; it holds capacity on both while that goes on, and stays in its slots."""

    vm: str
    source: str
    host: str


Step = Join | Open | Leave | Close | Move


class Stuck(enum.StrEnum):
    """Why something cannot leave its host."""

    NO_HOST = "no-host"
    """Placement would take the VM nowhere else, however much room there were."""
    NO_ROOM = "no-room"
    """No host is left that could ever hold it."""
    TOO_LITTLE = "too-little-capacity"
    """The hosts that stay have too little for all of it together."""
    TOO_FEW_HOSTS = "too-few-hosts"
    """The VM's slots need more units of failure than are left."""
    NO_ORDER = "no-order"
    """All orders were looked through, and none keeps what was asked for."""
    NOT_FOUND = "none-found"
    """No order was found within the named limits; there may be one."""


class Obstacle(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Something that cannot leave, and why."""

    reason: Stuck
    vm: str = ""
    slot: str = ""
    host: str = ""
    detail: str = ""


class DrainInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A fleet, the hosts to empty, and what placement says of their VMs and of slots."""

    drained: tuple[str, ...]
    """Hosts to empty; nothing is put on them."""
    vms: tuple[VmView, ...]
    required: dict[str, int]
    """VM → slots that it needs; missing means none."""
    slots: tuple[SlotView, ...] = ()
    sizes: dict[str, ResolvedSize] = {}
    """VM → size of its slots; missing means its own."""
    priorities: dict[str, int] = {}
    destinations: dict[str, tuple[str, ...]] = {}
    """VM on a drained host → hosts that may run it if they have room, best first."""
    classes: dict[str, str] = {}
    """VM → key of its offers; missing means the empty key."""
    reuse: dict[str, Offer] = {}
    new: dict[str, Offer] = {}
    """Class → hosts that may hold slots for such VMs if they have room."""
    free: dict[str, dict[str, int]] = {}
    """Host → resource → free after VMs and all reservations. A host that is missing here has no room; an empty table
    limits nothing."""
    keep: int | None = None
    """Failures that every VM tolerates throughout, or what it tolerates now if that is less; ``None``: what it
    tolerates now, at most the slots that it needs."""
    topology: Topology = Topology()
    search_limit: int = SEARCHED_CHANGES
    """Changes that a complete search may look at."""


class DrainResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The order in which the hosts can be emptied, or what stands in the way."""

    possible: bool
    proven: bool = True
    """Of a no: whether it is certain that there is no order."""
    steps: tuple[Step, ...] = ()
    vms: tuple[VmView, ...] = ()
    """All VMs afterwards."""
    slots: tuple[SlotView, ...] = ()
    """All slots afterwards, new ones named by their key."""
    obstacles: tuple[Obstacle, ...] = ()
    weaker: dict[str, int] = {}
    """VM → failures that it tolerates at the beginning, where that is less than was asked for; it keeps that."""
    limit: str = ""
    """The limit that ended the search, where nothing is proven."""
