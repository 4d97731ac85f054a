"""Python's garbage collector, so that its pauses do not hold up the event loop or a large computation.

A full pass looks at every container object that there is: with a hundred thousand objects in informers it takes 100
to 200 ms, and while the informers fill there are several. What controllers keep is freed by its reference count and
hardly ever part of a cycle, so the passes find next to nothing. A process that serves calls ``spare`` when it starts
and ``settle`` when its informers have synced (docs/reference/runtime.md#garbage-collector). Both change the process as
a whole, and cycles among what was there at ``settle`` are never found again: not for tests and simulations.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection of cycles while the block runs; for a bounded piece of work that does not await.

    Reading a large file makes millions of objects that all stay: looking for garbage meanwhile is time lost.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


YOUNG_OBJECTS: Final = 10_000
"""New container objects after which the youngest are looked at; Python's own value is 700."""
YOUNG_PASSES: Final = 10
"""Such passes before what survived them is looked at again: then some 100,000 objects, 20 to 30 ms."""
MIDDLE_PASSES: Final = 100
"""Those before everything is: ten million objects that stayed."""


def spare() -> None:
    """Make passes rare enough that none before ``settle`` takes longer than the event loop may be held."""
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_PASSES, MIDDLE_PASSES)


def settle() -> None:
    """Take what is there now out of all later passes, after a last look at the younger of it."""
    gc.collect(1)
    gc.freeze()
