"""Plans that reserve less than the greedy one: layers for one slot a VM, and a search on top of any plan.

``pack`` improves a plan within a number of steps, ``pack_in_layers`` makes one anew. Neither is trusted: ``plan`` asks
the rules anew about each action (docs/design/failover.md#packing).
"""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

from outlive.failover.planner.packing.layers import pack_in_layers
from outlive.failover.planner.packing.search import pack

if TYPE_CHECKING:
    from outlive.failover.planner.packing.board import Board
    from outlive.failover.planner.packing.search import Annealer
else:
    __getattr__ = load_exports(__name__)

__all__ = ["pack", "pack_in_layers"]
