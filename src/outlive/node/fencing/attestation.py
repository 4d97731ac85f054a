"""An operator's assertion about what a lost Membership ran: it was deleted, or a restored backup does not have it.

Nobody can condemn such a host any more, and entries of virtual machines that were written under it are fenced by no
proof. The assertion is about exactly those Memberships, by uid, through the highest epoch that any entry names; it is
recorded in the Membership that has the host's name now, or in one that is made for it, in one write. What is made so is
dead from the beginning and of no machine: a host that comes with that name empties itself first
(``outlive.node.membership.join``). As everywhere, nothing protects from an assertion that is not true; what can be seen
to be untrue is refused. The write is a compare-and-swap, so a host that registers at the same moment is seen. What
entries name is read before: an entry that is written after it, in a later epoch, is not covered, and its virtual
machine waits for another assertion.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.base import AlreadyExists, Clock, Conflict, Refused, Unknown, as_datetime, stable_hash
from outlive.node.fencing.policy import HostSettings
from outlive.node.membership.join import FORMER_LIMIT, NOBODYS, is_nobodys
from outlive.node.membership.states import date_proofs
from outlive.node.membership.steps import RecordOutcome
from outlive.resources import (
    CLUSTER,
    HOST_LABEL,
    Cluster,
    Fault,
    FencePhase,
    FenceRecord,
    FormerMembership,
    HypervisorUsage,
    MemberRecord,
    Membership,
    ObjectMeta,
    Part,
    Proof,
    VirtualMachine,
)
from outlive.resources.reasons import FaultCode
from outlive.runtime import REPORTER_LABEL, Precondition, ProtocolStep
from outlive.store import Selector, Store, list_all, read

ATTEMPTS: Final = 5
"""Swaps that are tried before the command gives up against other writers."""

_replace = msgspec.structs.replace


class AttestView(Part, frozen=True, kw_only=True):
    """What is known when somebody speaks for a lost Membership."""

    host: str
    record: MemberRecord | None = None
    """Of the Membership that has the host's name now; ``None``: there is none."""
    uid: str = ""
    """Of that one."""
    lost: dict[str, int] = {}
    """Uid → the highest epoch that entries of virtual machines name, of the lost Memberships concerned."""
    only: str = ""
    """The one that it is limited to; empty: it is about the host, and all that it ever ran."""
    named: tuple[str, ...] = ()
    """Every uid of this host that entries name."""
    missed: bool = False
    """Whether the host said that a restored store does not know it (``Cluster.status.pause.waitsFor``), or reported
    domains that the store did not know (fault ``unknown-vm``)."""
    running: tuple[str, ...] = ()
    """VMs with such an entry that are on the host, by its latest figures, and not held under the present Membership."""
    has_figures: bool = False
    """Whether there are such figures."""
    incarnation: str = ""
    """The store's, read fresh; empty: nobody says."""
    token: str = ""
    """Names this word; new each time."""
    name: str
    reason: str


def _attest(view: AttestView) -> RecordOutcome:
    through = max(view.lost.values(), default=1)
    epoch = max(through, view.record.epoch if view.record is not None else 0)
    fence = f"{view.host}.{epoch}.{view.token}"
    evidence = f"{view.name}: {view.reason}"

    def build_proof(about: int) -> Proof:
        return Proof(kind="operator", evidence=evidence, epoch=about, by=view.name, fence=fence)

    kept = _former_memberships(view)
    new = [
        FormerMembership(uid=uid, dead_through=about, proof=build_proof(about))
        for uid, about in sorted(view.lost.items())
        if not any(one.uid == uid and one.dead_through >= about for one in kept)
    ]
    fresh = {one.uid for one in new}
    former = (*(one for one in kept if one.uid in view.named and one.uid not in fresh), *new)
    if view.record is not None and not is_nobodys(view.record):
        return RecordOutcome(record=_replace(view.record, former=former))
    made = view.record or MemberRecord(
        machine_id=NOBODYS,
        boot_id="",
        epoch=epoch,
        state="Revoked",
        dead_through=epoch,
        proof=build_proof(epoch),
        fence=FenceRecord(
            id=fence,
            epoch=epoch,
            phase=FencePhase.PROVEN,
            by=view.name,
            reason="its Membership was lost",
            findings=(build_proof(epoch),),
        ),
    )
    if view.only and view.record is not None:
        return RecordOutcome(record=_replace(made, former=former))
    return RecordOutcome(record=_replace(made, former=former, incarnation=view.incarnation or made.incarnation))


def _former_memberships(view: AttestView) -> tuple[FormerMembership, ...]:
    """What is recorded already."""
    return view.record.former if view.record is not None else ()


def _is_held(view: AttestView) -> bool:
    return view.record is not None and view.record.state == "Held"


def _has_registered(view: AttestView) -> bool:
    """Whether the host has registered all that it runs in the store as it is now."""
    return view.record is not None and view.incarnation in ("", view.record.incarnation)


def _settles_nothing(view: AttestView) -> bool:
    """Whether nobody waits for an assertion about this host."""
    if view.lost or view.only:
        return not view.lost
    if view.record is None:
        return not view.missed
    # one from a backup has to be said again: the host may have come back since
    return not is_nobodys(view.record) or view.incarnation in ("", view.record.incarnation)


ATTEST: Final = ProtocolStep(
    "safety.attest",
    "Somebody asserts that what a lost membership ran is off",
    AttestView,
    RecordOutcome,
    (
        Precondition[AttestView](
            "named",
            lambda view: view.name.strip() != "" and view.reason.strip() != "",
            lambda view: "an assertion needs a name and a reason",
        ),
        Precondition[AttestView](
            "lost",
            lambda view: view.uid == "" or view.uid not in view.lost,
            lambda view: f"{view.uid} is the present membership of {view.host}, and not lost",
        ),
        Precondition[AttestView](
            "waited-for",
            lambda view: not _settles_nothing(view),
            lambda view: f"no VM is held for a lost membership of {view.host}",
        ),
        Precondition[AttestView](
            "not-missed",
            lambda view: not (view.only and view.missed and view.record is None),
            lambda view: (
                f"{view.host} said that the store does not know it, or VMs on it, and may run more than {view.only} "
                "ran: say it of all that it ran, or let it register first"
            ),
        ),
        Precondition[AttestView](
            "figures-there",
            lambda view: not _is_held(view) or (view.has_figures and _has_registered(view)),
            lambda view: f"{view.host} is a member again, and has not said yet what is on it",
        ),
        Precondition[AttestView](
            "not-seen-there",
            lambda view: not _is_held(view) or not view.running,
            lambda view: f"{view.host} is a member again, and says that {view.running[0]} is on it",
        ),
        Precondition[AttestView](
            "room",
            lambda view: (
                len({*view.lost, *(one.uid for one in _former_memberships(view) if one.uid in view.named)})
                <= FORMER_LIMIT
            ),
            lambda view: f"{FORMER_LIMIT} lost memberships of {view.host} are named by VMs already",
        ),
    ),
    _attest,
)


async def lost_memberships(store: Store, host: str, *, but: str = "") -> dict[str, int]:
    """Uid → highest epoch, of Memberships of this host other than ``but`` that entries of virtual machines name."""
    found, _ = await _read_entries(store, host, but)
    return found


async def is_missing(store: Store, host: str) -> bool:
    """Whether the host said that a restored store does not know it, or reported domains that the store did not know."""
    return _waits_for(await read(store, Cluster, CLUSTER), host) or await _has_reported(store, host)


async def attest(store: Store, clock: Clock, host: str, membership: str = "", *, name: str, reason: str) -> str:
    """Record that what lost Memberships of the host ran is off: all of them, or the one of this uid.

    ``Refused`` where it is not lost, nobody waits for it, or the host is seen to run it; ``Conflict`` where others keep
    changing the Membership.
    """
    for attempt in range(ATTEMPTS):
        found = await read(store, Membership, host)
        view = await _build_view(store, host, found, membership, name=name, reason=reason)
        outcome = ATTEST.attempt(view)
        if outcome.refused is not None:
            raise Refused(outcome.refused.why, remedy=f"outlive why {host} shows its state")
        assert outcome.record is not None
        record = date_proofs(outcome.record, found.record if found is not None else None, as_datetime(clock.now()))
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


async def _build_view(
    store: Store, host: str, found: Membership | None, membership: str, *, name: str, reason: str
) -> AttestView:
    uid = found.metadata.uid if found is not None else ""
    lost, named = await _read_entries(store, host, uid)
    if membership:
        lost = {membership: lost[membership]} if membership in lost else {}
    usage = await read(store, HypervisorUsage, host)
    present = usage.usage.present if usage is not None else None
    here = [vm for vm, uids in named.items() if uid not in uids and uids & lost.keys() and vm in (present or ())]
    cluster = HostSettings(await read(store, Cluster, CLUSTER), None)
    return AttestView(
        host=host,
        record=found.record if found is not None else None,
        uid=uid,
        lost=lost,
        named=tuple(sorted({each for uids in named.values() for each in uids})),
        only=membership,
        missed=_waits_for(cluster.cluster, host) or await _has_reported(store, host),
        running=tuple(sorted(here)),
        has_figures=present is not None,
        incarnation=cluster.incarnation,
        token=f"{stable_hash(name, reason, *sorted(lost)):016x}"[:6],
        name=name,
        reason=reason,
    )


def _waits_for(cluster: Cluster | None, host: str) -> bool:
    return cluster is not None and cluster.status.pause is not None and host in cluster.status.pause.waits_for


async def _has_reported(store: Store, host: str) -> bool:
    """Whether a name is kept from starting because the daemon of the host reported a domain of it."""
    selector = Selector.from_labels({REPORTER_LABEL: "daemon", HOST_LABEL: host})
    faults = [one async for one in list_all(store, Fault, selector=selector)]
    return any(one.code == FaultCode.UNKNOWN_VM and not one.ended for one in faults)


async def _read_entries(store: Store, host: str, but: str) -> tuple[dict[str, int], dict[str, set[str]]]:
    """Lost uid → highest epoch; VM → uids of this host that its entries name."""
    lost: dict[str, int] = {}
    named: dict[str, set[str]] = {}
    async for vm in list_all(store, VirtualMachine, whole=True):
        for one in vm.status.holders:
            if one.hypervisor == host:
                named.setdefault(vm.name, set()).add(one.member_uid)
                if one.member_uid != but:
                    lost[one.member_uid] = max(lost.get(one.member_uid, 0), one.epoch)
    return lost, named
