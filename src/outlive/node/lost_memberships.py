"""Memberships that are lost: who waits for them, and an operator's attestation that what they ran is off.

The write is a compare-and-swap on the Membership that has the host's name now, or creates one where there is none, so
a host that registers at the same moment is seen. What the entries of virtual machines name is read before: an entry
that is written after it, in a later epoch, is not covered, and its virtual machine waits for another attestation.
"""

from __future__ import annotations

from typing import Final

from outlive.base.clock import Clock, as_datetime
from outlive.base.errors import AlreadyExists, Conflict, Refused, Unknown
from outlive.base.hashing import stable_hash
from outlive.node.fencing.attestation import ATTEST, AttestView
from outlive.node.membership.states import dated
from outlive.resources import Cluster, HypervisorUsage, Membership, ObjectMeta, VirtualMachine
from outlive.store import Store, list_all
from outlive.store.access import read

ATTEMPTS: Final = 5
"""Swaps that are tried before the command gives up against other writers."""
CLUSTER: Final = "default"


async def lost_memberships(store: Store, host: str, *, but: str = "") -> dict[str, int]:
    """Uid → highest epoch, of Memberships of this host other than ``but`` that entries of virtual machines name."""
    found, _ = await _entries(store, host, but)
    return found


async def is_missing(store: Store, host: str) -> bool:
    """Whether the host said that a restored store does not know it."""
    found = await read(store, Cluster, CLUSTER)
    return found is not None and found.status.pause is not None and host in found.status.pause.waits_for


async def attest(store: Store, clock: Clock, host: str, membership: str = "", *, name: str, reason: str) -> str:
    """Record that what lost Memberships of the host ran is off: all of them, or the one of this uid.

    ``Refused`` where it is not lost, nobody waits for it, or the host is seen to run it; ``Conflict`` where others keep
    changing the Membership.
    """
    for attempt in range(ATTEMPTS):
        found = await read(store, Membership, host)
        view = await _view(store, host, found, membership, name=name, reason=reason)
        outcome = ATTEST.attempt(view)
        if outcome.refused is not None:
            raise Refused(outcome.refused.why, remedy=f"outlive why {host} shows its state")
        assert outcome.record is not None
        record = dated(outcome.record, found.record if found is not None else None, as_datetime(clock.now()))
        try:
            if found is None:
                await store.create(Membership(metadata=ObjectMeta(name=host), record=record))
            elif record != found.record:
                await store.replace(Membership(metadata=found.metadata, record=record))
        except (AlreadyExists, Conflict, Unknown):
            if attempt == ATTEMPTS - 1:
                raise
            continue
        memberships = ", ".join(f"{uid} through epoch {epoch}" for uid, epoch in sorted(view.lost.items()))
        return f"recorded: {name} says that what {host} ran is off" + (
            f" (lost membership {memberships})" if memberships else ""
        )
    raise AssertionError("unreachable")


async def _view(
    store: Store, host: str, found: Membership | None, membership: str, *, name: str, reason: str
) -> AttestView:
    uid = found.metadata.uid if found is not None else ""
    lost, named = await _entries(store, host, uid)
    if membership:
        lost = {membership: lost[membership]} if membership in lost else {}
    figures = await _figures(store, host)
    running = tuple(
        sorted(
            vm
            for vm, uids in named.items()
            if uid not in uids and uids & lost.keys() and figures is not None and vm in figures
        )
    )
    cluster = await read(store, Cluster, CLUSTER)
    incarnation = cluster.status.store_incarnation if cluster is not None else ""
    return AttestView(
        host=host,
        record=found.record if found is not None else None,
        uid=uid,
        lost=lost,
        named=tuple(sorted({each for uids in named.values() for each in uids})),
        only=membership,
        missed=await is_missing(store, host),
        running=running,
        told=figures is not None,
        incarnation=incarnation,
        token=f"{stable_hash(name, reason, *sorted(lost)):016x}"[:6],
        name=name,
        reason=reason,
    )


async def _entries(store: Store, host: str, but: str) -> tuple[dict[str, int], dict[str, set[str]]]:
    """Lost uid → highest epoch; VM → uids of this host that its entries name."""
    lost: dict[str, int] = {}
    named: dict[str, set[str]] = {}
    async for vm in list_all(store, VirtualMachine):
        for one in vm.status.holders:
            if one.hypervisor == host:
                named.setdefault(vm.name, set()).add(one.member_uid)
                if one.member_uid != but:
                    lost[one.member_uid] = max(lost.get(one.member_uid, 0), one.epoch)
    return lost, named


async def _figures(store: Store, host: str) -> tuple[str, ...] | None:
    """VMs that are on the host as it said last; ``None``: it has not said."""
    found = await read(store, HypervisorUsage, host)
    return found.usage.present if found is not None else None
