"""Settings of placement, section ``scheduler`` (docs/reference/placement.md#settings).

The defaults are the product's rules. Each rule in which the product differs from the reference has a key of
its own that switches it back, so that both can run side by side; ``with_compat`` sets several by the names of
failover's deviations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

NonNegative = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class PlacementSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How placement answers. Keys are camelCase in the file and on the command line."""

    auth: Literal["token", "mtls", "none"] = "token"
    """What ``POST /scheduler/nova/external`` asks of a caller; calls inside the process need nothing."""
    nova_limit_hosts_to_request: bool = True
    """Answer only hosts that the request named, if it named any: Nova fails a request that gets another host."""
    evacuation_shuffle_k: NonNegative = 3
    """How many of the first hosts of an evacuation are permuted, since Nova uses just the first; 0: none."""
    shuffle_across_classes: bool = False
    """Reference behaviour: the permutation may put a host without a slot of the VM before one with."""
    own_slots_first: bool = True
    """In an evacuation the hosts of the VM's own slots go first, whatever the weighers say."""
    flavor_memory_unit: Literal["mib", "mb"] = "mib"
    """What a flavor's megabyte is to capacity filter and bin packing: 2^20 bytes, or 10^6 as in the reference."""
    flavor_group_keys: tuple[str, ...] = ("quota:hw_version",)
    """Extra specs that name a flavor's group, the first present counting; older clouds add ``hw_version``."""
    fail_closed: bool = True
    """A failing step that leaves it unknown whether a host fits refuses all hosts; false: failing steps are skipped."""
    overbooked_hosts: Literal["drop", "keep"] = "drop"
    """A host whose free amount is unknown, or negative before any reservation, is dropped; the reference keeps it."""
    slots_ready_without_condition: bool = True
    """A failover slot without a ``Ready`` condition counts as ready; the reference says it is not."""
    failover_checks_tenants: bool = True
    """Searches for slots respect project pinning of hosts and aggregates; the reference checks only validation."""
    failover_skips_hosts_without_ha: bool = True
    """Hosts with ``highAvailability: false`` get no slots."""
    validation_keeps_to_named_hosts: bool = True
    """A read-only evacuation call evaluates the named hosts only, even where its pipeline gathers all."""
    commitment_group_from_flavor: bool = True
    """The commitment weigher takes the group from the flavor when the hint is absent."""
    capability_operators: Literal["match", "skip"] = "match"
    """Operators in ``capabilities:`` extra specs are evaluated; the reference skips the whole filter."""
    metrics_host_label: bool = False
    """Label the weight modification of steps by host: a series per host, step and pipeline."""
    metrics_detail_every: Positive = 16
    """Every n-th run is looked at in detail (shift origin, impact, weight modification)."""
    mask_cache: Positive = 512
    """Remembered results of filters whose answer depends on slow facts only."""
    waiting_calls: Positive = 1000
    """Calls that may wait for the lock; further ones are refused."""

    def with_compat(self, deviations: Iterable[str]) -> PlacementSettings:
        """These settings with the named deviations of failover switched back (``D10``, ``D13``, ``D15``, ``D17``)."""
        back: dict[str, object] = {}
        for deviation in deviations:
            match deviation:
                case "D10":
                    back["slots_ready_without_condition"] = False
                case "D13":
                    back.update(flavor_memory_unit="mb", overbooked_hosts="keep", fail_closed=False)
                case "D15":
                    back["validation_keeps_to_named_hosts"] = False
                case "D17":
                    back["failover_checks_tenants"] = False
                case _:
                    continue
        return msgspec.structs.replace(self, **back)


MIB = 2**20
MB = 10**6
