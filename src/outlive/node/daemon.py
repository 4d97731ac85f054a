"""The node daemon: holds the membership of its host, keeps its virtual machines as they should be, and reports.

Parts are put together here and in ``outlive.roles.node``; each of them runs by itself and is notified of what the
others changed. The daemon joins before anything else and starts nothing while it does not hold its membership. When it
dies its virtual machines run on, and the next daemon takes them over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from outlive.base import AlreadyExists, Forbidden, NotFound, OutliveError, Random, Refused, get_logger
from outlive.node.drain import DrainController
from outlive.node.fencing.identity import board_problem
from outlive.node.functions.reconciler import FunctionReconciler
from outlive.node.health_monitor import HealthMonitor, PeerHealth
from outlive.node.membership.join import JoinResult
from outlive.node.membership.registration import Registration
from outlive.node.status import HostReporter
from outlive.node.storage_watch import StorageWatch
from outlive.node.vm.console import ConsoleWatcher
from outlive.node.vm.context import VmContext
from outlive.node.vm.reconciler import VmReconciler
from outlive.node.vm.start import end_former_creates
from outlive.resources import Hypervisor, ObjectRef, VirtualMachine
from outlive.resources.reasons import NAMED, FaultCode, Value, join_names
from outlive.runtime import OrderedTaskGroup, Periodic, fault_name, keep_running

RESTART_S: Final = 5.0
"""The wait before a part that failed is started again."""

_log = get_logger("node.store")


class Daemon:
    """See the module."""

    def __init__(
        self,
        shared: VmContext,
        random: Random,
        newcomer: Hypervisor | None = None,
        functions: FunctionReconciler | None = None,
    ) -> None:
        self.shared = shared
        self.functions = functions
        """``None``: no card of this host is touched."""
        self._newcomer = newcomer
        """As what this host registers itself if it never was a member; ``None``: an operator does it."""
        self.hurry = asyncio.Event()
        """Set when the end must not be waited for any longer."""
        self.registration = Registration(shared)
        self.health = HealthMonitor(shared)
        self.reporter = HostReporter(shared, self.health)
        self.workers = VmReconciler(shared, random=random)
        self.drainer = DrainController(shared, self.reporter, self.health)
        self.storage = StorageWatch(
            shared, self.health, PeerHealth(shared.store, shared.host, shared.clock), enqueue=self.workers.enqueue
        )
        self.consoles = ConsoleWatcher(shared, shared.consoles) if shared.consoles is not None else None
        self._swept: JoinResult | None = None
        """The join after which entries without a domain are, or were, looked for."""
        self._sweep_due_s: float | None = None
        """When that is due (monotonic)."""
        self._looked_in = ""
        """Incarnation of the store at the last look."""
        self._inspection = Periodic(self._inspect, lambda: float(shared.settings.look), clock=shared.clock, wakes=True)
        """Reads what is wanted of this host and lists its domains; woken when the next look cannot wait."""
        shared.faults.undetermined = self._find_undetermined
        shared.reported = self.reporter.notify
        shared.domains.on_change = self._domain_changed
        shared.domains.on_look = self.health.note_listing
        shared.lease.on_renewed = self.health.note_renewal
        shared.lease.on_entered = self._on_entered
        shared.lease.on_lost = self._on_lost

    def _domain_changed(self, vm: str) -> None:
        if vm in self.shared.domains.outside_slice():
            self.shared.lease.renew_soon()  # the membership is not to say any longer that the host is armed
        self.workers.enqueue(vm)
        self.reporter.notify()
        self.shared.functions.notify()

    def _on_entered(self) -> None:
        entered = self.shared.lease.entered
        if entered is not None and entered is not self._swept:
            if entered.row in ("J2", "J3"):
                self._sweep_due_s = self.shared.clock.monotonic()
            if entered.restored:  # what was read before was another store's
                self.shared.read_in.clear()
        self._swept = entered
        self.shared.cleaned = not self.registration.needed
        self._inspection.wake()
        self.workers.enqueue_all()
        self.reporter.notify()

    def _on_lost(self) -> None:
        self.shared.cleaned = False
        self._inspection.wake()
        self.reporter.notify()

    def _find_undetermined(self) -> list[str]:
        """Reports of domains that the store did not know, which no other host starts a second time: they do not end
        with the daemon that made them, but once the domain has gone or is held."""
        node = self.shared
        if not node.domains.looked:
            return [FaultCode.UNKNOWN_VM]
        held = {
            vm for vm in node.domains.by_vm if (seen := node.informer.get(vm)) is not None and node.find_entry(seen)
        }
        abouts = (ObjectRef(kind="VirtualMachine", name=vm) for vm in node.domains.by_vm.keys() - held)
        return [fault_name(FaultCode.UNKNOWN_VM, about) for about in abouts]

    async def enter(self) -> None:
        """Read what is wanted of this host and enter the membership, however long the store is away.

        ``Refused`` where this daemon must not run, ``Forbidden`` where its token is not of this host.
        """
        waits = ""
        while True:
            try:
                await self.shared.desired.refresh()
                break
            except Forbidden:
                raise
            except OutliveError as error:
                if str(error) != waits:
                    _log.warning("daemon.waits", host=self.shared.host, error=str(error))
                waits = str(error)
                if isinstance(error, NotFound):
                    if await self._register():
                        continue
                    self.shared.faults.activate(FaultCode.HOST_UNKNOWN, self._subject)
                    await self.shared.lease.report_forgotten()
            await self.shared.clock.sleep(float(self.shared.settings.look))
        self.shared.faults.clear(FaultCode.HOST_UNKNOWN, self._subject)
        await self.shared.lease.enter()

    async def _register(self) -> bool:
        """Put this host into the store for the first time; whether it is there now.

        A host that was a member is put back by nobody but an operator, who may have removed it.
        """
        if self._newcomer is None:
            return False
        try:
            if await self.shared.machine.read_remembered() is not None:
                return False
            await self.shared.store.create(self._newcomer)
        except AlreadyExists:
            return True
        except Forbidden as error:  # such as with another host's token: trying again changes nothing
            raise Refused(error.message, remedy=f"{self.shared.host} joins by itself: outlive node join") from None
        except (OutliveError, OSError) as error:
            _log.warning("daemon.not_registered", host=self.shared.host, error=str(error))
            return False
        _log.info("daemon.registered", host=self.shared.host)
        return True

    @property
    def _subject(self) -> ObjectRef:
        return ObjectRef(kind="Hypervisor", name=self.shared.host)

    def serve(self, group: OrderedTaskGroup) -> list[asyncio.Task[None]]:
        """Start all parts in the group."""
        tasks = [
            group.create_task(self.shared.lease.run(), name="membership"),
            group.create_task(self.shared.informer.run(), name="informer vms"),
        ]
        for name, part in (
            ("vms", self._work),
            ("reports", self.reporter.run),
            ("look", self._inspection.run),
            ("drain", self.drainer.run),
            ("storage", self.storage.run),
        ):
            tasks.append(group.create_task(self.keep(name, part), name=name))
        if self.functions is not None:
            tasks.append(group.create_task(self.keep("functions", self.functions.run), name="functions"))
        if self.consoles is not None:
            tasks.append(group.create_task(self.keep("consoles", self.consoles.run), name="consoles"))
        return tasks

    async def _work(self) -> None:
        await self.shared.informer.wait_synced()
        await self.workers.run()

    async def _inspect(self) -> None:
        await self.shared.desired.try_refresh()
        why = self.shared.desired.not_understood
        self._set_fault(FaultCode.VERSION_BEHIND, why != "", why=why)
        if self.shared.desired.incarnation != self._looked_in:
            if self._looked_in:  # a backup may hold entries that this host has withdrawn since
                self._sweep_due_s = self.shared.clock.monotonic()
            self._looked_in = self.shared.desired.incarnation
            self.shared.faults.forget()
            self.workers.enqueue_all()
        went_back = self.shared.lease.entered is not None and self.shared.lease.entered.unannounced
        self._set_fault(FaultCode.STORE_WENT_BACK, went_back and self.shared.desired.paused)
        await self.shared.lease.remember()
        if not self.shared.lease.held:
            return
        if self.registration.needed:
            self.shared.cleaned = False
            await self.registration.register()
            self.shared.cleaned = self.shared.lease.held
            if self.shared.cleaned:
                self.workers.enqueue_all()
                self.reporter.notify()
        if not await self._try_work("daemon.domains_not_listed", self.shared.domains.refresh()):
            # the guard may have stopped the hypervisor service, and this host holds its membership again
            try:
                await self.shared.domains.start_service()
            except OutliveError as error:
                _log.error("daemon.no_hypervisor", host=self.shared.host, error=str(error))
        outside = self.shared.domains.outside_slice()
        self._set_fault(FaultCode.GUESTS_OUTSIDE_SLICE, bool(outside), vms=join_names(outside))
        self._report_system()
        await self._try_work("daemon.foreign_domains_not_ended", self.shared.foreign.end())
        await self._try_work("daemon.hypervisor_not_checked", self._report_problems())
        creates = end_former_creates(self.shared.guard, self.shared.domains, self.shared.creates)
        await self._try_work("daemon.former_creates_not_ended", creates)
        due_s = self._sweep_due_s
        if due_s is not None and self.shared.clock.monotonic() >= due_s and self.shared.cleaned:
            self._sweep_due_s = None
            if not await self._try_work("daemon.not_swept", self._sweep()):
                self._sweep_due_s = self.shared.clock.monotonic()
        if await self.health.evaluate():
            self.reporter.figures_due()
            self.reporter.notify()
        self.drainer.notify()
        self.shared.functions.notify()
        await self.reporter.publish_figures()

    def _report_system(self) -> None:
        """Say whether operators recorded another system of this host than its firmware says."""
        fencing, record = self.shared.desired.spec.fencing, self.shared.lease.record
        why = board_problem(fencing.system_uuid, record.board) if record is not None else ""
        self._set_fault(FaultCode.SYSTEM_DIFFERS, why != "", why=why, address=fencing.address)

    async def _report_problems(self) -> None:
        """Say whether something besides this daemon starts domains here, so that nothing is started."""
        found = await self.shared.domains.list_problems()
        found += tuple(f"{one} is to be ended: virsh destroy {one}" for one in self.shared.foreign.others)
        strangers = self.shared.foreign.strangers
        self._set_fault(FaultCode.FOREIGN_DOMAINS, bool(strangers), domains=join_names(strangers))
        self._set_fault(FaultCode.HYPERVISOR_AUTOSTART, bool(found), why="; ".join(found[:NAMED]))

    def _set_fault(self, code: FaultCode, active: bool, **fields: Value) -> None:
        """Activate this fault of the host, or clear it."""
        if active:
            self.shared.faults.activate(code, self._subject, **fields)
        else:
            self.shared.faults.clear(code, self._subject)

    async def _try_work(self, event: str, work: Awaitable[object]) -> bool:
        """Whether it was done; if not, the next look tries it again."""
        try:
            await work
        except OutliveError as error:
            _log.warning(event, host=self.shared.host, error=str(error))
            return False
        return True

    async def _sweep(self) -> None:
        """Look for entries of this host, on virtual machines that it does not observe, whose domain is not here."""
        host, uid = self.shared.lease.me.host, self.shared.lease.me.uid
        found: list[str] = []
        token = ""
        while True:  # whole pages at a time: thousands of hosts look at thousands of them when a cluster starts
            page = await self.shared.store.list(VirtualMachine, token=token)
            mine = [(vm, one) for vm in page.items for one in vm.status.holders if one.hypervisor == host]
            found += [vm.name for vm, one in mine if one.member_uid == uid]
            if not page.token:
                break
            token = page.token
        for name in found:
            if name not in self.shared.domains.by_vm:
                self.workers.enqueue(name)

    async def keep(self, name: str, part: Callable[[], Awaitable[None]], *, longest_s: float = RESTART_S) -> None:
        """Run a part, and after a failure again; the pause before it doubles up to ``longest_s``."""
        shared = self.shared
        await keep_running(
            name,
            part,
            subject=self._subject,
            crashes=shared.faults.crashes,
            clock=shared.clock,
            pause_s=RESTART_S,
            longest_s=longest_s,
        )
