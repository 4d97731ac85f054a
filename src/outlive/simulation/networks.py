"""Four networks, and who reaches which: the store, the disks, the BMCs, the VMs' own.

A cut takes a host off one of them, both ways or one: ``out``, and nothing that it sends arrives; ``in``, and it hears
no answer though what it sends takes effect.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Literal

Direction = Literal["both", "in", "out"]


class Segment(StrEnum):
    """One network."""

    STORE = "store"
    STORAGE = "storage"
    BMC = "bmc"
    VM = "vm"


class Networks:
    """See the module. ``changed(segment, host)`` is called after each cut and healing."""

    def __init__(self, changed: Callable[[Segment, str], None]) -> None:
        self._cut: dict[tuple[Segment, str], Direction] = {}
        self._changed = changed

    def cut(self, segment: Segment, host: str, direction: Direction = "both") -> None:
        """Take the host off."""
        self._cut[(segment, host)] = direction
        self._changed(segment, host)

    def heal(self, segment: Segment, host: str) -> None:
        """Let it back."""
        if self._cut.pop((segment, host), None) is not None:
            self._changed(segment, host)

    def heal_all(self) -> None:
        """All cuts are over."""
        for segment, host in list(self._cut):
            self.heal(segment, host)

    def can_send(self, segment: Segment, host: str) -> bool:
        """Whether what the host sends arrives."""
        return self._cut.get((segment, host), "in") == "in"

    def can_receive(self, segment: Segment, host: str) -> bool:
        """Whether what is sent to the host arrives."""
        return self._cut.get((segment, host), "out") == "out"

    def can_reach(self, segment: Segment, *hosts: str) -> bool:
        """Whether these hosts can talk there: both ways, or it is no talk."""
        return not any((segment, host) in self._cut for host in hosts)
