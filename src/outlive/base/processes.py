"""This process and others of the machine: batches of work, garbage collection, and the identity of a process."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")


def split_batches(objects: Iterable[T], size: int) -> Iterator[list[T]]:
    """The objects in lists of at most ``size``; other tasks of the event loop run between two lists."""
    rest = iter(objects)
    while batch := list(islice(rest, size)):
        yield batch


# Python's garbage collector, so that its pauses do not hold up the event loop or a large computation.
#
# A full pass looks at every container object that there is: with a hundred thousand objects in informers it takes 100
# to 200 ms, and while the informers fill there are several. What controllers keep is freed by its reference count and
# hardly ever part of a cycle, so the passes find next to nothing. A process that serves calls ``limit_collections``
# when it starts and ``freeze_objects`` when its informers have synced (docs/reference/runtime.md#garbage-collector).
# Both change the process as a whole, and cycles among what was there at ``freeze_objects`` are never found again: not
# for tests and simulations.


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


def limit_collections() -> None:
    """Make passes rare enough that none before ``freeze_objects`` takes longer than the event loop may be held."""
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_PASSES, MIDDLE_PASSES)


def freeze_objects() -> None:
    """Take what is there now out of all later passes, after a last look at the younger of it."""
    gc.collect(1)
    gc.freeze()


BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def start_time(pid: int, proc: str = "/proc") -> str:
    """When a process was started; empty where it is gone, or only waits to be reaped."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:  # noqa: PTH123 - hundreds of these a look; Path costs more
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if words[0] in (b"Z", b"X") and words[17] == b"1" else words[19].decode()


def process_identity(pid: int) -> str:
    """The boot and when a process was started in it, which no later process of that number has; empty: it is gone."""
    started = start_time(pid)
    try:
        return f"{Path(BOOT_ID).read_text(encoding='ascii').strip()}/{started}" if started else ""
    except OSError:
        return ""
