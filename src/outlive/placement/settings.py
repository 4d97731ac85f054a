"""Settings of placement, section ``scheduler`` (docs/reference/placement.md#settings).

The defaults are the product's rules. What an operator may choose otherwise has a key of its own.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

NonNegative = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
RATIO_LIMIT = 1000.0
"""The largest ratio of overcommit."""


class OvercommitMapping(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How much more than they have hosts with a trait, or without it, may give."""

    overcommit: dict[str, float]
    """``cpu`` and ``memory`` → ratio of at least 1."""
    has_trait: str = ""
    hasnt_trait: str = ""

    def __post_init__(self) -> None:
        if bool(self.has_trait) == bool(self.hasnt_trait):
            raise ValueError("overcommitMappings: give exactly one of hasTrait and hasntTrait")
        for name, ratio in self.overcommit.items():
            if name not in ("cpu", "memory"):
                raise ValueError(f"overcommitMappings: {name!r} is not known, write cpu or memory")
            if not 1.0 <= ratio <= RATIO_LIMIT:
                raise ValueError(f"overcommitMappings: {name} has the ratio {ratio}, write 1 to {RATIO_LIMIT:g}")


class PlacementSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How placement answers. Keys are camelCase in the file and on the command line."""

    auth: Literal["token", "mtls", "none"] = "token"
    """How callers of ``POST /scheduler/nova/external`` authenticate."""
    nova_limit_hosts_to_request: bool = True
    """Answer only hosts that the request named, as Nova requires."""
    evacuation_shuffle_k: NonNegative = 3
    """First hosts of an evacuation that are permuted, because Nova uses only the first."""
    own_slots_first: bool = True
    """In an evacuation the hosts of the VM's own slots go first."""
    flavor_memory_unit: Literal["mib", "mb"] = "mib"
    """A flavor's megabyte in capacity filter and bin packing: 2^20 bytes, or 10^6 as in Cortex."""
    flavor_group_keys: tuple[str, ...] = ("quota:hw_version",)
    """Extra specs that name a flavor's group; older clouds add ``hw_version``."""
    committed_resource_tracking: bool = True
    """Put VMs that are placed into commitment slots of their project."""
    in_flight_seconds: NonNegative = 600
    """How long hosts of an answer reserve room for a VM that none reports; 0: none."""
    in_flight_hosts: NonNegative = 3
    """Hosts of an answer that reserve room: as many as Nova tries (``max_attempts``); 0: all."""
    overcommit_mappings: tuple[OvercommitMapping, ...] = ()
    """How traits of a host set ``spec.overcommit``; without any, operators' values stay."""
    descheduler_dry_run: bool = True
    """Only report VMs that should leave their hosts."""
    metrics_host_label: bool = False
    """Label the weight modification of steps by host."""
    metrics_detail_every: Positive = 16
    """Every n-th run fills the metrics of the order of hosts."""
    mask_cache: Positive = 512
    """Size of the cache of filter results."""


MIB = 2**20
MB = 10**6
