"""Who misses slots, who is served in this cycle, how the cycle is summed up, and when the next one is.

Rules: docs/reference/failover.md#assigning. Chance enters as a number in the input, so that it replays.
"""

from __future__ import annotations

import msgspec

from outlive.failover.compat import Compat
from outlive.failover.model import SlotView, VmView


class Missing(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM with fewer slots than it needs."""

    vm: str
    required: int
    present: int

    @property
    def needed(self) -> int:
        """How many slots it misses."""
        return self.required - self.present


class SelectInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """All VMs, what they need, the slots after clean-up, and the limits of a cycle."""

    vms: tuple[VmView, ...]
    slots: tuple[SlotView, ...]
    required: dict[str, int]
    """VM → slots that it needs; missing means none."""
    limit: int = 0
    """VMs served in a cycle; 0 or less: all."""
    rotation: int = 0
    """Every n-th cycle starts at a random place; 0: never."""
    cycle: int = 1
    """Number of this cycle, the first being 1."""
    draw: float = 0.0
    """A uniform random number in [0, 1), used where rotation applies."""
    compat: Compat = Compat()


class SelectResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Who misses slots, and who of them is served."""

    missing: tuple[Missing, ...] = ()
    """Everybody, largest memory first, then by id."""
    selected: tuple[Missing, ...] = ()
    limit_hit: bool = False
    start: int = 0
    """Place in ``missing`` where the selection began."""

    @property
    def needed(self) -> int:
        """Slots missed by the selected VMs."""
        return sum(one.needed for one in self.selected)


class PauseInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a cycle went, and the settings of pauses."""

    limit_hit: bool
    reused: int
    created: int
    failed: int
    normal_s: float
    short_s: float
    min_success: int
    max_failures: int


def select(given: SelectInput) -> SelectResult:
    """List the VMs that miss slots and choose whom this cycle serves."""
    raise NotImplementedError


def next_pause_s(given: PauseInput) -> float:
    """Seconds until the next cycle: the short pause while catching up goes well, else the normal one."""
    raise NotImplementedError
