"""Which network cards of a host are divided into virtual functions: a part of ``node.yaml``."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from outlive.resources.functions import CARDS_LIMIT, FUNCTIONS_LIMIT, MTU_USUAL


class SriovDevice(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One card of ``links.sriov``."""

    device: Annotated[str, Meta(min_length=1, max_length=15)]
    """Its network device, such as ``enp1s0f0``: the first part of the names of its functions."""
    count: Annotated[int, Meta(ge=0, le=FUNCTIONS_LIMIT)]
    """Virtual functions that it is to have."""
    mtu: Annotated[int, Meta(ge=68, le=65_535)] = MTU_USUAL
    """Largest packet in bytes."""


SriovDevices = Annotated[tuple[SriovDevice, ...], Meta(max_length=CARDS_LIMIT)]
"""All cards that its daemon divides."""


def check_devices(devices: SriovDevices) -> None:
    """``ValueError`` for a card that is named twice."""
    names = [one.device for one in devices]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise ValueError(f"sriov names {twice} twice")
