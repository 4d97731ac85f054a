"""Amounts as people read them in a reason: "11.5 GiB", "4 cores", "2 gpu"."""

from __future__ import annotations

from outlive.base.wording import count_of
from outlive.resources import CPU, MEMORY

_GIB = 2**30


def figure(resource: str, amount: int) -> str:
    """The number alone, in cores, GiB or units, with at most three decimals."""
    if resource == CPU:
        return _short(amount / 1000)
    return _short(amount / _GIB) if resource == MEMORY else str(amount)


def amount_text(resource: str, amount: int) -> str:
    """The number with its unit."""
    unit = {CPU: "cores", MEMORY: "GiB"}.get(resource, resource)
    return f"{figure(resource, amount)} {unit}"


def difference_text(
    resource: str, capacity: int, running: int, held: int, holders: int, *, only_slots: bool = False
) -> str:
    """ "40 capacity - 20 running - 8.5 reserved by 3 slots"."""
    text = f"{figure(resource, capacity)} capacity - {figure(resource, running)} running"
    if not holders:
        return text
    noun = "slot" if only_slots else "reservation"
    return f"{text} - {figure(resource, held)} reserved by {count_of(holders, noun)}"


def _short(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")
