"""What people are told of a host that degrades: what is slow, what becomes of its virtual machines, and what helps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from outlive.base.wording import count_of, listing
from outlive.node.leaving import Answer
from outlive.node.scoring import Gauged
from outlive.resources import Degrading

_SLOW: Final[dict[str, str]] = {
    Gauged.KEEPALIVE: "its renewals come late",
    Gauged.STORE: "the store answers it slowly",
    Gauged.DISK: "its disks make everything wait",
    Gauged.HYPERVISOR: "its hypervisor lags",
}
_SEE_TO: Final[dict[str, str]] = {
    Gauged.KEEPALIVE: "what keeps its daemon from running",
    Gauged.STORE: "its way to the store",
    Gauged.DISK: "its disks",
    Gauged.HYPERVISOR: "its hypervisor service",
}
_STAY: Final[dict[str, str]] = {
    Answer.OFF: "its VMs stay, as the policy says",
    Answer.DRAINING: "somebody empties it",
    Answer.MAINTENANCE: "its VMs stay while somebody works on it",
    Answer.UNSETTLED: "its VMs stay until it is seen whether other hosts degrade as well",
    Answer.FAILING: "its VMs stay, because live moves failed one after the other",
    Answer.ALONE: "its VMs stay, because no other host does well",
    Answer.COMMON_CAUSE: "its VMs stay, because other hosts have the same trouble",
    Answer.LIKE_OTHERS: "its VMs stay, because other hosts are hardly faster",
    Answer.IN_LINE: "its VMs stay while other hosts are left",
    Answer.NO_ROOM: "its VMs stay, because no other host takes them",
    Answer.LEFT: "those of its VMs that may leave have left",
}
_SHARED: Final = frozenset({Answer.COMMON_CAUSE, Answer.LIKE_OTHERS})
"""Reasons that lie outside the host."""


def slow(causes: Iterable[str]) -> str:
    """What is slow, as a sentence's part; "it gets slow" where nobody says what."""
    said = [_SLOW[one] for one in causes if one in _SLOW]
    return listing(said) if said else "it gets slow"


def becomes(degrading: Degrading) -> str:
    """What becomes of its virtual machines."""
    if degrading.leaving == "leaves":
        return "its VMs leave it by live moves"
    return _STAY.get(degrading.why, "its VMs stay")


def told(host: str, degrading: Degrading) -> str:
    """All of it."""
    return f"{host} degrades: {slow(degrading.causes)}; {becomes(degrading)}"


def remedy(host: str, degrading: Degrading, *, together: int = 0) -> str:
    """What helps; ``together``: how many hosts have the same trouble, where that is known."""
    if degrading.why in _SHARED:
        hosts = count_of(together, "host") if together > 1 else "the hosts"
        return f"see to the store, the network or the storage that {hosts} share"
    see_to = listing([_SEE_TO[one] for one in degrading.causes if one in _SEE_TO] or [host])
    return f"see to {see_to}; to empty it now: outlive drain {host}"
