"""The worlds that are searched: small enough to be seen whole, each about one part of the protocol."""

from __future__ import annotations

from typing import Final, NamedTuple

from tests.model.catalogue_attestations import ATTESTATION_WORLDS
from tests.model.catalogue_fences import FENCE_WORLDS
from tests.model.catalogue_hosts import HOST_WORLDS
from tests.model.catalogue_moves import MOVE_WORLDS
from tests.model.catalogue_recoveries import RECOVERY_WORLDS
from tests.model.worlds import World

WORLDS: Final[dict[str, World]] = {
    world.name: world for world in (*HOST_WORLDS, *FENCE_WORLDS, *MOVE_WORLDS, *RECOVERY_WORLDS, *ATTESTATION_WORLDS)
}
"""By name."""


class Searched(NamedTuple):
    """How far a world was searched without finding a violation."""

    states: int
    depth: int
    """Steps from the beginning within which every state was seen."""
    whole: bool


SHORT_SEARCH: Final = 40_000
"""States of one world that the tests look at, the nearest first."""
SEARCHED: Final[dict[str, Searched]] = {
    "again": Searched(1_461_057, 56, whole=True),
    "another-freeze": Searched(7_190_211, 51, whole=True),
    "another-watchdog": Searched(77_221, 33, whole=True),
    "attested": Searched(40_001, 13, whole=False),
    "back-and-condemned": Searched(117_256, 45, whole=True),
    "crystals": Searched(140_405, 36, whole=True),
    "deleted": Searched(1_500_001, 31, whole=False),
    "deleted-move": Searched(1_500_001, 38, whole=False),
    "deleted-restored": Searched(259_138, 52, whole=True),
    "freeze": Searched(700_001, 26, whole=False),
    "guard-dies": Searched(58_533, 35, whole=True),
    "leave-running": Searched(565_679, 54, whole=True),
    "move": Searched(435_377, 50, whole=True),
    "move-cut": Searched(40_003, 23, whole=False),
    "move-fence": Searched(40_001, 14, whole=False),
    "name-runs-fenced": Searched(700_001, 26, whole=False),
    "rejoin": Searched(146_109, 39, whole=True),
    "rejoin-twice": Searched(49_966, 47, whole=True),
    "restored": Searched(40_001, 18, whole=False),
    "restored-armed": Searched(40_004, 10, whole=False),
    "restored-boot": Searched(40_002, 12, whole=False),
    "restored-cut": Searched(40_001, 30, whole=False),
    "restored-drop": Searched(40_001, 9, whole=False),
    "restored-fence": Searched(40_002, 11, whole=False),
    "restored-restart": Searched(40_001, 17, whole=False),
    "resume": Searched(40_001, 13, whole=False),
    "resume-cut": Searched(40_002, 15, whole=False),
    "slewed": Searched(138_924, 38, whole=True),
    "slot-host-condemned": Searched(40_001, 25, whole=False),
    "stale-power": Searched(175_981, 47, whole=True),
    "takeover": Searched(40_001, 21, whole=False),
    "two-fencers": Searched(10_467_856, 35, whole=False),
    "two-kinds": Searched(2_599_746, 49, whole=True),
    "two-powers": Searched(700_001, 23, whole=False),
    "watchdog": Searched(20_000_001, 29, whole=False),
    "watchdog-start": Searched(253_578, 43, whole=True),
}
"""The worlds of more states: how far ``scripts/model WORLD`` has seen them."""
