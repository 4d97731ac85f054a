"""Worlds in which a Membership is lost, and somebody speaks for what it ran."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.model.worlds import NO_ENTRY_ORDER, World

_SEEN: Final = World(
    "attested-seen",
    "a host is a member again and has said what it runs, and somebody says that it runs nothing",
    start="back",
    faults=1,
    kinds=("guest",),
    condemns=False,
    proofs=(),
    attested="uid-0",
    careless=True,
    runs=1,
)
ATTESTATION_WORLDS: Final = (
    World(
        "attested",
        "a membership is deleted, its host switched off, and somebody says so; it comes back later",
        faults=3,
        kinds=("forget", "unplug", "reboot", "crash", "lose"),
        condemns=False,
        proofs=(),
        attested="all",
    ),
    World(
        "attested-nameless",
        "a membership is deleted, its host switched off, and somebody says so who gives no name",
        faults=2,
        kinds=("forget", "unplug"),
        condemns=False,
        proofs=(),
        attested="all",
        operator_name="",
        runs=1,
    ),
    World(
        "attested-present",
        "a host is switched off, and somebody speaks for its present membership as if that were lost",
        faults=1,
        kinds=("unplug",),
        condemns=False,
        proofs=(),
        attested="uid-1",
        runs=1,
    ),
    World(
        "attested-in-part",
        "a restored store knows a host only by an earlier membership, and somebody speaks for that one alone",
        start="missed",
        faults=1,
        kinds=("unplug",),
        condemns=False,
        proofs=(),
        attested="uid-0",
        careless=True,
        missed=True,
        judges=NO_ENTRY_ORDER,
        runs=1,
    ),
    World(
        "attested-unheard",
        "a host is a member again with what it ran before, has not said so, and somebody says that it runs nothing",
        start="back",
        faults=0,
        condemns=False,
        proofs=(),
        attested="uid-0",
        careless=True,
        figures=False,
        runs=1,
    ),
    _SEEN,
    replace(
        _SEEN,
        name="attested-crowd",
        says="as many lost memberships of a host are named as are kept, and somebody speaks for another one",
        crowd=16,
    ),
)
