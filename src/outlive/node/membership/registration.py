"""What follows a join: domains of earlier epochs are taken over into the new one or destroyed, and that is proven.

After J3 each local domain whose entry is still this host's is re-held in the new epoch, all others are destroyed, and
once nothing of the old epoch is left, the host proves it dead itself. After a restored backup each running domain is
registered again, whatever the store says, before the host says that it has joined under the store's new incarnation;
but for those that it was cut off from, which others may have been given in the time that the backup does not know.
Of one without a document it says so before that by the fault ``unknown-vm``, so that no host starts the name meanwhile.
Workers destroy nothing that they do not know until this is done.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.base import OutliveError, get_logger
from outlive.node.membership.holders import REHOLD, Me, ReholdView, is_mine
from outlive.node.membership.steps import SELF_CLEAN, CleanedView, explain_isolation
from outlive.node.ports import Domain, DomainState
from outlive.node.vm.context import VmContext
from outlive.resources import Holder, MemberRecord, ObjectRef, VirtualMachine, VirtualMachineStatus
from outlive.resources.reasons import FaultCode
from outlive.runtime import FaultSet

RETRY_S: Final = 1.0
"""The wait between two rounds."""
RENEWALS: Final = 2
"""So many are acknowledged after everything was taken over before the host says that nothing else is left."""
TAKEN_OVER: Final = frozenset({DomainState.RUNNING, DomainState.PAUSED, DomainState.INCOMING, DomainState.HANDED_OVER})

_replace = msgspec.structs.replace
_log = get_logger("node.membership")


class Registration:
    """See the module. ``needed``: whether there is something to do; ``register`` does it."""

    def __init__(self, node: VmContext) -> None:
        self._node = node
        self._whole_since: int | None = None
        """Number of the last renewal when everything here was seen to be taken over."""
        self._reported_in = ""
        """The store's incarnation in which domains that it does not know were last reported."""

    @property
    def needed(self) -> bool:
        """Whether something of an earlier epoch, or of an earlier incarnation of the store, may be left."""
        record = self._node.lease.record
        if record is None or not self._node.lease.held:
            return False
        return self._old_epoch(record) > 0 or self._is_unregistered(record)

    def _old_epoch(self, record: MemberRecord) -> int:
        """The latest earlier epoch that is not proven dead yet; 0: none."""
        return record.epoch - 1 if record.epoch - 1 > record.dead_through else 0

    def _is_unregistered(self, record: MemberRecord) -> bool:
        return self._node.desired.incarnation not in ("", record.incarnation)

    async def register(self) -> None:
        """Until nothing is left. Errors of the store are waited out; a lost membership ends it, to be begun again."""
        self._whole_since = None
        while self.needed:
            try:
                if await self._run_round():
                    break
            except OutliveError as error:
                _log.warning("membership.not_cleaned", host=self._node.host, error=str(error))
            await self._node.clock.sleep(RETRY_S)
            await self._node.desired.try_refresh()  # the store may go back once more, and nobody else looks meanwhile

    async def _run_round(self) -> bool:
        """One look at everything; whether nothing is left to do."""
        record, me = self._node.lease.record, self._node.lease.me
        assert record is not None
        entered = self._node.lease.entered
        incarnation = self._node.desired.incarnation
        paused = self._node.desired.cluster is not None and self._node.desired.cluster.paused
        register = (entered is not None and entered.restored) or (
            (paused or record.incarnation != "") and self._is_unregistered(record)
        )
        subject = ObjectRef(kind="Hypervisor", name=self._node.host)
        if self._is_unregistered(record) and await self._node.is_isolated(record.epoch):
            # others may have been given what it is isolated from, and a store that went back does not say so
            self._node.faults.activate(FaultCode.HOST_ISOLATED, subject, why=explain_isolation(self._node.host))
            return False
        self._node.faults.clear(FaultCode.HOST_ISOLATED, subject)
        await self._node.domains.start_and_refresh()
        left = sorted(self._node.domains.creating)
        for vm, domain in sorted(self._node.domains.by_vm.items()):
            if not await self._take_over(vm, domain, me, record, register=register):
                left.append(vm)
        if self._node.lease.me != me:
            return False
        old_epoch = self._old_epoch(record)
        if old_epoch and not left and not self._is_on_record():
            return False
        if left or (old_epoch and not await self._prove(old_epoch, tuple(left))):
            self._whole_since = None
            return False
        if self._node.lease.me != me:
            return False  # entered anew while that was written: what was found was found for another epoch
        if incarnation:
            self._node.lease.note_registered(incarnation)
            self._node.lease.renew_soon()
        return True

    def _is_on_record(self) -> bool:
        """Whether no backup of before all was taken over can have the membership as it is now.

        To say that nothing is left is a swap on it, and must fail if the store goes back behind what it rests on. The
        first renewal that is acknowledged may have been sent before that; the one after it was not.
        """
        now = self._node.lease.record
        if now is None or not self._node.domains.by_vm:
            return now is not None
        if self._whole_since is None:
            self._whole_since = now.seq
        if now.seq >= self._whole_since + RENEWALS:
            return True
        self._node.lease.renew_soon()
        return False

    async def _take_over(self, name: str, domain: Domain, me: Me, record: MemberRecord, *, register: bool) -> bool:
        """Whether the domain is settled: held in the present epoch, or gone."""
        if domain.state is DomainState.STARTING:
            return False  # it may yet run, and is looked at again
        stays, passed = domain.state in TAKEN_OVER, False
        refused = ""

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            nonlocal refused, passed
            refused, passed = "", self._node.lease.me != me or not self._is_here(name, domain.run_id)
            if passed:
                return None
            entry = _find_entry(now, me, domain.run_id)
            if entry is not None and is_mine(entry, me):
                return None
            old = entry.epoch if entry is not None else 0
            if not register and 0 < old <= record.dead_through:
                refused = "entry-still-mine"
                return None
            view = ReholdView(
                vm=name,
                me=me,
                old_epoch=old,
                holders=now.status.holders,
                run_id=domain.run_id,
                runs=stays,
                register=register,
            )
            outcome = self._node.decisions.use(REHOLD.decision, view, subject=name)
            refused = outcome.refused.precondition if outcome.refused is not None else ""
            if refused:
                return None
            self._whole_since = None
            return _replace(now.status, holders=outcome.holders)

        if register:  # what a restored store knows may be from before it first ran
            await self._node.guard_deletion(name)
        vm = await self._node.change(name, change)
        if passed:
            return False  # what this round began with: the run has gone, or the host has entered anew meanwhile
        if vm is None and (register or not self._node.was_read(name)):
            return await self._is_reported(name)
        if vm is not None and not refused:
            return True
        if refused == "membership-held":
            return False
        _log.warning(
            "membership.destroying", host=self._node.host, vm=name, run_id=domain.run_id, why=refused or "gone"
        )
        return await self._node.domains.destroy(name, run_id=domain.run_id)

    async def _is_reported(self, vm: str) -> bool:
        """Whether each host that is to start a VM of that name sees that one runs here: from the end of the pause on
        nothing else keeps it from that.

        A document that is there by now may be from before the report, and its host may have looked for reports before:
        then this host takes its run over instead.
        """
        if self._reported_in != self._node.desired.incarnation:
            self._reported_in = self._node.desired.incarnation
            self._node.faults.forget()
        report_unknown(self._node.faults, self._node.host, vm)
        if not self._node.faults.is_recorded(FaultCode.UNKNOWN_VM, ObjectRef(kind="VirtualMachine", name=vm)):
            return False
        return await self._node.unknown_run(vm) != "" and await self._node.read(vm) is None

    def _is_here(self, vm: str, run_id: str) -> bool:
        """Whether that run is here still: an entry that is written for one that has gone would say that it runs."""
        domain = self._node.domains.by_vm.get(vm)
        return domain is not None and domain.run_id == run_id

    async def _prove(self, old_epoch: int, left: tuple[str, ...]) -> bool:
        """Say that nothing of the old epoch is left; whether the store acknowledged it."""

        def change(record: MemberRecord) -> MemberRecord | None:
            if record.dead_through >= old_epoch:
                return None
            view = CleanedView(
                host=self._node.host,
                record=record,
                nonce=self._node.nonce,
                old_epoch=old_epoch,
                left=left + tuple(sorted(self._node.domains.creating)),
                fence=record.fence.id,
            )
            return self._node.decisions.use(SELF_CLEAN.decision, view, subject=self._node.host).record

        return await self._node.lease.write(change)


def report_unknown(faults: FaultSet, host: str, vm: str) -> None:
    """A domain runs on without a document of which anybody knows that it was deleted."""
    faults.activate(FaultCode.UNKNOWN_VM, ObjectRef(kind="VirtualMachine", name=vm), host=host)


def _find_entry(vm: VirtualMachine, me: Me, run_id: str) -> Holder | None:
    """This host's entry for that run, of whatever epoch."""
    found = (one for one in vm.status.holders if one.hypervisor == me.host and one.run_id == run_id)
    return next((one for one in found if one.member_uid == me.uid), None)
