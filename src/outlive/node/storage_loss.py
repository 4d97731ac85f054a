"""What is done about virtual machines that storage does not serve any more: decision ``host.storage``.

A guest whose disks are dead runs nowhere else while its host lives, and serves nobody. To end it here and start it
elsewhere helps where this host, or its way to the storage, is the cause. Where the storage itself is, it would only
cost what the guest has in memory. So it is the same question as with a host that degrades, and the same answer: many
hosts that lose storage together share a cause, and then nothing is done but to say so; nor where no other host has said
that it reaches the storage: one that never asked proves nothing
(docs/design/node-decisions.md#hoststorage). Nothing is safe or unsafe because of it: a virtual machine starts
elsewhere by the same steps as always, once its host has seen it end.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from outlive.node.health import HealthPeer, LeaveVerdict, has_common_cause
from outlive.node.ports import DiskIo
from outlive.resources import StorageLost
from outlive.runtime import Amount, Count, Decision


class LossKind(enum.StrEnum):
    """How it shows."""

    IO_ERROR = "io-error"
    """A disk failed, and the hypervisor paused the guest."""
    STUCK = "stuck"
    """Its requests get no answer."""
    UNREACHED = "unreached"
    """Its host does not reach what its disks lie on."""


class LostGuest(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine that storage does not serve any more. Times in seconds."""

    vm: str
    kind: LossKind
    places: tuple[str, ...] = ()
    """Those of its disks that its host does not reach."""
    lost_for: Amount
    action: StorageLost = "report"
    """Its policy."""
    recovers: bool = True
    """Whether another host may start it."""
    required: Count | None = None
    """Slots that it needs; null: nobody has said."""
    hangs: bool = False
    """Whether it was to be ended, and its process does not end."""


class StorageInput(msgspec.Struct, frozen=True, kw_only=True):
    """A host with such virtual machines, the policy, and the other hosts. Times in seconds."""

    host: str
    guests: tuple[LostGuest, ...] = ()
    settle: Amount = 30
    common_share: Amount = 0.25
    resting: bool = False
    """Whether somebody works on the host or the cluster, or the cluster is paused or disarmed."""
    peers: tuple[HealthPeer, ...] = ()


class StorageResult(msgspec.Struct, frozen=True, kw_only=True):
    """Who is to be ended here and start elsewhere; whether the host is to be fenced; and why nothing is done."""

    restart: tuple[str, ...] = ()
    fence: bool = False
    why: LeaveVerdict = LeaveVerdict.GO
    together: int = 0
    """How many hosts have lost storage, …"""
    working: int = 0
    """… of how many."""


def decide_storage(given: StorageInput) -> StorageResult:
    """Look at each reason to do nothing in turn."""
    working = [peer for peer in given.peers if peer.works]
    well = [peer for peer in working if not peer.storage_lost]
    together = 1 + len(working) - len(well)
    acting = [one for one in given.guests if one.action != "report" and one.recovers]
    settled = [one for one in acting if one.lost_for >= given.settle]
    confirmed = {place for peer in working for place in peer.reaches}
    served = [one for one in settled if confirmed.issuperset(one.places)]
    why = LeaveVerdict.GO
    if not given.guests:
        why = LeaveVerdict.WELL
    elif not acting:
        why = LeaveVerdict.OFF
    elif given.resting:
        why = LeaveVerdict.MAINTENANCE
    elif not settled:
        why = LeaveVerdict.UNSETTLED
    elif not well:
        why = LeaveVerdict.ALONE if together == 1 else LeaveVerdict.COMMON_CAUSE
    elif has_common_cause(together, len(working) + 1, given.common_share):
        why = LeaveVerdict.COMMON_CAUSE
    elif not served:
        why = LeaveVerdict.UNCONFIRMED
    if why is not LeaveVerdict.GO:
        return StorageResult(why=why, together=together, working=len(working) + 1)
    hanging = [one for one in served if one.action == "fence" and one.hangs and one.required != 0]
    unreached = any(one.kind is LossKind.UNREACHED for one in given.guests)
    return StorageResult(
        restart=tuple(one.vm for one in served),
        fence=unreached and bool(hanging) and any(peer.coordinator for peer in well),
        together=together,
        working=len(working) + 1,
    )


STORAGE_LOST: Final = Decision(
    "host.storage",
    decide_storage,
    StorageInput,
    StorageResult,
    "What is done about virtual machines that storage does not serve any more",
    lambda output: not output.restart and not output.fence,
)

WHAT_NOW: Final[dict[str, str]] = {
    LeaveVerdict.GO: "it is ended here, and starts elsewhere once it is proven gone",
    LeaveVerdict.OFF: "nothing else is done, as its policy (spec.recovery.storageLost) says",
    LeaveVerdict.MAINTENANCE: "nothing is done while somebody works on the host or the cluster",
    LeaveVerdict.UNSETTLED: "it stays until it is seen whether other hosts have lost storage as well",
    LeaveVerdict.ALONE: "it stays, because no other host could take it",
    LeaveVerdict.COMMON_CAUSE: "it stays, because other hosts have lost storage as well",
    LeaveVerdict.UNCONFIRMED: "it stays, because no other host has said that it reaches that storage",
}
"""What becomes of such a virtual machine."""


class StuckRequests:
    """Which guests have requests on their way while none comes back, from look to look."""

    def __init__(self, stuck_s: float) -> None:
        self._stuck_s = stuck_s
        self._since: dict[str, tuple[str, int | None, float]] = {}
        """Virtual machine → run, what its disks had answered, and since when it waits without another answer."""

    def find_stuck(self, seen: tuple[DiskIo, ...], now_s: float) -> dict[str, str]:
        """Those that have waited for long enough by now, and their runs."""
        before, self._since = self._since, {}
        for one in seen:
            if not one.pending:
                continue
            run, done, since_s = before.get(one.vm, ("", None, now_s))
            same = run == one.run_id and (one.done is None or done is None or one.done == done)
            answered = done if one.done is None else one.done
            self._since[one.vm] = (one.run_id, answered, since_s if same else now_s)
        return {vm: run for vm, (run, _, since_s) in self._since.items() if now_s - since_s >= self._stuck_s}
