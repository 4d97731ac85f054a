"""The informers that failover reads, and whether what they show may be acted on."""

from __future__ import annotations

from dataclasses import dataclass

from outlive.base.errors import Unavailable
from outlive.resources import FlavorGroup, Hypervisor, R, Reservation, VirtualMachine
from outlive.runtime.informer import Informer

STALE_S = 60.0
"""A cache that has lost the store for longer than this is not acted on."""


@dataclass(frozen=True, slots=True)
class Informers:
    """The caches that failover reads; ``reservations`` must have the index ``HOST_INDEX``."""

    hypervisors: Informer[Hypervisor]
    reservations: Informer[Reservation]
    groups: Informer[FlavorGroup]
    vms: Informer[VirtualMachine]


def check_current(informer: Informer[R]) -> None:
    """``Unavailable`` while the informer has never been complete, or is too old to act on."""
    if why := doubt(informer):
        raise Unavailable(why, remedy="check the connection to the store")


def doubt(informer: Informer[R]) -> str:
    """Why what this cache shows is not to be acted on; empty where it is."""
    if not informer.synced:
        return f"{informer.name} have not been listed yet"
    silent = informer.stalled_s()
    return f"{informer.name} were last heard of {silent:.0f} s ago" if silent > STALE_S else ""
