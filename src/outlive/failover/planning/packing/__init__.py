"""Plans that reserve less than the greedy one: layers for one slot a VM, and a search on top of any plan.

``pack`` improves a plan within a budget of steps, ``layers`` makes one anew. Neither is trusted: ``is_sound`` looks at
what they return from scratch (docs/reference/failover.md#packing).
"""

from outlive.failover.planning.packing.layers import layers
from outlive.failover.planning.packing.outcome import Outcome
from outlive.failover.planning.packing.pack import Packed, pack
from outlive.failover.planning.packing.problem import Ground
from outlive.failover.planning.packing.sound import is_sound

__all__ = ["Ground", "Outcome", "Packed", "is_sound", "layers", "pack"]
