"""Amounts and shares as people read them."""

from __future__ import annotations

GIB = 2**30


def gib(amount: int) -> str:
    """Bytes as GiB or TiB."""
    if abs(amount) >= 10 * 1024 * GIB:
        return f"{amount / (1024 * GIB):,.1f} TiB"
    return f"{amount / GIB:,.0f} GiB" if abs(amount) >= 10 * GIB else f"{amount / GIB:,.1f} GiB"


def cores(milli: int) -> str:
    """Milli-cores as cores."""
    return f"{milli / 1000:,.0f} cores" if milli % 1000 == 0 or milli >= 100_000 else f"{milli / 1000:,.1f} cores"


def percent(share: float) -> str:
    """A share of one; what is not nothing is not called 0 %, and what is not all is not called 100 %."""
    if 0 < share < 0.01:
        return "below 1 %"
    if 0.99 < share < 1:
        return f"{int(share * 1000) / 10:.1f} %"
    return f"{share * 100:.0f} %"


def times(amount: float, least: float) -> str:
    """How many times the least."""
    return f"{amount / least:.2f} times" if least else "–"
