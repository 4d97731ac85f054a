"""The clean end of a daemon: renewals go on until nearly the end, virtual machines run on, jobs may end.

Decision ``lifecycle.shutdown`` gives the order: keepalives go on through the steps that may take minutes, or a peer
fences a host that is only slow. By the shutdown policy ``migrate`` virtual machines leave a machine that goes down as
they leave a drained host, as far as others have room and the limit allows; it takes them back once it is up again. Only
a host that runs and holds nothing leaves its membership; any other stays held and
ages, so that it is fenced if nobody starts its daemon again in time. Where the machine itself goes down, guests are
asked to end before it ends them, if the settings say so. They stay held all the same: a machine that stays away longer
than its profile allows is fenced, and they are recovered elsewhere (``fencing.policy.absence_limit_s``).
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Coroutine
from typing import Final, Literal

import msgspec

from outlive.base import OutliveError, get_logger
from outlive.node.daemon import Daemon
from outlive.node.fencing.policy import Departure
from outlive.node.membership.steps import LEAVE, LeaveView
from outlive.node.primary import Primary
from outlive.node.vm.states import entries_of_host, own_entries
from outlive.node.vm.stop import ASK_AGAIN_S
from outlive.resources import Hypervisor, MemberRecord, VirtualMachine, VirtualMachineStatus
from outlive.runtime import Amount, Count, Decision, OrderedTaskGroup
from outlive.store import CALL_S, list_all

HURRY_S: Final = 10.0
"""What a step that may last still gets, once the end is not to be waited for."""
HANDOVER_LIMIT_S: Final = 120.0
"""How long the daemon waits until it has given up the role of primary."""


class ShutdownStep(enum.StrEnum):
    """A step, in the order in which they come."""

    STATE_SHUTDOWN = "state_shutdown"
    MIGRATE_VMS = "migrate_vms"
    WAIT_FLUSH = "wait_flush"
    STOP_CONSOLE = "stop_console"
    RELEASE_PRIMARY = "release_primary"
    STOP_KEEPALIVE = "stop_keepalive"
    FINAL_KEEPALIVE = "final_keepalive"
    STOP_NETSTATS = "stop_netstats"
    KILL_DHCP = "kill_dhcp"
    STATE_STOP = "state_stop"
    DISCONNECT = "disconnect"
    DRAIN_LOGS = "drain_logs"


class ShutdownInput(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon that is to stop."""

    flush_active: bool
    primary: bool
    node_count: Count
    reason: Literal["signal", "failure"]
    migrate: bool = False
    """Whether its machine goes down, and its VMs leave before, by its shutdown policy."""
    handover_seconds: Amount | None = None
    """How long the hand-over takes; null: it never ends."""


class ShutdownResult(msgspec.Struct, frozen=True, kw_only=True):
    """What it does, and how it ends."""

    steps: tuple[ShutdownStep, ...]
    exit_code: int
    handover: Literal["none", "done", "timeout"]


def shutdown(given: ShutdownInput) -> ShutdownResult:
    """All steps but those that have nothing to do."""
    releases = given.primary and given.node_count > 1
    skipped = {
        ShutdownStep.MIGRATE_VMS: not given.migrate,
        ShutdownStep.WAIT_FLUSH: not given.flush_active,
        ShutdownStep.RELEASE_PRIMARY: not releases,
    }
    handover: Literal["none", "done", "timeout"] = "none"
    if releases:
        in_time = given.handover_seconds is not None and given.handover_seconds <= HANDOVER_LIMIT_S
        handover = "done" if in_time else "timeout"
    return ShutdownResult(
        steps=tuple(step for step in ShutdownStep if not skipped.get(step, False)),
        exit_code=0 if given.reason == "signal" else 1,
        handover=handover,
    )


LASTS: Final = frozenset(
    {ShutdownStep.MIGRATE_VMS, ShutdownStep.WAIT_FLUSH, ShutdownStep.RELEASE_PRIMARY, ShutdownStep.STOP_KEEPALIVE}
)
"""Steps that may take minutes."""
JOBS_S: Final = 20.0
"""How long jobs of virtual machines get to end."""
WRITE_S: Final = 10.0
"""How long the last writes get."""
GUESTS_S: Final = 1.0
"""How often it is looked whether guests that were asked to end have ended."""
ASKED_AT_ONCE: Final = 8
"""Guests that are asked to end at the same time."""
LISTED: Final = 5
"""Names of virtual machines that a message lists."""

LIFECYCLE_SHUTDOWN: Final = Decision(
    "lifecycle.shutdown", shutdown, ShutdownInput, ShutdownResult, "In which order a daemon stops"
)
_replace = msgspec.structs.replace
_log = get_logger("node.stopping")


def explain_refusal(daemon: Daemon, *, leave_vms: bool, going_down: bool) -> str:
    """Why the daemon must not stop now; empty if it may."""
    left = daemon.shared.domains.list_names()
    if leave_vms or going_down or not left:
        return ""
    named = ", ".join(left[:LISTED])
    return f"{len(left)} virtual machines run on {daemon.shared.host} ({named}): drain it first, or leave them"


async def stop(daemon: Daemon, *, going_down: bool, primary: Primary | None = None) -> None:
    """Everything up to the moment at which the parts are cancelled; ``primary``: its part in that role."""
    migrate = going_down and daemon.shared.desired.shutdown_policy == "migrate" and not daemon.shared.frozen
    if primary is not None:
        primary.withdraw()
    holds, flushes, coordinators = primary is not None and primary.holds, daemon.drainer.active or migrate, 1
    if holds:
        try:
            async with asyncio.timeout(WRITE_S):
                hosts = [host async for host in list_all(daemon.shared.store, Hypervisor)]
            coordinators = sum(host.spec.mode == "coordinator" for host in hosts)
        except (OutliveError, TimeoutError):
            coordinators = 2  # where the store does not say, others than this one may have the role
    given = ShutdownInput(
        flush_active=flushes,
        primary=holds,
        node_count=coordinators,
        reason="signal",
        migrate=migrate,
    )
    result = daemon.shared.decisions.use(LIFECYCLE_SHUTDOWN, given, subject=daemon.shared.host)
    daemon.reporter.departure = Departure.MACHINE if going_down else Departure.DAEMON
    for step in result.steps:
        _log.info("daemon.stopping", host=daemon.shared.host, step=step.value)
        releases = step is ShutdownStep.RELEASE_PRIMARY
        work = resign(primary, HANDOVER_LIMIT_S) if releases else _take(daemon, step, going_down)
        try:
            if step not in LASTS:
                await work
            elif not await _finish_unless_hurried(daemon, work):
                _log.warning("daemon.stop_step_left", host=daemon.shared.host, step=step.value)
        except (OutliveError, TimeoutError) as error:
            _log.warning("daemon.stop_step_failed", step=step.value, error=str(error))


async def resign(primary: Primary | None, limit_s: float) -> None:
    """Give the role of the primary up, if this host has it; what is not given up in time is taken from it."""
    try:
        async with asyncio.timeout(limit_s):
            if primary is not None:
                await primary.resign()
    except TimeoutError:
        _log.warning("daemon.still_primary", limit_s=limit_s)


async def _finish_unless_hurried(daemon: Daemon, work: Coroutine[None, None, None]) -> bool:
    """Whether the work was done; once the end is not to be waited for, it has ``HURRY_S`` left."""
    task, asked = asyncio.ensure_future(work), asyncio.ensure_future(daemon.hurry.wait())
    try:
        await asyncio.wait((task, asked), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await asyncio.wait((task,), timeout=HURRY_S)
        if not task.done():
            return False
        await task
        return True
    finally:
        asked.cancel()
        task.cancel()


async def _take(daemon: Daemon, step: ShutdownStep, going_down: bool) -> None:
    match step:
        case ShutdownStep.STATE_SHUTDOWN:
            daemon.reporter.stopping = "the daemon stops"
            async with asyncio.timeout(WRITE_S):
                await daemon.reporter.report()
        case ShutdownStep.MIGRATE_VMS:
            await daemon.drainer.vacate(float(daemon.shared.settings.shutdown_limit))
            await _let_go(daemon)
        case ShutdownStep.WAIT_FLUSH:
            await daemon.drainer.stop()
        case ShutdownStep.STOP_CONSOLE if daemon.consoles is not None:
            async with asyncio.timeout(WRITE_S):
                await daemon.consoles.inspect(last=True)
        case ShutdownStep.STOP_KEEPALIVE:
            await close(daemon)
            if going_down and daemon.shared.settings.going_down == "shutdown":
                await _shut_guests(daemon)
        case ShutdownStep.FINAL_KEEPALIVE:
            async with asyncio.timeout(WRITE_S):
                await _leave(daemon)
        case ShutdownStep.STATE_STOP:
            left = daemon.shared.domains.list_names()
            if left:
                daemon.reporter.stopping = f"the daemon stopped; unsupervised: {', '.join(left)}"
            else:
                daemon.reporter.stopping = "the daemon stopped"
            async with asyncio.timeout(WRITE_S):
                await daemon.reporter.report()
        case _:
            return


async def close(daemon: Daemon) -> None:
    """No new work; what is being done may end."""
    daemon.workers.close()
    deadline_s = daemon.shared.clock.monotonic() + JOBS_S
    while daemon.workers.busy and daemon.shared.clock.monotonic() < deadline_s:
        await daemon.shared.clock.sleep(0.1)


async def _shut_guests(daemon: Daemon) -> None:
    """Ask all guests to end, again from time to time, and wait for them; renewals go on meanwhile.

    Those that do not end, the machine will.

    Of each that has ended its document says so at once: others may start after it.
    """
    domains, clock = daemon.shared.domains, daemon.shared.clock
    deadline_s = clock.monotonic() + float(daemon.shared.settings.shutdown_limit)
    ask_s = clock.monotonic()
    asking: asyncio.Task[None] | None = None
    await _refresh_domains(daemon)
    running = [domain.vm for domain in domains.list_present()]
    try:
        while (domains.list_present() or domains.split()) and clock.monotonic() < deadline_s:
            if clock.monotonic() >= ask_s and (asking is None or asking.done()):
                ask_s = clock.monotonic() + ASK_AGAIN_S
                asking = asyncio.create_task(_ask_guests(daemon), name="ask guests to end")
            await clock.sleep(GUESTS_S)
            await _refresh_domains(daemon)
            running = await _list_unfinished_runs(daemon, running)
    finally:
        if asking is not None:
            asking.cancel()
    left = [domain.vm for domain in domains.list_present()]
    if left:
        _log.warning("daemon.guests_left", host=daemon.shared.host, left=left[:LISTED], count=len(left))


async def _refresh_domains(daemon: Daemon) -> None:
    """Take a new picture; without an answer the last one counts, and guests are asked and waited for all the same."""
    try:
        await daemon.shared.domains.refresh()
    except OutliveError as error:
        _log.warning("daemon.domains_not_listed", host=daemon.shared.host, error=str(error))


async def _ask_guests(daemon: Daemon) -> None:
    """All that run now, a few at a time: one that nobody can ask does not delay the others."""
    turn = asyncio.Semaphore(ASKED_AT_ONCE)

    async def ask(vm: str) -> None:
        async with turn:
            try:
                async with asyncio.timeout(WRITE_S):
                    await daemon.shared.domains.hypervisor.shutdown(vm)
            except (OutliveError, TimeoutError) as error:
                _log.warning("vm.shutdown_not_asked", vm=vm, error=str(error) or "no answer in time")

    async with OrderedTaskGroup() as group:
        for domain in daemon.shared.domains.list_present():
            group.create_task(ask(domain.vm))


async def _list_unfinished_runs(daemon: Daemon, running: list[str]) -> list[str]:
    """Those that are here, and those whose document does not say yet that they have ended."""
    here, me = {domain.vm for domain in daemon.shared.domains.list_present()}, daemon.shared.lease.me

    def change(now: VirtualMachine) -> VirtualMachineStatus | None:
        ours = own_entries(now, me)
        if not any(one.seen for one in ours):
            return None
        holders = tuple(_replace(one, seen="", vnc=None) if one in ours else one for one in now.status.holders)
        return _replace(now.status, holders=holders)

    left: list[str] = []
    for number, vm in enumerate(running):
        if vm not in here:
            try:
                async with asyncio.timeout(CALL_S):
                    await daemon.shared.change(vm, change)
            except (OutliveError, TimeoutError) as error:
                _log.warning("vm.end_not_reported", vm=vm, host=me.host, error=str(error) or "no answer in time")
                return [*left, *running[number:]]  # a store that is away must not keep the machine up
            continue
        left.append(vm)
    return left


async def _let_go(daemon: Daemon) -> None:
    """Wait until nothing is left here of virtual machines that have moved away, so that the host can leave as well."""
    deadline_s = daemon.shared.clock.monotonic() + JOBS_S
    while daemon.shared.clock.monotonic() < deadline_s:
        if all(vm.host == daemon.shared.host for vm in await _list_held(daemon)):
            return
        await daemon.shared.clock.sleep(GUESTS_S)


async def _list_held(daemon: Daemon) -> list[VirtualMachine]:
    """Virtual machines on which this host has an entry."""
    me = daemon.shared.lease.me
    return [vm async for vm in list_all(daemon.shared.store, VirtualMachine) if entries_of_host(vm, me)]


async def _leave(daemon: Daemon) -> None:
    """Out of the membership, if nothing is held; else a last renewal."""
    await daemon.shared.domains.refresh()
    me = daemon.shared.lease.me
    holds = [vm.name for vm in await _list_held(daemon)]

    def change(record: MemberRecord) -> MemberRecord | None:
        view = LeaveView(
            host=me.host,
            record=record,
            nonce=daemon.shared.nonce,
            domains=daemon.shared.domains.list_names(),
            holds=tuple(holds),
            under_way=len(daemon.shared.domains.creating) + daemon.workers.busy,
            incarnation=daemon.shared.desired.incarnation,
        )
        return daemon.shared.decisions.use(LEAVE.decision, view, subject=me.host).record

    left = await daemon.shared.lease.leave(change)
    _log.info("daemon.left" if left else "daemon.stays_member", host=me.host, holds=len(holds))
