"""The worlds that are searched: small enough to be seen whole, each about one part of the protocol."""

from __future__ import annotations

from typing import Final

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
