"""The primary coordinator: one of the coordinators holds ``Election/primary``, and has duties while it does.

The role is a holder and a term. A coordinator that takes it starts its duties (phase ``takeover``); one that is asked
to hand it over stops them first (phase ``relinquish``), and only then gives the role back, marked for whom. Addresses
of the role stay with the leaver until the next holder has them, phase by phase (``node.handover``). Every step is one
compare-and-swap on the record, and each has a limit: of a leaver that stalls the role is taken over all the same, with
a Fault. A guard of its own sees to it that duties end where the role is lost, whatever the hand-over is doing; and a
process of its own takes the addresses away where the daemon cannot.

An election excludes nobody, so a duty must bear that for a moment another host has it as well
(docs/reference/runtime.md#primary-coordinator).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Final

import msgspec

from outlive.base import Clock, OutliveError, deadline, get_logger, set_within
from outlive.node.former_primary import FormerPrimary
from outlive.node.handover import (
    HANDOVER_STEP,
    LEAVER_S,
    PHASES,
    POLL_S,
    Duty,
    HandoverInput,
    PrimaryDuties,
    note_added,
    note_removed,
)
from outlive.node.primary_elector import ROLE, Next, PrimaryElector, answer_request
from outlive.node.role_addresses import RoleAddresses
from outlive.resources import (
    CLUSTER,
    AddressHandover,
    AddressPhase,
    Cluster,
    Election,
    ElectionRecord,
    Membership,
    ObjectRef,
    PrimaryRequest,
)
from outlive.resources.reasons import FaultCode
from outlive.runtime import FaultSet, OrderedTaskGroup, Periodic
from outlive.store import Store, compare_and_swap, read

LOOK_S: Final = 1.0
"""How often the primary looks for requests, and its guard at the role."""
FOLLOWS: Final = 4
"""In each of these looks so often at which addresses it has to have."""
SETTLE_S: Final = 2.0
"""From the last step of a hand-over until it counts as done."""
RESIGN_LOOK_S: Final = 0.1
GUARD_S: Final = 20.0
"""How long duties, and addresses in a hand-over, may outlast the role before the guard stops them."""
WATCH_S: Final = 0.25
"""How often it is looked whether this host may still have addresses."""
MARGIN_S: Final = 0.5
"""For so long the process that guards addresses lets the daemon act first."""
READ_S: Final = 1.0
LOOKS_OF_KERNEL: Final = 5
"""Looks after which the primary compares the addresses of the role with those that its kernel has."""
RETRY_S: Final = 0.2
"""From a step of a hand-over that the store did not take to the next try."""

replace_struct = msgspec.structs.replace
_log = get_logger("node.primary")


class Primary:
    """One coordinator's part in it; ``run`` until cancelled, which ends its duties."""

    def __init__(
        self,
        store: Store,
        host: str,
        duties: Sequence[Duty],
        *,
        elector: PrimaryElector,
        faults: FaultSet,
        clock: Clock,
        addresses: RoleAddresses | None = None,
    ) -> None:
        self.elector = elector
        self._addresses = addresses
        self._leaving = False
        """Whether the role was given back and the addresses are on their way to the next holder."""
        self._store = store
        self._host = host
        self._duties = PrimaryDuties(host, duties, faults)
        self._faults = faults
        self._clock = clock
        self._resigning = asyncio.Event()
        self._former = FormerPrimary(store, host, len(duties), faults=faults, clock=clock)

    @property
    def running(self) -> tuple[str, ...]:
        """Duties that were started and not stopped."""
        return self._duties.running

    @property
    def holds(self) -> bool:
        """Whether this host has the role, or still does some of its duties."""
        return self.elector.is_leader or bool(self.running) or self._leaving or self._has_addresses

    @property
    def _has_addresses(self) -> bool:
        return self._addresses is not None and bool(self._addresses.have)

    def withdraw(self) -> None:
        """Take the role no more: the daemon is about to stop."""
        self.elector.withdrawn = True

    async def resign(self) -> None:
        """Give the role up for good, if it is held, as a hand-over does; returns once no duty is done here."""
        self.withdraw()
        self._resigning.set()
        while self.holds:
            await self._clock.sleep(RESIGN_LOOK_S)

    async def run(self) -> None:
        """Be a candidate for the role, and do its duties; nobody is one whose guard does not run."""
        try:
            while self._addresses is not None:  # what a former run of this daemon has left here is another's by now
                try:
                    await self._addresses.prepare()
                    break
                except OutliveError as error:
                    _log.error("primary.addresses_not_prepared", host=self._host, error=str(error))
                    await self._clock.sleep(LOOK_S)
            async with OrderedTaskGroup() as group:
                group.create_task(self.elector.run(), name="primary election")
                group.create_task(self._work(), name="primary duties")
                group.create_task(self._guard(), name="primary guard")
                group.create_task(self._former.follow(), name="former primary")
                if self._addresses is not None:
                    group.create_task(self._watch_addresses(self._addresses), name="primary addresses")
        finally:
            await self._drop()
            await self._duties.stop()
            if self._addresses is not None:
                await self._addresses.close()
            await self.elector.release(handover=None)

    async def _work(self) -> None:
        await self._note_all_removed()
        while True:
            term = await self.elector.wait_leader()
            leading = asyncio.create_task(self._lead(term), name="primary leads")
            lost = asyncio.create_task(self.elector.wait_lost())
            try:
                await asyncio.wait((leading, lost), return_when=asyncio.FIRST_COMPLETED)
                given_up = leading.done()
            finally:
                for task in (leading, lost):
                    task.cancel()
                await asyncio.wait((leading, lost))
            if not leading.cancelled() and (error := leading.exception()) is not None:
                _log.error("primary.failed", host=self._host, error=str(error))
            if given_up:  # give the role back, and let the addresses go as the next holder takes them
                await self._duties.stop()
                handover = AddressHandover(leaver=self._host) if self._has_addresses else None
                self._leaving = handover is not None and self.elector.is_leader
                try:
                    if await self.elector.release(handover=handover) and self._addresses is not None:
                        await self._leave_addresses(self._addresses)
                finally:
                    self._leaving = False
                if not self.elector.is_leader:
                    await self._drop()
                await self._note_all_removed()
            else:
                await self._drop()
                await self._duties.stop()
            await self._clock.sleep(LOOK_S)

    # Leading

    async def _lead(self, term: int) -> None:
        """From taking the role until it was given back."""
        if self.elector.stalled:
            self._former.report(self.elector.stalled)
        _log.info("primary.takes_over", host=self._host, term=term)
        if self._addresses is not None and not await self._take_addresses(self._addresses, term):
            return
        for duty in self._duties.all:
            if not self._resigning.is_set():
                await self._duties.start(duty, term)
        await set_within(self._resigning, SETTLE_S)
        while not self._resigning.is_set() and not await self._mark(phase="", handover=None):
            await set_within(self._resigning, LOOK_S)
        _log.info("primary.holds", host=self._host, term=term, duties=self.running)
        for look in itertools.count(1):
            for _ in range(FOLLOWS):
                if not await set_within(self._resigning, LOOK_S / FOLLOWS):
                    await self._follow_addresses(term, restore=False)
            if look % LOOKS_OF_KERNEL == 0:
                await self._follow_addresses(term, restore=True)
            if self._resigning.is_set() or not self.elector.may_stand():
                await self._mark(phase="relinquish", to="")
                break
            wanted = await self._find_request()
            if wanted is None:
                continue
            request, step = wanted
            if not step.relinquish:
                await self._mark(answered=request.id)
            elif await self._mark(answered=request.id, phase="relinquish", to=step.to):
                break
        _log.info("primary.relinquishes", host=self._host, term=term)

    async def _take_addresses(self, addresses: RoleAddresses, term: int) -> bool:
        """Add them phase by phase, in lock-step with a leaver that still has them; false: the role is lost again."""
        addresses.allow()
        seen: AddressHandover | None = None
        since_s = looked_s = self._clock.monotonic()
        dead = False
        while True:
            try:
                await addresses.extend(self.elector.belief_left_s + MARGIN_S)  # before the first is added
                with deadline(READ_S):
                    record = (await self._store.get(Election, ROLE, fresh=True)).record
                if record.term != term or record.holder != self._host:
                    return False
                now_s = self._clock.monotonic()
                if record.handover != seen:
                    seen, since_s = record.handover, now_s
                given = HandoverInput(host=self._host, record=record, waited_s=now_s - since_s, leaver_dead=dead)
                step = HANDOVER_STEP.function(given)
                noted = True
                if await self._allow_addresses(addresses) and record.handover is not None and record.handover.added:
                    for phase in PHASES[: PHASES.index(record.handover.added) + 1]:  # the leaver may have none of them
                        await addresses.add(phase, lambda: self.elector.confirm(term))
                match step.do:
                    case "add":
                        await addresses.add(step.phase, lambda: self.elector.confirm(term))
                        self._report_addresses(addresses)
                        added = step.phase
                        noted = await self.elector.update(lambda record: {"handover": note_added(record, added)})  # noqa: B023
                    case "overtake" if record.handover is not None:
                        if not dead:
                            self._former.report(record.handover.leaver)
                        noted = await self.elector.mark(handover=replace_struct(record.handover, overtaken=True))
                    case "wait":
                        if record.handover is not None and now_s - looked_s >= LOOK_S:
                            looked_s, dead = now_s, await self._is_dead(record.handover.leaver)
                        await self._clock.sleep(POLL_S)
                    case _:
                        return True
                if not noted:
                    await self._clock.sleep(RETRY_S)
            except (OutliveError, TimeoutError) as error:
                _log.warning("primary.handover_waits", host=self._host, error=str(error) or "no answer in time")
                await self._clock.sleep(RETRY_S)

    async def _is_dead(self, leaver: str) -> bool:
        """Whether the leaver is proven dead: it has no address any more. Of one that is only condemned nobody knows
        that."""
        member = await read(self._store, Membership, leaver)
        return member is not None and member.record.dead_through >= member.record.epoch

    async def _allow_addresses(self, addresses: RoleAddresses) -> bool:
        """Let this host have addresses that it dropped while it was not fit for the role, which is its own still."""
        if addresses.is_allowed or not self.elector.is_leader or not self.elector.may_stand():
            return False
        await addresses.extend(self.elector.belief_left_s + MARGIN_S)
        addresses.allow()
        return True

    async def _follow_addresses(self, term: int, *, restore: bool) -> None:
        """Have the addresses as networks and the cluster say now; ``restore``: also those that the kernel has lost."""
        if self._addresses is None:
            return
        try:
            await self._allow_addresses(self._addresses)
            await self._addresses.follow(lambda: self.elector.confirm(term))
            if restore:
                await self._addresses.restore(lambda: self.elector.confirm(term))
        except (OutliveError, TimeoutError) as error:
            _log.warning("primary.addresses_not_followed", host=self._host, error=str(error) or "no answer in time")
        self._report_addresses(self._addresses)

    def _report_addresses(self, addresses: RoleAddresses) -> None:
        about = ObjectRef(kind="Hypervisor", name=self._host)
        if addresses.failures:
            what = min(addresses.failures)
            self._faults.activate(FaultCode.PRIMARY_ADDRESS, about, what=what, why=addresses.failures[what])
        else:
            self._faults.clear(FaultCode.PRIMARY_ADDRESS, about)

    # Leaving

    async def _leave_addresses(self, addresses: RoleAddresses) -> None:
        """Remove them phase by phase; returns once they are gone, or once this host has the role again.

        A leaver that cannot read how far the new holder is keeps them no longer than it would wait for that.
        """
        seen: object = None
        since_s = began_s = read_s = self._clock.monotonic()
        record = ElectionRecord(handover=AddressHandover(leaver=self._host))
        try:
            await addresses.extend(GUARD_S)
        except OutliveError as error:
            _log.warning("primary.guard_not_reached", host=self._host, error=str(error))
        while addresses.have and not self.elector.is_leader:
            try:
                with deadline(READ_S):
                    record = (await self._store.get(Election, ROLE, fresh=True)).record
            except (OutliveError, TimeoutError) as error:
                _log.warning("primary.handover_waits", host=self._host, error=str(error) or "no answer in time")
                await self._clock.sleep(RETRY_S)
            else:
                read_s = self._clock.monotonic()
            now_s = self._clock.monotonic()
            if now_s - began_s >= GUARD_S or now_s - read_s >= LEAVER_S:
                return
            if (record.holder, record.handover) != seen:
                seen, since_s = (record.holder, record.handover), now_s
            if record.holder == self._host:
                await self._clock.sleep(POLL_S)  # the elector has just taken the role again
                continue
            given = HandoverInput(
                host=self._host, record=record, waited_s=now_s - since_s, going=self._resigning.is_set()
            )
            step = HANDOVER_STEP.function(given)
            if step.do == "wait":
                await self._clock.sleep(POLL_S)
                continue
            if step.do == "done" or not step.phase:
                return
            if await addresses.remove(step.phase):
                await self._note_removed(step.phase)
            else:
                await self._clock.sleep(RETRY_S)

    async def _note_all_removed(self) -> None:
        """Note that this host has no address left, so that nobody waits for it, as soon as the store takes that."""
        while self._addresses is not None and not self._addresses.have and not self.elector.is_leader:
            if await self._note_removed(PHASES[-1]):
                return
            await self._clock.sleep(RETRY_S)

    async def _note_removed(self, phase: AddressPhase) -> bool:
        """Whether it is noted, or is of no interest to anybody."""

        def change(found: Election | None) -> Election | None:
            noted = note_removed(found.record, self._host, phase) if found is not None else None
            if found is None or noted is None:
                return None
            return replace_struct(found, record=replace_struct(found.record, handover=noted))

        try:
            with deadline(READ_S):
                await compare_and_swap(self._store, Election, ROLE, change, clock=self._clock)
        except (OutliveError, TimeoutError) as error:
            why = str(error) or "no answer in time"
            _log.warning("primary.not_noted", host=self._host, phase=phase, error=why)
            return False
        return True

    async def _drop(self) -> None:
        """Remove every address of the role at once."""
        if self._addresses is not None and self._addresses.have:
            _log.info("primary.drops_addresses", host=self._host, addresses=len(self._addresses.have))
            await self._addresses.remove_all()

    async def _watch_addresses(self, addresses: RoleAddresses) -> None:
        """Remove them as soon as this host must not have them, and have the guard do so if this task cannot."""

        async def check() -> None:
            try:
                if self._leaving:
                    pass  # what is left when the hand-over ends, or takes too long, is removed there
                elif self.elector.is_leader and self.elector.may_stand():
                    await addresses.extend(self.elector.belief_left_s + MARGIN_S)
                else:
                    await self._drop()
            except OutliveError as error:
                _log.error("primary.addresses_not_guarded", host=self._host, error=str(error))
                await self._drop()  # nobody would remove them if this daemon could not

        await Periodic(check, WATCH_S, clock=self._clock).run()

    # What else is needed

    async def _mark(self, **changes: object) -> bool:
        try:
            return await self.elector.mark(**changes)
        except (OutliveError, TimeoutError) as error:
            _log.warning("primary.not_marked", host=self._host, error=str(error) or "no answer in time")
            return False

    async def _find_request(self) -> tuple[PrimaryRequest, Next] | None:
        """The request that is to be answered, if there is one that this version knows of."""
        try:
            cluster = await read(self._store, Cluster, CLUSTER)
        except OutliveError as error:
            _log.warning("primary.not_read", host=self._host, error=str(error))
            return None
        record, request = self.elector.record, cluster.spec.primary if cluster is not None else None
        step = answer_request(self._host, record, request) if record is not None else None
        return (request, step) if request is not None and step is not None else None

    async def _guard(self) -> None:
        """Stop what outlasts the role, whatever else is going on."""
        since: float | None = None

        async def check() -> None:
            nonlocal since
            now = self._clock.monotonic()
            if self.elector.is_leader or not self.running:
                since = None
                return
            since = now if since is None else since
            if now - since >= GUARD_S:
                _log.error("primary.duties_outlast_role", host=self._host, duties=self.running)
                await self._duties.stop()

        await Periodic(check, LOOK_S, clock=self._clock, wait_first=True).run()
