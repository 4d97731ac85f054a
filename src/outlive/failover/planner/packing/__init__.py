"""Plans that reserve less than the greedy one: layers for one slot a VM, and a search on top of any plan.

``pack`` improves a plan within a number of steps, ``layers`` makes one anew. Neither is trusted: ``plan`` asks the
rules anew about each action (docs/reference/failover-planning.md#packing).
"""

from outlive.failover.planner.packing.layers import layers
from outlive.failover.planner.packing.search import pack

__all__ = ["layers", "pack"]
