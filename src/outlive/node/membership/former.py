"""What a host does about a Membership of its own that was lost, once somebody has said that what it ran is over.

The word (``outlive.node.fencing.vouching``) made a Membership that is dead and of no machine. A host that comes back
takes it as it takes one in which it was proven dead (row J4): everything on it goes, that is verified, and it goes on
in an epoch of its own. It then says itself that nothing is left of what it remembers to have been.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.node.membership.joining import JoinView, Remembered
from outlive.resources import FormerMembership, MemberRecord, Proof

NOBODYS: Final = ""
"""``machineId`` of a Membership that no machine has taken yet."""
FORMER_LIMIT: Final = 16
"""Lost Memberships that are kept of one host."""

_replace = msgspec.structs.replace


def is_nobodys(record: MemberRecord) -> bool:
    """Whether no machine has taken this Membership yet: it was made for a lost one."""
    return record.machine_id == NOBODYS


def takes_nobodys(view: JoinView) -> bool:
    """Whether this host comes to a Membership that was made for the one that it, or its predecessor, lost."""
    if view.record is None or not is_nobodys(view.record):
        return False
    return view.remembered is None or view.remembered.uid != view.uid


def claimed(view: JoinView) -> JoinView:
    """A Membership that no machine has taken, in a backup that is older than this host's taking it, is this host's."""
    if view.record is None or not is_nobodys(view.record):
        return view
    return _replace(view, record=_replace(view.record, machine_id=view.machine_id))


def taken(view: JoinView) -> JoinView:
    """As if the host had been a member of it in this boot, and had been proven dead: everything here has to go.

    Only a domain that is found speaks against the proof: nobody knows whether the machine has booted since.
    """
    view = claimed(view)
    assert view.record is not None
    return _replace(view, record=_replace(view.record, boot_id=view.boot_id), gate_closed=True)


def emptied(record: MemberRecord, remembered: Remembered | None, host: str) -> MemberRecord:
    """The record of a host that is empty, and remembers to have been another Membership: that one is over as well."""
    if remembered is None or not remembered.uid:
        return record
    uid, through = remembered.uid, remembered.epoch
    if any(one.uid == uid and one.dead_through >= through for one in record.former):
        return record
    evidence = f"{host} itself found nothing left of its lost membership"
    proof = Proof(kind="self-cleaned", evidence=evidence, epoch=through, by=host)
    others = tuple(one for one in record.former if one.uid != uid)
    return _replace(
        record, former=(*others[1 - FORMER_LIMIT :], FormerMembership(uid=uid, dead_through=through, proof=proof))
    )
