"""Work over many objects in batches, so that whoever shares the event loop gets a turn in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def batches(objects: Iterable[T], size: int) -> Iterator[list[T]]:
    """The objects in lists of at most ``size``."""
    rest = iter(objects)
    while batch := list(islice(rest, size)):
        yield batch
