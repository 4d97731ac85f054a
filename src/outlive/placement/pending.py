"""What is decided about reservations and not in the store yet (docs/design/commitments.md#one-entry).

A decision is a change of one reservation: a function from what the store shows of it to what counts. It is made to be
applied again and again, and does nothing where the store shows already what it wants, as the write that follows it. So
whatever the store shows meanwhile, in any order, a reservation is one entry: what is stored, with all decisions on top.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from outlive.resources import Reservation

Change = Callable[[Reservation | None], Reservation | None]
"""From a reservation, or ``None`` where there is none, to what counts of it; ``None``: nothing."""


class PendingChanges:
    """Reservation → who decided → the change. Those who decide settle what they decided: it lasts until then."""

    def __init__(self) -> None:
        self._changes: dict[str, dict[Hashable, Change]] = {}
        self._names: dict[Hashable, set[str]] = {}
        """Who decided → of which reservations."""

    def put(self, name: str, by: Hashable, change: Change) -> None:
        """Add a decision about a reservation, or replace the one that the same decider took; it keeps its place."""
        self._changes.setdefault(name, {})[by] = change
        self._names.setdefault(by, set()).add(name)

    def drop(self, name: str, by: Hashable) -> bool:
        """Forget a decision; whether there was one."""
        changes = self._changes.get(name, {})
        if changes.pop(by, None) is None:
            return False
        if not changes:
            del self._changes[name]
        self._names[by].discard(name)
        if not self._names[by]:
            del self._names[by]
        return True

    def decided_names(self, by: Hashable) -> list[str]:
        """The reservations about which somebody decided, sorted."""
        return sorted(self._names.get(by, ()))

    def apply(self, name: str, shown: Reservation | None) -> Reservation | None:
        """What counts of a reservation of which the store shows this."""
        for change in self._changes.get(name, {}).values():
            shown = change(shown)
        return shown

    def __contains__(self, name: str) -> bool:
        return name in self._changes
