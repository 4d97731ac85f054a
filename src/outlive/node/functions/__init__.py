"""Virtual functions of network cards (SR-IOV): registered, programmed and booked by the daemon of their host.

A host's books are fields of its own ``Hypervisor``, which only its daemon writes. What is wanted of them is in the
virtual machines: where each is assigned, and the record of its move. So the books follow from what the store has, and
a daemon that ended between any two writes finds the same answer again (docs/how-to/functions.md).
"""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.node.functions.account import AccountCode, SriovDevice, account_functions
    from outlive.node.functions.books import FunctionOwner, HostBooks, move_refusals
    from outlive.node.functions.reconciler import FunctionReconciler
else:
    __getattr__ = load_exports(__name__)
