"""A sample of random sales; ``tests.support.random_sales`` says how to play thousands of them."""

from __future__ import annotations

import pytest
from tests.support.random_sales import play

FOUND = (8, 14, 20, 30, 43, 47, 100129, 100167, 200255, 400626, 500980, 802283, 901906)
"""Cases in which room was sold twice once, or nearly."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*FOUND, *range(1000, 1040)])
def test_no_room_is_sold_twice_whenever_vms_start(seed: int) -> None:
    play(seed)
