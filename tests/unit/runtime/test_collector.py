"""The garbage collector leaves alone what was there, and still finds cycles among what comes later."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from outlive.base import YOUNG_OBJECTS, freeze_objects, limit_collections


class Knot:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_a_sparing_collector_still_collects_by_itself() -> None:
    limit_collections()
    knot = weakref.ref(Knot())
    kept = [[] for _ in range(2 * YOUNG_OBJECTS)]
    assert knot() is None
    assert len(kept) == 2 * YOUNG_OBJECTS


def test_what_is_settled_is_not_looked_at_again_and_later_cycles_are_found() -> None:
    there = [[] for _ in range(1000)]
    young = weakref.ref(Knot())
    freeze_objects()
    assert young() is None
    assert gc.get_freeze_count() > len(there)
    later = weakref.ref(Knot())
    gc.collect()
    assert later() is None
