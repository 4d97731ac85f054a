"""What a benchmark reports: one figure, its unit, and the bar that it is held against."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure; ``bar`` is the value that it must reach, ``None`` where it is only recorded."""

    what: str
    value: float
    unit: str
    bar: float | None = None
    better: Literal["lower", "higher"] = "lower"
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the bar is reached; ``None`` without a bar."""
        if self.bar is None:
            return None
        return self.value <= self.bar if self.better == "lower" else self.value >= self.bar


def median_seconds(work: Callable[[], object], *, runs: int = 5, warmup: int = 1) -> float:
    """Median wall time of ``work`` over ``runs`` calls after ``warmup`` calls that are not counted."""
    for _ in range(warmup):
        work()
    times: list[float] = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
