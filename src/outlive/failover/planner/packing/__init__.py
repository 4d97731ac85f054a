"""Plans that reserve less than the greedy one: layers for one slot a VM, and a search on top of any plan.

``pack`` improves a plan within a budget of steps, ``layers`` makes one anew. Neither is trusted: ``outcome`` asks the
rules anew about each action (docs/reference/failover-planning.md#packing).
"""

from outlive.failover.planner.packing.layers import layers
from outlive.failover.planner.packing.outcome import Outcome
from outlive.failover.planner.packing.problem import Ground
from outlive.failover.planner.packing.search import Packed, pack

__all__ = ["Ground", "Outcome", "Packed", "layers", "pack"]
