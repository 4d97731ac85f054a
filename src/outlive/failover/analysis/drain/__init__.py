"""What would happen if: the pure part. In what order hosts can be emptied, and why they cannot.

``steps`` are the questions and answers, ``layout`` is the fleet as steps leave it, ``ordering`` finds an order by hand,
``search`` looks through all of them if the fleet is small, ``proofs`` shows what cannot be.
``outlive.failover.analysis.whatif`` alters a fleet and plans it again.
"""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.failover.analysis.drain.inputs import Close, DrainInput, DrainResult, Move, Step, Stuck, free_table
    from outlive.failover.analysis.drain.inputs import possible_places
    from outlive.failover.analysis.drain.layout import Layout
    from outlive.failover.analysis.drain.order import order_drain
    from outlive.failover.analysis.drain.search import DrainSearch
else:
    __getattr__ = load_exports(__name__)
