"""How long things have been as they are, on this process's own clock.

Ages are judged from when this process first saw a state: a restart, or another leader, only makes everybody wait once
more. Nothing that safety rests on is decided by them.
"""

from __future__ import annotations

from collections.abc import Iterable

from outlive.base.clock import Clock
from outlive.resources import Membership


class Silence:
    """How long each host's Membership has not changed, on this process's own clock since it first saw that."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[str, str, float]] = {}

    def see(self, membership: Membership) -> None:
        """A version of it was received."""
        meta = membership.metadata
        known = self._seen.get(meta.name)
        if known is None or known[:2] != (meta.uid, meta.resource_version):
            self._seen[meta.name] = (meta.uid, meta.resource_version, self._clock.monotonic())

    def forget(self, name: str) -> None:
        """The Membership is gone."""
        self._seen.pop(name, None)

    def unchanged_s(self, name: str) -> float:
        """Seconds since the present version was received."""
        known = self._seen.get(name)
        return 0.0 if known is None else self._clock.monotonic() - known[2]


class Waiting:
    """Since when each VM is as it is, on this process's own clock; a restart only makes it wait once more."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[str, tuple[object, float]] = {}

    def waited_s(self, vm: str, state: object) -> float:
        """Seconds since the VM was first asked about in this state."""
        now = self._clock.monotonic()
        known = self._since.get(vm)
        if known is None or known[0] != state:
            self._since[vm] = known = (state, now)
        return now - known[1]

    def keep(self, vms: Iterable[str]) -> None:
        """Forget all others."""
        kept = set(vms)
        self._since = {vm: since for vm, since in self._since.items() if vm in kept}
