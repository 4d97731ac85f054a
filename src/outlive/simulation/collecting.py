"""When garbage is collected in a simulation: rarely, and at moments that are the same in each run.

The standard collector looks through everything whenever so much was made; of a large cluster that is a third of all
time, and finalizers would run at moments that depend on how much garbage there is.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

COLLECT_S: Final = 120
"""Virtual seconds between two collections."""


@contextmanager
def rarely_collecting() -> Iterator[Callable[[int], None]]:
    """Collect only when what this yields is called with a second that it is time in."""
    was = gc.isenabled()
    gc.disable()

    def tick(second: int) -> None:
        if second % COLLECT_S == COLLECT_S - 1:
            gc.collect()

    try:
        yield tick
    finally:
        if was:
            gc.enable()
