"""The mass-removal brake for whatever removes members one at a time.

A cycle sees all its removals at once and may refuse them together. Upkeep and validation see them one after the other;
they draw from this budget, which is filled again by every cycle. So a source that loses its VMs piecemeal, or a mirror
that calls every host dead, dissolves no more than one cycle would have let pass.
"""

from __future__ import annotations


class RemovalBudget:
    """Memberships that may still be removed before the next cycle."""

    def __init__(self, *, share: float, number: int) -> None:
        self._share = share
        self._number = number
        self._memberships = 0
        self._spent = 0
        self._held = False

    def refill(self, memberships: int) -> None:
        """A cycle begins, with so many memberships."""
        self._memberships = memberships
        self._spent = 0

    def hold(self, held: bool) -> None:
        """The last cycle braked (or did not): while it does, nobody removes anything."""
        self._held = held

    def take(self, count: int = 1) -> bool:
        """Whether ``count`` memberships may be removed; if so they are spent.

        The first slot after a refill may go whole, however many members it has: a slot on a dead host must not stay
        for ever because it is popular.
        """
        after = self._spent + count
        beyond = after > self._number and after > self._share * self._memberships
        if self._held or (beyond and self._spent > 0):
            return False
        self._spent = after
        return True

    def give_back(self, count: int = 1) -> None:
        """Memberships that were taken from the budget and are still there, because the write failed."""
        self._spent = max(0, self._spent - count)

    @property
    def memberships(self) -> int:
        """How many there were when the last cycle began."""
        return self._memberships
