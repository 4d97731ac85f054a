"""What a controller is: look at one key, compare the world with what is wanted, act, say when to look again.

A reconcile is level-triggered: it reads the world and not the event that woke it, so running it twice changes
nothing, and a lost or doubled key does no harm. It may be cancelled at any ``await``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from outlive.resources import Resource
from outlive.runtime.informer import Informer


@dataclass(frozen=True, slots=True)
class Requeue:
    """Look at this key again after so many seconds, even if nothing changes."""

    after_s: float


class Controller(Protocol):
    """See the module."""

    @property
    def name(self) -> str:
        """One short word with dashes; it stands in logs, metrics and request ids."""
        ...

    async def reconcile(self, key: str) -> Requeue | None:
        """Bring one key to what is wanted. Any error is logged, counted and retried with back-off."""
        ...


Keys = Callable[[Any, Any], Iterable[str]]
"""From the state before and after a change (``None`` for absent) to the keys that need a look."""


def own_name(old: Resource | None, new: Resource | None) -> Iterable[str]:
    """The changed object's own name."""
    obj = new if new is not None else old
    return () if obj is None else (obj.name,)


@dataclass(frozen=True, slots=True)
class Watch:
    """Changes of one informer's objects, and the keys that each asks to look at."""

    informer: Informer[Any]
    keys: Keys = own_name
