"""A decision log that remembers every use."""

from __future__ import annotations

from outlive.base import Clock
from outlive.runtime import DecisionLog, Use


class RememberingLog(DecisionLog):
    """Remembers what its listeners are told."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._uses: list[Use] = []
        self.listen(self._uses.append)

    def uses(self, name: str = "") -> tuple[Use, ...]:
        """All uses in order; those of one decision if it is named."""
        return tuple(use for use in self._uses if not name or use.name == name)
