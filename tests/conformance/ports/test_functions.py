"""The virtual card keeps what every driver of virtual functions keeps; a real one does so in the kernel guest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.conformance.ports.function_claims import CLAIMS

from outlive.node.ports import FunctionPort
from outlive.simulation import SimCards

Claim = Callable[[FunctionPort, str], Awaitable[None]]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda one: one.__name__)
async def test_a_virtual_card(claim: Claim) -> None:
    port = SimCards(cast("Any", SimpleNamespace(boot_id="b")), {"eth0": 7})
    await port.set_count("eth0", 2, replace=True)
    await claim(port, "eth0")
