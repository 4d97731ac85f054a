"""Why a VM runs where it runs, or why a host is thought dead: the chain from the last renewal that was seen.

It is made from what is stored and nothing else: the VM's own record of its recovery, the Memberships with their
proofs, and the records of the decisions that were acted on, each with its input, so that ``outlive decide`` repeats it.
Where a record is missing (they are kept for a week) the chain is shorter, and says nothing that nobody wrote down.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec

from outlive.base.clock import as_instant
from outlive.node.liveness import ClusterLiveness
from outlive.recovery.why.chain import Link, Why
from outlive.recovery.why.hosts import explain_host
from outlive.recovery.why.vms import explain_vm
from outlive.resources import Cluster, DecisionRecord, Hypervisor, Membership, VirtualMachine
from outlive.resources.cluster import CLUSTER
from outlive.resources.memberships import RenewalSight
from outlive.store import Store, list_all, read

__all__ = ["Why", "explain"]

ANY_DATE: Final = datetime.max.replace(tzinfo=UTC)


async def explain(store: Store, name: str, sight: RenewalSight) -> Why:
    """Of a VM, else of a host; ``NotFound``. ``sight``: what is seen of renewals at this moment."""
    records = [one async for one in list_all(store, DecisionRecord)]
    vm = await read(store, VirtualMachine, name)
    life = await _read_liveness(store, name, vm, sight)
    answer = await (explain_host(store, name, records, life) if vm is None else explain_vm(store, vm, records, life))
    return msgspec.structs.replace(answer, chain=_sort_by_time(answer.chain))


async def _read_liveness(store: Store, name: str, vm: VirtualMachine | None, sight: RenewalSight) -> ClusterLiveness:
    """How the host is, or all hosts of the VM."""
    names = [name] if vm is None else sorted({vm.host, *(one.hypervisor for one in vm.status.holders)} - {""})
    hosts = {one: await read(store, Hypervisor, one) for one in names}
    members = {one: await read(store, Membership, one) for one in names}
    return ClusterLiveness(sight, await read(store, Cluster, CLUSTER), hosts.get, members.get)


def _sort_by_time(chain: Iterable[Link]) -> tuple[Link, ...]:
    """What happened, the oldest first; then what is so now, which has no time of its own."""
    links = list(chain)
    dated = sorted((one for one in links if one.at is not None), key=lambda one: as_instant(one.at or ANY_DATE))
    return (*dated, *(one for one in links if one.at is None))
