"""Views of what an informer shows, kept current change by change, so that a look at everything makes none anew."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Generic, TypeVar

from outlive.resources import R
from outlive.runtime.informer import Informer

V = TypeVar("V")


class Mirror(Generic[R, V]):
    """Objects and their views, by name."""

    def __init__(self, informer: Informer[R], make: Callable[[R], V | None]) -> None:
        """``make`` gives ``None`` for objects that are to be overlooked."""
        self._make = make
        self._names: list[str] = []
        self._objects: list[R] = []
        self._views: list[V] = []
        informer.subscribe(self._changed)

    @property
    def objects(self) -> tuple[R, ...]:
        """The objects, in name order."""
        return tuple(self._objects)

    @property
    def views(self) -> tuple[V, ...]:
        """Their views, in the same order."""
        return tuple(self._views)

    def _changed(self, old: R | None, new: R | None) -> None:
        obj = new or old
        if obj is None:
            return
        name = obj.metadata.name
        view = self._make(new) if new is not None else None
        at = bisect_left(self._names, name)
        there = at < len(self._names) and self._names[at] == name
        if new is None or view is None:
            if there:
                del self._names[at], self._objects[at], self._views[at]
        elif there:
            self._objects[at], self._views[at] = new, view
        else:
            self._names.insert(at, name)
            self._objects.insert(at, new)
            self._views.insert(at, view)
