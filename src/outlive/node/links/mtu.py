"""The MTU of a network that hosts make themselves. Pure (docs/reference/node-decisions.md#netmtu)."""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from outlive.base.errors import BadInput, Invalid
from outlive.resources.networks import SMALLEST_MTU
from outlive.runtime.decisions import Decision

VXLAN_BYTES: Final = 50
"""What VXLAN puts around a frame."""
_NUMBER: Final = re.compile(r"[0-9]+", re.ASCII)
_LONGEST: Final = 18
"""Digits of a number that is not certainly too large."""


class BadMtu(BadInput):
    """What is asked for is no MTU."""

    code = "bad_mtu"


class MtuInput(msgspec.Struct, frozen=True, kw_only=True):
    """A network, and what the devices below it take."""

    type: Literal["bridged", "managed"]
    requested: int | float | str = ""
    """What its user wants; absent or empty: as much as goes."""
    bridge_mtu: int | None = None
    """Of the device that VLANs lie on; needed for a bridged network."""
    cluster_mtu: int | None = None
    """Of the cluster network, which VXLANs go over; needed for a managed network."""


class MtuAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the network gets."""

    mtu: int
    store: bool
    """Whether it is another one than was asked for, and is written down."""
    max: int
    """The largest that goes."""


def choose_mtu(given: MtuInput) -> MtuAnswer:
    """What is asked for, at most what the devices below take."""
    below = given.bridge_mtu if given.type == "bridged" else given.cluster_mtu
    if below is None:
        member = "bridge_mtu" if given.type == "bridged" else "cluster_mtu"
        raise Invalid(f"{member} is missing", remedy=f"a {given.type} network needs it")
    largest = below if given.type == "bridged" else below - VXLAN_BYTES
    if given.requested == "":
        return MtuAnswer(mtu=largest, store=True, max=largest)
    wanted = _parse_mtu(given.requested, largest)
    return MtuAnswer(mtu=min(wanted, largest), store=wanted > largest, max=largest)


def _parse_mtu(requested: float | str, largest: int) -> int:
    text = f"{requested:.0f}" if isinstance(requested, float) and requested.is_integer() else str(requested)
    if _NUMBER.fullmatch(text) is not None:
        digits = text.lstrip("0")
        wanted = int(digits or 0) if len(digits) <= _LONGEST else largest + 1
        if wanted >= SMALLEST_MTU or len(digits) > _LONGEST:
            return wanted
    raise BadMtu(f"{text[:80]!r} is no MTU", remedy=f"write a number from {SMALLEST_MTU} to {largest}")


NETWORK_MTU: Final = Decision(
    "net.mtu",
    choose_mtu,
    MtuInput,
    MtuAnswer,
    "The MTU of a bridged or managed network",
    lambda answer: not answer.store,
    nulls_are_absent=True,
)
