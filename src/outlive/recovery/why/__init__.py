"""Why a VM runs where it runs, or why a host is thought dead: the chain from the last renewal that was seen.

It is made from what is stored and nothing else: the VM's own record of its recovery, the Memberships with their
proofs, and the records of the decisions that were acted on, each with its input, so that ``outlive decide`` repeats it.
Where a record is missing (they are kept for a week) the chain is shorter, and says nothing that nobody wrote down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec

from outlive.base import as_instant
from outlive.node import ClusterLiveness
from outlive.recovery.why.chain import Link, WhyAnswer
from outlive.recovery.why.hosts import explain_host
from outlive.recovery.why.vms import explain_vm
from outlive.resources import Cluster, DecisionRecord, Hypervisor, Membership, VirtualMachine
from outlive.resources import CLUSTER
from outlive.resources import RenewalSight
from outlive.store import Store, list_all, read

if TYPE_CHECKING:
    from outlive.recovery.why.network import link_network
else:
    __getattr__ = load_exports(__name__)

__all__ = ["WhyAnswer", "explain"]

ANY_DATE: Final = datetime.max.replace(tzinfo=UTC)


async def explain(store: Store, name: str, sight: RenewalSight) -> WhyAnswer:
    """Of a VM, else of a host; ``NotFound``. ``sight``: what is seen of renewals at this moment."""
    records = [one async for one in list_all(store, DecisionRecord)]
    vm = await read(store, VirtualMachine, name)
    names = [name] if vm is None else sorted({vm.host, *(one.hypervisor for one in vm.status.holders)} - {""})
    hosts = {one: await read(store, Hypervisor, one) for one in names}
    members = {one: await read(store, Membership, one) for one in names}
    life = ClusterLiveness(sight, await read(store, Cluster, CLUSTER), hosts.get, members.get)
    answer = await (explain_host(store, name, records, life) if vm is None else explain_vm(store, vm, records, life))
    # what happened, the oldest first; then what is so now, which has no time of its own
    dated = [one for one in answer.chain if one.at is not None]
    dated.sort(key=lambda one: as_instant(one.at or ANY_DATE))
    return msgspec.structs.replace(answer, chain=(*dated, *(one for one in answer.chain if one.at is None)))
