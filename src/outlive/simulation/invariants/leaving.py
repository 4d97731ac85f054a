"""What is promised of hosts that degrade: their VMs leave alive, one host at a time, and for hosts that do well."""

from __future__ import annotations

from typing import Final

from outlive.node.vm.states import assigned_to
from outlive.resources import Hypervisor, VirtualMachine
from outlive.simulation.invariants.truth import Truth
from outlive.simulation.stores import Author

KNOWN_S: Final = 90.0
"""So long after a host has said that it degrades everybody has read it, whatever became of single calls."""


class Slow:
    """Since when hosts say that they degrade."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def wrote(self, host: Hypervisor, now_s: float) -> None:
        """What a host says now."""
        if host.status.degrading is None:
            self._since.pop(host.name, None)
        else:
            self._since.setdefault(host.name, now_s)

    def known(self, host: str, now_s: float) -> bool:
        """Whether everybody knows that it degrades."""
        return now_s - self._since.get(host, now_s) > KNOWN_S


def leaves_alive_and_for_better(
    truth: Truth, slow: Slow, before: VirtualMachine, after: VirtualMachine, author: Author, now_s: float
) -> str:
    """A move that a host begins because it degrades: live, and to a host that does well."""
    move, old = after.status.migration, before.status.migration
    if move is None or (old is not None and old.id == move.id) or author.writers[:1] != ("flush",):
        return ""
    source = truth.store.look(Hypervisor, move.source)
    if source is None or source.spec.drain or assigned_to(before) != author.host:
        return ""
    degrading = source.status.degrading
    if degrading is None or after.status.phase != "migrate-live":
        return ""
    if move.mode != "live":
        return f"{move.source} degrades, and stops it to move it to {move.target}"
    if slow.known(move.target, now_s):
        return f"it leaves {move.source}, which degrades, for {move.target}, which does as well"
    return ""
