"""The slots that a cycle or a pass of upkeep has in hand: what was seen, and what its own writes made of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType

from outlive.failover.keeping.observe import as_it_stands, slot_view
from outlive.failover.model import SlotView
from outlive.resources import Reservation


class Hand:
    """The slots that somebody works on: the views as he has changed them, and the objects that writes replace."""

    def __init__(
        self,
        slots: Iterable[SlotView],
        objects: Mapping[str, Reservation],
        *,
        around: Callable[[Collection[str]], Iterable[SlotView]] | None = None,
        closed: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """``around``: VMs → all slots that list one of them, where ``slots`` are only a part of all. ``closed``: host
        on which no slot can be used → why not."""
        self._views = {slot.name: slot for slot in slots}
        self._objects = dict(objects)
        self._acknowledged = dict(self._views)
        self._around = around
        self._closed = closed
        self.changed = False
        """Whether anything is not as it was given."""

    @property
    def confirmed(self) -> tuple[SlotView, ...]:
        """The slots as the store is known to have them, by name, whatever the work supposes: what may be told."""
        return tuple(self._acknowledged[name] for name in sorted(self._acknowledged))

    @property
    def views(self) -> tuple[SlotView, ...]:
        """All slots, by name."""
        return tuple(self._views[name] for name in sorted(self._views))

    def __len__(self) -> int:
        return len(self._views)

    def view(self, name: str) -> SlotView | None:
        """One slot."""
        return self._views.get(name)

    def around(self, vms: Collection[str]) -> list[SlotView]:
        """The slots that list one of these VMs, by name: all that a verdict about them rests on."""
        found = {slot.name: slot for slot in self._around(vms)} if self._around is not None else {}
        found |= {name: slot for name, slot in self._views.items() if any(vm in slot.members for vm in vms)}
        return [found[name] for name in sorted(found)]

    def object(self, name: str) -> Reservation:
        """What a write to this slot replaces."""
        return self._objects[name]

    def put(self, slot: Reservation, *, confirmed: bool = True) -> SlotView:
        """The slot looks like this now; not ``confirmed`` where its status was not acknowledged."""
        view = as_it_stands(slot_view(slot), self._closed)
        if confirmed:
            self._acknowledged[slot.name] = view
        else:
            self._acknowledged.pop(slot.name, None)
        self._views[slot.name] = view
        self._objects[slot.name] = slot
        self.changed = True
        return view

    def suppose(self, view: SlotView) -> None:
        """The work goes on as if the slot looked like this, although it could not be written."""
        self._views[view.name] = view
        self.changed = True

    def drop(self, name: str) -> None:
        """The slot is gone."""
        self.suppose_gone(name)
        self._acknowledged.pop(name, None)

    def suppose_gone(self, name: str) -> None:
        """The work goes on as if the slot were gone, although it could not be deleted."""
        self._views.pop(name, None)
        self._objects.pop(name, None)
        self.changed = True
