"""Taking turns with whoever else places or removes members in this process.

One lock is held around each write of a cycle, and around a whole pass of upkeep or a validation, so that a change is
answered while a long cycle runs (docs/reference/failover.md#upkeep). What a cycle decided it decided on an older state:
each write still replaces exactly the version that was seen, and what concerns a VM that changed since is left to
upkeep, which sees it as it is now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext


class Turn:
    """The turn of somebody who holds the lock already: nothing changes meanwhile."""

    def hold(self) -> AbstractAsyncContextManager[object]:
        """Around one write and the last look before it."""
        return nullcontext()

    def stale(self, vms: Iterable[str]) -> bool:
        """Whether any of these VMs changed since the state that the decision was made on."""
        return False

    def has_room(self, host: str, cpu_milli: int, memory_bytes: int) -> bool:
        """Whether the host can still hold a slot of that size."""
        return True

    def leave(self, vms: Iterable[str]) -> None:
        """These are left to whoever follows changes."""


class CycleTurn(Turn):
    """The turn of a cycle, which holds the lock for one write at a time."""

    def __init__(
        self,
        lock: asyncio.Lock,
        *,
        newer: Callable[[], Collection[str]],
        leave: Callable[[Iterable[str]], None],
        free_on: Callable[[str], tuple[int, int] | None],
    ) -> None:
        """``newer``: the VMs that changed since the cycle looked; ``free_on``: host → free amounts, as of now."""
        self._lock = lock
        self._newer = newer
        self._leave = leave
        self._free_on = free_on

    def hold(self) -> AbstractAsyncContextManager[object]:
        """The lock."""
        return self._lock

    def stale(self, vms: Iterable[str]) -> bool:
        """Whether upkeep has been told of any of these, or has itself changed a slot of theirs."""
        newer = self._newer()
        return bool(newer) and any(vm in newer for vm in vms)

    def has_room(self, host: str, cpu_milli: int, memory_bytes: int) -> bool:
        """Looked up only where somebody else may have opened slots meanwhile."""
        free = self._free_on(host) if self._newer() else None
        return free is None or (free[0] >= cpu_milli and free[1] >= memory_bytes)

    def leave(self, vms: Iterable[str]) -> None:
        """Hand them over."""
        self._leave(vms)
