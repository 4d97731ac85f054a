"""How a daemon enters its Membership, and returns to it: rows J0 to J4 with what must be done before each.

It reads, decides by ``join``, empties the host where the row says so, writes, and writes the epoch down on the host's
own disk once the store has acknowledged it; nothing uses an epoch before. Neither another machine's Membership nor a
forgotten one is ever overwritten. A store that knows an earlier epoch of this boot than the host used went back: the
host has the cluster paused, and enters with an epoch that was never used. So it does where the backup lacks it, once
its ``Hypervisor`` is in the store. A Membership that is gone from a store that was not restored is for an operator to
judge; the one that ``outlive.node.fencing.attestation`` creates in its place is dead and of no machine: a host that
comes with that name empties itself first, and then says itself that nothing is left of what it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from outlive.base import AlreadyExists, Conflict, OutliveError, Refused, Unavailable, Unknown, as_datetime, get_logger
from outlive.node.fencing.policy import fence_order
from outlive.node.membership.guard import record_of
from outlive.node.membership.states import date_proofs
from outlive.node.membership.steps import JoinOutcome, JoinView, RememberedMembership, join
from outlive.resources import (
    CLUSTER,
    Cluster,
    FormerMembership,
    Hypervisor,
    MemberRecord,
    Membership,
    ObjectMeta,
    Proof,
    R,
)
from outlive.resources.reasons import FaultCode, fault_message
from outlive.runtime import Decision, refuses
from outlive.store import read

if TYPE_CHECKING:
    from outlive.node.vm.context import VmContext

EMPTYING_ROUNDS: Final = 20
"""How often the daemon tries to empty the host before it says that it cannot."""

DISK_LIMIT_S: Final = 10.0
"""How long the host's own disk may take."""

_T = TypeVar("_T")

JOIN: Final = Decision("safety.join", join, JoinView, JoinOutcome, "How a host enters its membership", is_empty=refuses)

_replace = msgspec.structs.replace
_log = get_logger("node.membership")


class JoinResult(msgspec.Struct, frozen=True, kw_only=True):
    """A membership that this daemon holds."""

    membership: Membership
    row: str
    restored: bool = False
    """Whether the store had gone back behind what this host knows."""
    unannounced: bool = False
    """Whether nobody else had said so."""


class Blocked(Exception):
    """The host cannot enter now; ``code`` names the fault, ``message`` says why, ``remedy`` what to do."""

    def __init__(self, code: FaultCode, host: str, why: str = "", remedy: str = "") -> None:
        said = fault_message(code, host, {"why": why, "remedy": remedy})
        super().__init__(said.text)
        self.code = code
        self.message = said.text
        self.remedy = said.remedy


class JoinProcedure:
    """See the module. One for each daemon process."""

    def __init__(self, node: VmContext) -> None:
        self._node = node
        self._host = node.host
        self._limit_s = float(node.settings.write_limit)
        self._ran: dict[int, bool] = {}
        """Epoch → whether a domain of it was there when this daemon first looked after that epoch."""
        self._emptied = 0
        self._restored = False
        """Whether a try that did not get to its end found that the store had gone back."""
        self._unannounced = False
        """Whether this host had to say itself that the store went back."""
        self._disk = asyncio.Lock()
        """Lock for changes of what is on the host's disk."""
        self._noted = ""
        """Incarnation that was last written down."""

    async def enter(self, *, restored: bool, known: str = "") -> JoinResult | None:
        """One try; ``None``: look again at once. ``known``: the incarnation that this daemon was registered in last.

        ``Refused``: this daemon must not run. ``Blocked``: not now. Errors of the store, as they come.
        """
        found = await self.read()
        remembered = await self._call_disk(self._node.machine.read_remembered())
        view = await self._read_view(found, remembered)
        if not _renews(view):  # else the host would be fenced for a guest that hangs; nothing starts while one is left
            await self._end_foreign()
        forgotten = await self.is_forgotten(view.record, remembered)
        nobodys = takes_nobodys(view)
        self._restored = restored = not nobodys and (restored or self._restored or forgotten or _is_store_older(view))
        view = take_membership(view) if nobodys else claim_membership(view)
        cluster = await self._read(Cluster, CLUSTER)  # a host that never registered is to know the store again
        says = cluster.status.store_incarnation if cluster is not None else ""
        if restored:
            await self._report(view, remembered, known, cluster)
        if forgotten or (restored and self._was_member_since_boot(view)):
            view = lift_epoch(view)
        if (
            view.record is not None
            and view.record.boot_id == view.boot_id
            and says not in ("", view.record.incarnation)
        ):
            view = _replace(view, isolated=await self._node.is_isolated(view.record.epoch))
        outcome = self._node.decisions.use(JOIN, view, subject=self._host)
        if outcome.destroy_first:
            await self._empty()
            return None
        if outcome.refused is not None:
            raise _refusal_error(outcome, view)
        assert outcome.record is not None
        if outcome.row == "J3" and not (nobodys or restored):
            await self._check_order(view.record, view.uid)
        record = close_lost_membership(outcome.record, remembered, self._host) if nobodys else outcome.record
        incarnation = record.incarnation or says
        written = await self._write(found, record)
        entered = RememberedMembership(uid=written.metadata.uid, epoch=written.record.epoch, incarnation=incarnation)
        if entered != remembered:
            async with self._disk:
                await self._call_disk(self._node.machine.remember(entered))
        self._noted = entered.incarnation
        unannounced, self._unannounced, self._restored = self._unannounced, False, False
        self._ran.clear()  # what it holds from now on goes on: once that has ended it is looked at anew
        return JoinResult(membership=written, row=outcome.row, restored=restored, unannounced=unannounced)

    async def _report(
        self, view: JoinView, remembered: RememberedMembership | None, known: str, cluster: Cluster | None
    ) -> None:
        """Have the cluster paused: the store misses what it acknowledged to this host.

        A Membership of another uid was put there by somebody, and says nothing of the whole store.
        """
        if view.record is None or (remembered is not None and remembered.uid != view.uid):
            return
        old = {view.record.incarnation, known, remembered.incarnation if remembered is not None else ""}
        self._unannounced |= cluster is not None and cluster.status.store_incarnation in old
        await self._node.pause.report(self._host, old, stamps=True)

    async def read(self) -> Membership | None:
        """The membership as it is now."""
        return await self._read(Membership, self._host)

    async def _read(self, kind: type[R], name: str) -> R | None:
        return await read(self._node.store, kind, name, limit_s=self._limit_s)

    async def is_forgotten(self, record: MemberRecord | None, remembered: RememberedMembership | None) -> bool:
        """Whether the store was restored from a backup that does not know this host, which is to be in it by now.

        The cluster is then paused until it has registered, so that nobody starts what it runs.
        ``Blocked`` where nobody has put the host's ``Hypervisor`` back yet.
        """
        if record is not None or remembered is None or not remembered.incarnation:
            return False
        if not await self._node.pause.report(self._host, {remembered.incarnation}, stamps=False):
            return False
        if await self._read(Hypervisor, self._host) is None:
            raise Blocked(FaultCode.HOST_UNKNOWN, self._host)
        return True

    async def is_host_forgotten(self) -> bool:
        """The same of the host as it is now."""
        found = await self.read()
        return await self.is_forgotten(
            found.record if found else None, await self._call_disk(self._node.machine.read_remembered())
        )

    async def note(self, membership: Membership) -> None:
        """Write down in which store this membership is registered; ``Blocked`` where the disk does not take it."""
        record = membership.record
        if record.incarnation in ("", self._noted):
            return
        async with self._disk:
            known = await self._call_disk(self._node.machine.read_remembered())
            if known is None or (known.uid, known.epoch) != (membership.metadata.uid, record.epoch):
                return  # it enters at this moment
            if known.incarnation != record.incarnation:
                await self._call_disk(self._node.machine.remember(_replace(known, incarnation=record.incarnation)))
            self._noted = record.incarnation

    async def _call_disk(self, call: Awaitable[_T]) -> _T:
        """What the host's own disk answers; ``Blocked`` where it does not.

        Nothing may use an epoch that is not written down, so the host waits, and says so; a daemon that ended instead
        would end again and again, until its host counts as dead.
        """
        try:
            async with asyncio.timeout(DISK_LIMIT_S):
                return await call
        except (OSError, OutliveError) as error:
            why = str(error) or f"no answer in {DISK_LIMIT_S:g} s"
            raise Blocked(
                FaultCode.HOST_CANNOT_JOIN,
                self._host,
                f"{self._host} cannot read or write down on its own disk what it is a member of: {why}",
                f"check the disk of {self._host}: whether it is full, and whether it can be written",
            ) from error

    async def _read_view(self, found: Membership | None, remembered: RememberedMembership | None) -> JoinView:
        try:
            await self._node.domains.start_and_refresh()
        except OutliveError as error:
            raise Blocked(
                FaultCode.HOST_CANNOT_JOIN,
                self._host,
                f"{self._host} cannot see what runs on it: {error.message}",
                error.remedy or f"check the hypervisor service of {self._host}",
            ) from error
        report = await self._node.guard.report()
        record = found.record if found is not None else None
        if record is not None and record.epoch not in self._ran:
            self._ran[record.epoch] = any(one.epoch <= record.epoch for one in self._node.domains.by_vm.values())
        trust_word = ""
        if record is not None and record.dead_through >= record.epoch:  # a proof may turn out wrong
            host = await self._read(Hypervisor, self._host)
            trust_word = host.spec.fencing.trust_again if host is not None else ""
        return JoinView(
            trust_word=trust_word,
            host=self._host,
            record=record,
            uid=found.metadata.uid if found is not None else "",
            machine_id=self._node.machine.machine_id(),
            boot_id=self._node.machine.boot_id(),
            nonce=self._node.nonce,
            remembered=remembered,
            domains=self._node.domains.list_names(),
            gate_closed=record is not None and record.epoch in report.closed_epochs,
            was_running=record is not None and self._ran[record.epoch],
            guard=record_of(report),
        )

    def _was_member_since_boot(self, view: JoinView) -> bool:
        """Whether this machine held its membership in the present boot, though the backup may be older than that."""
        record = view.record
        if record is None or record.machine_id != view.machine_id:
            return False
        # Domains end with their boot, so one of an epoch that the backup does not know was begun in this boot.
        return record.boot_id == view.boot_id or any(
            one.epoch > record.epoch for one in self._node.domains.by_vm.values()
        )

    async def _check_order(self, record: MemberRecord | None, uid: str) -> None:
        """``Unavailable`` while somebody asks to have this host fenced in the epoch that was condemned.

        A host that lives sees that it is condemned before anybody can have switched it off, and would be back, with all
        that it runs, in an epoch that nobody asks to have fenced.
        """
        host = await self._read(Hypervisor, self._host)
        asked = fence_order(host.spec.fencing.requested, uid) if host is not None else None
        if record is not None and asked is not None and asked[0] == record.fence.epoch:
            _, who, why = asked
            raise Unavailable(
                f"{self._host} is to be fenced, {who} asks for it: {why}",
                remedy=f"boot it, or call that off (outlive fence {self._host} --call-off)",
            )

    async def _write(self, found: Membership | None, record: MemberRecord) -> Membership:
        """The record as the store has it; a lost answer is looked up."""
        record = date_proofs(record, found.record if found is not None else None, as_datetime(self._node.clock.now()))
        try:
            async with asyncio.timeout(self._limit_s):
                if found is None:
                    return await self._node.store.create(
                        Membership(metadata=ObjectMeta(name=self._host), record=record)
                    )
                return await self._node.store.replace(_replace(found, record=record))
        except (Conflict, AlreadyExists, Unknown, TimeoutError) as error:
            now = await self.read()
            if now is not None and now.record == record:
                return now
            raise Unavailable(f"{self._host} did not get into its membership: {error or 'no answer'}") from error

    async def _end_foreign(self) -> None:
        """End every virtual machine of the store that runs here and that Outlive did not start here.

        Whatever row this is: it has no entry, and may run elsewhere.
        """
        left = await self._node.foreign.end()
        if left:
            raise Blocked(
                FaultCode.HOST_NOT_EMPTY,
                self._host,
                f"{self._host} does not join while {left[0]} runs there: it is a VM of this cluster, Outlive did not "
                "start it there, and it cannot be ended",
                f"virsh autostart --disable {left[0]}; virsh destroy {left[0]}, or reboot the host",
            )

    async def _empty(self) -> None:
        """Destroy what is here; creates under way are waited for by looking again."""
        for vm in sorted(self._node.domains.by_vm):
            _log.warning("membership.destroying", host=self._host, vm=vm)
            await self._node.domains.destroy(vm)
        await self._node.domains.refresh()
        if not self._node.domains.list_names():
            self._emptied = 0
            return
        self._emptied += 1
        if self._emptied >= EMPTYING_ROUNDS:
            left = self._node.domains.list_names()
            raise Blocked(
                FaultCode.HOST_NOT_EMPTY,
                self._host,
                f"{self._host} cannot be emptied: {len(left)} domains are left, such as {left[0]}",
                "destroy them by hand, or reboot the host",
            )
        raise Unavailable(f"{len(self._node.domains.list_names())} domains are still on {self._host}")


def _is_store_older(view: JoinView) -> bool:
    """Whether the store knows less than the host does, which remembers only epochs that were acknowledged."""
    remembered, record = view.remembered, view.record
    if remembered is None or record is None:
        return False
    return remembered.uid != view.uid or remembered.epoch > record.epoch


def lift_epoch(view: JoinView) -> JoinView:
    """As if the store knew what the host knows, and the host had been condemned since: a new epoch follows."""
    known = view.remembered.epoch if view.remembered is not None else 0
    before = view.record or MemberRecord(machine_id=view.machine_id, boot_id=view.boot_id, epoch=known)
    epoch = max(before.epoch, known)
    if before.dead_through >= epoch:
        return _replace(view, remembered=None)
    record = _replace(before, boot_id=view.boot_id, epoch=epoch, state="Revoked")
    return _replace(view, remembered=None, record=record)


def _renews(view: JoinView) -> bool:
    """Whether a daemon of this boot is a member already, and others wait for its renewals."""
    return view.record is not None and view.record.state == "Held" and view.record.boot_id == view.boot_id


def _refusal_error(outcome: JoinOutcome, view: JoinView) -> Exception:
    assert outcome.refused is not None
    why, precondition = outcome.refused.why, outcome.refused.precondition
    match precondition:
        case "same-machine":
            return Refused(why, remedy="give this machine another name, or delete the Membership of the old one")
        case "never-a-member":
            return Blocked(FaultCode.MEMBERSHIP_GONE, view.host, why)
        case "not-isolated":
            return Blocked(FaultCode.HOST_ISOLATED, view.host, why)
        case "nothing-runs":
            return Blocked(FaultCode.HOST_NOT_EMPTY, view.host, why, "stop the domains on it before it registers")
    return Blocked(FaultCode.HOST_CANNOT_JOIN, view.host, why, "see docs/concepts/safety.md")


NOBODYS: Final = ""
"""``machineId`` of a Membership that no machine has taken yet."""
FORMER_LIMIT: Final = 16
"""Lost Memberships that are kept of one host."""


def is_nobodys(record: MemberRecord) -> bool:
    """Whether no machine has taken this Membership yet: it was made for a lost one."""
    return record.machine_id == NOBODYS


def takes_nobodys(view: JoinView) -> bool:
    """Whether this host comes to a Membership that was made for the one that it, or its predecessor, lost."""
    if view.record is None or not is_nobodys(view.record):
        return False
    return view.remembered is None or view.remembered.uid != view.uid


def claim_membership(view: JoinView) -> JoinView:
    """A Membership that no machine has taken, in a backup that is older than this host's taking it, is this host's."""
    if view.record is None or not is_nobodys(view.record):
        return view
    return _replace(view, record=_replace(view.record, machine_id=view.machine_id))


def take_membership(view: JoinView) -> JoinView:
    """As if the host had been a member of it in this boot, and had been proven dead: everything here has to go.

    Only a domain that is found speaks against the proof: nobody knows whether the machine has booted since.
    """
    view = claim_membership(view)
    assert view.record is not None
    return _replace(view, record=_replace(view.record, boot_id=view.boot_id), gate_closed=True)


def close_lost_membership(record: MemberRecord, remembered: RememberedMembership | None, host: str) -> MemberRecord:
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
