"""How often what goes wrong between a process and its store, and whether the two can reach each other."""

from __future__ import annotations

import asyncio

import msgspec


class FaultRates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often what goes wrong; each rate is a probability from 0 to 1, delays are seconds."""

    delay: float = 0.0
    """Of a call, on its way and again on the way back."""
    delay_max_s: float = 1.0
    """Delays are uniform between 0 and this."""
    refuse: float = 0.0
    """Of a call to be answered ``Unavailable``."""
    lose_applied: float = 0.0
    """Of a write to be applied and answered ``Unknown``."""
    lose_dropped: float = 0.0
    """Of a write to be dropped and answered ``Unknown``."""
    lose_late: float = 0.0
    """Of a write to be answered ``Unknown`` and applied up to ``late_max_s`` later, if it still can be."""
    late_max_s: float = 30.0
    observer_delay: float = 0.0
    """Of a change to be held up, with all that follow it."""
    observer_delay_max_s: float = 1.0
    drop: float = 0.0
    """Of an observer to be dropped before a change."""
    stale_relist: float = 0.0
    """Of a dropped observer to be given a listing that is older than the present."""
    coalesce: float = 0.0
    """Of a state to be left out when a later one of the same object waits already."""

    def __post_init__(self) -> None:
        """``ValueError`` names a rate that is no probability or a delay that is negative."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value < 0 or (value > 1 and not name.endswith("_s")):
                raise ValueError(f"{name} is {value}")


class Network:
    """The way to the store, shared by a ``FaultStore`` and its observers."""

    def __init__(self, rates: FaultRates) -> None:
        self._rates = rates
        self.cuts = 0
        """How often it was cut; who had a connection then has lost it."""
        self._healed = asyncio.Event()
        self._healed.set()
        self.streams_disturbed = False
        """Whether anything at all happens to observers' streams."""
        self._judge()

    @property
    def rates(self) -> FaultRates:
        """What goes wrong; may be exchanged at any time."""
        return self._rates

    @rates.setter
    def rates(self, rates: FaultRates) -> None:
        self._rates = rates
        self._judge()

    def _judge(self) -> None:
        rates = self._rates
        self.streams_disturbed = not self.reachable or bool(rates.observer_delay or rates.drop or rates.coalesce)

    @property
    def reachable(self) -> bool:
        """Whether it works at the moment."""
        return self._healed.is_set()

    def cut(self) -> None:
        """Nothing comes through from now on."""
        self.cuts += 1
        self._healed.clear()
        self._judge()

    def heal(self) -> None:
        """It works again."""
        self._healed.set()
        self._judge()

    async def healed(self) -> None:
        """Wait until it works."""
        await self._healed.wait()
