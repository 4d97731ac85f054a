"""Which deliberate differences from the reference are switched back, for runs side by side with it.

Every difference has an id, ``D1`` to ``D20`` (docs/reference/failover.md#deviations). A decision takes a ``Compat``
as part of its input, so that a replayed decision carries the behaviour that it was made under.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from outlive.base.errors import BadInput

DEVIATIONS = tuple(f"D{number}" for number in range(1, 21))
"""Ids of all deviations."""


class Compat(msgspec.Struct, frozen=True, omit_defaults=True):
    """The deviations that are switched back to what the reference does; none by default."""

    ids: tuple[str, ...] = ()

    @classmethod
    def parse(cls, raw: str | Iterable[str] | None) -> Compat:
        """From the setting ``failover.compat``: ``reference`` (all) or a list of ids; ``BadInput`` names a bad id."""
        if raw is None or raw == "":
            return cls()
        if raw == "reference":
            return cls(ids=DEVIATIONS)
        wanted = [raw] if isinstance(raw, str) else list(raw)
        for name in wanted:
            if name not in DEVIATIONS:
                raise BadInput(f"compat: {name!r} is no deviation", remedy=f"write reference, or ids {_range()}")
        return cls(ids=tuple(name for name in DEVIATIONS if name in wanted))

    def reverted(self, deviation: str) -> bool:
        """Whether this deviation is switched back."""
        return deviation in self.ids


def _range() -> str:
    return f"{DEVIATIONS[0]} to {DEVIATIONS[-1]}"
