"""On which VMs the VM source and the hosts disagree, and what of the source's rows could not be used: figures and log.

Every cycle tells it again, as long as it is so (docs/reference/failover.md#vm-source). A damaged database could fill
the log; so each kind names ``NAMED_IN_A_CYCLE`` of its cases, and its total is always told.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from outlive.base.logging import get_logger
from outlive.failover.keeping.observe import Observation
from outlive.failover.whereabouts import Disagreement

NAMED_IN_A_CYCLE: Final = 20
"""Cases of one kind that a cycle logs by name."""

_log = get_logger("failover.vms")


def disagreements(seen: Observation) -> dict[str, int]:
    """Kind → how many VMs, sightings, flavors or rows."""
    merged, listing = seen.merged, seen.listing
    return {
        "not-in-source": len(merged.not_in_source),
        "not-active": merged.nowhere_active,
        "on-several-hosts": len(merged.duplicates),
        "on-unknown-hypervisor": merged.on_unknown_hypervisor,
        "on-another-hypervisor": merged.on_another_hypervisor,
        "listed-nowhere": merged.listed_nowhere,
        "without-host": listing.without_host,
        "unknown-flavor": sum(listing.unknown_flavors.values()),
        "malformed-extra-specs": len(listing.malformed_extra_specs),
        "repeated-row": listing.repeated,
        "unreadable-row": sum(listing.unreadable.values()),
    }


def log_disagreements(seen: Observation) -> None:
    """What an operator has to look into as warnings; the rest as information, and flavors one by one for debugging."""
    merged, listing = seen.merged, seen.listing
    _each("vm.not_in_source", merged.not_in_source)
    if merged.not_in_source or merged.nowhere_active:
        _log.warning("vms.disagree", not_in_source=len(merged.not_in_source), active_nowhere=merged.nowhere_active)
    _each("vm.on_another_host_too", merged.duplicates)
    if merged.duplicates:
        _log.warning("vms.on_several_hosts", number=len(merged.duplicates))
    dropped = (merged.on_unknown_hypervisor, merged.on_another_hypervisor, merged.listed_nowhere)
    if any(dropped):
        unknown, another, nowhere = dropped
        _log.warning("vms.not_vouched_for", unknown_hypervisor=unknown, another_hypervisor=another, nowhere=nowhere)
    if listing.malformed_extra_specs:
        names = listing.malformed_extra_specs
        _log.warning("flavors.malformed_extra_specs", flavors=list(names[:NAMED_IN_A_CYCLE]), number=len(names))
    if listing.unreadable or listing.repeated:
        _log.warning("vms.rows_left_out", unreadable=listing.unreadable, repeated=listing.repeated)
    for flavor, number in islice(listing.unknown_flavors.items(), NAMED_IN_A_CYCLE):
        _log.debug("flavor.unknown", flavor=flavor, vms=number)
    if listing.unknown_flavors or listing.without_host:
        _log.info(
            "vms.left_out",
            unknown_flavor=sum(listing.unknown_flavors.values()),
            flavors=len(listing.unknown_flavors),
            without_host=listing.without_host,
        )


def _each(event: str, cases: Iterable[Disagreement]) -> None:
    for one in islice(cases, NAMED_IN_A_CYCLE):
        _log.warning(event, vm=one.vm, name=one.name, hypervisor=one.hypervisor)
