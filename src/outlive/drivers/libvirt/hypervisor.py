"""The port: domains as their processes show them, made by libvirt and ended by force (``outlive.node.ports``)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shlex
import xml.etree.ElementTree as ET
from collections.abc import Awaitable, Callable, Container
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import libvirt
import msgspec

from outlive.base import BadInput, InUse, OutliveError, Refused, Unavailable, Unknown, deadline, get_logger, start_time
from outlive.drivers.libvirt.consoles import make_log
from outlive.drivers.libvirt.devices import Devices
from outlive.drivers.libvirt.disk_io import DiskWatch
from outlive.drivers.libvirt.migration import BROKEN, SPLIT, Moves, listen
from outlive.drivers.libvirt.places import check_paths
from outlive.drivers.libvirt.processes import GuestProcess, Processes, Scans, kill, receives
from outlive.drivers.libvirt.runs import POST_COPY, SOCKETS, DomainRun, Runs
from outlive.drivers.libvirt.service import LibvirtService, text_of
from outlive.drivers.libvirt.settings import LibvirtSettings
from outlive.drivers.libvirt.statistics import read
from outlive.drivers.libvirt.xml import METADATA, Start, domain_xml, find_screen
from outlive.guard import LIBVIRT
from outlive.node.ports import DiskIo, Domain, DomainState, MigrationProgress, MigrationSettings
from outlive.node.vm import GuestCounts
from outlive.resources import VirtualMachine, Vnc, parse

T = TypeVar("T")
VNC_PASSWORD: Final = 8
"""Characters that VNC has for a password."""
KILL_S: Final = 5.0
"""How long a killed process may take to end."""
FORGET_POLLS: Final = 250
"""Looks whether libvirt has forgotten a domain that was destroyed, …"""
FORGET_S: Final = 0.02
"""… and how long between two."""
START_DEVICES_S: Final = 2.0
"""How long a guest that has arrived waits for libvirt to start its network devices."""
STATUS_S: Final = 1.0
"""How long a QEMU may take to say what it is doing."""
ASKED_AT_ONCE: Final = 16
STATES: Final = {
    "running": DomainState.RUNNING,
    "inmigrate": DomainState.INCOMING,
    "postmigrate": DomainState.HANDED_OVER,
    "shutdown": DomainState.OFF,
    "guest-panicked": DomainState.OFF,
    "internal-error": DomainState.OFF,
}
"""What QEMU says, and what that is; anything else is paused."""
OF_DEFINITION: Final = frozenset(
    {libvirt.VIR_ERR_XML_ERROR, libvirt.VIR_ERR_XML_DETAIL, libvirt.VIR_ERR_XML_INVALID_SCHEMA}
)
"""Errors of libvirt that say that the definition itself is wrong, whatever the host has."""
IO_ERROR: Final = "io-error"
"""What QEMU says of a guest that it paused because a disk did not serve it."""
GUESTS_SERVICE: Final = "libvirt-guests.service"
"""Saves and starts domains at boots."""
BEGINNING: Final = (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP)
_log = get_logger("drivers.libvirt")


class Said(NamedTuple):
    """What a guest does, by its own QEMU where that was asked."""

    state: DomainState
    split: bool = False
    """Whether its memory is split between two hosts."""
    io_error: bool = False
    """Whether a disk that did not serve it paused it."""


class LibvirtHypervisor:
    """``HypervisorPort`` of the host that this process runs on. Create and use it on one event loop."""

    def __init__(
        self,
        settings: LibvirtSettings,
        screen_password: Callable[[str], Awaitable[str]] | None = None,
        monitors: Container[str] = (),
    ) -> None:
        """``screen_password``: that of the screens of a VM, by its name; ``OutliveError``. ``monitors``: those of Ceph
        that definitions may name."""
        self.settings = settings
        self.functions: Callable[[], tuple[str, ...]] = tuple
        """Devices of this host that guests may have beside ``hostDevices``: virtual functions that its daemon makes."""
        self._monitors = monitors
        self._screen_password = screen_password
        self.service = LibvirtService(settings.uri, threads=settings.threads, limit_s=float(settings.call_limit))
        self.runs = Runs(settings.folder, settings.user)
        self._scans = Scans(Processes(settings.slice, known=self.runs.list_processes()), float(settings.call_limit))
        self._creating: dict[str, asyncio.Task[None]] = {}
        self._me = (os.getpid(), start_time(os.getpid()))
        self.moves = Moves(self.runs, settings, self._me, self._start_devices)
        self._devices = Devices(self.service, settings, monitors)
        self._disks = DiskWatch(self.runs)

    # What is there

    async def list_domains(self) -> tuple[Domain, ...]:
        """See ``HypervisorPort``."""
        states = await self.service.ask(_read_states)
        runs = {run.vm: run for run in self.runs.list_runs()}
        processes = await self._list_processes()
        found = {one.vm: one for one in processes if not one.uuid}  # those that carry a mark
        missing = await self._may_appear([run for run in runs.values() if run.vm not in found])
        found |= {run.vm: later for run, later in missing if later is not None}
        limit = asyncio.Semaphore(ASKED_AT_ONCE)

        async def describe_process(process: GuestProcess) -> Domain:
            async with limit:
                return await self._describe_domain(process, runs.get(process.vm), states.get(process.vm, (0, 0)))

        listed = [await one for one in [asyncio.ensure_future(describe_process(process)) for process in found.values()]]
        listed += [_build_domain(run, Said(DomainState.STARTING)) for run, later in missing if later is None]
        for process in processes:
            if process.uuid:  # Outlive did not make it: it runs, for all that is known of it
                name, guarded, uuid = process.vm, process.guarded, process.uuid
                listed.append(
                    Domain(vm=name, run_id="", epoch=0, state=DomainState.RUNNING, guarded=guarded, uuid=uuid)
                )
        return tuple(sorted(listed, key=lambda domain: domain.vm))

    async def _list_processes(self, vm: str = "", run_id: str = "") -> list[GuestProcess]:
        """Processes of guests, or of that VM, or of that run. ``Unavailable`` where they cannot be read in time."""
        found = await self._scans.scan()
        return [one for one in found if vm in ("", one.vm) and run_id in ("", one.run_id) and not (vm and one.uuid)]

    async def _describe_domain(self, process: GuestProcess, run: DomainRun | None, state: tuple[int, int]) -> Domain:
        run = run if run is not None and run.run_id == process.run_id else None
        if run is not None:
            self.runs.note(run, process)
        beginning = run is not None and not self.runs.is_created(run) and (self._is_creating(run) or state == BEGINNING)
        moves = run is None or run.post_copy or self._waits(run) or self.runs.find_sending(run.vm) is not None
        if beginning:
            said = Said(DomainState.STARTING)
        elif state[0] == libvirt.VIR_DOMAIN_RUNNING and not moves:
            said = Said(DomainState.RUNNING)
        else:
            said = await self._ask_qemu(process, run)
        run = run or DomainRun(vm=process.vm, run_id=process.run_id, epoch=process.epoch, creator=0, creator_started="")
        return _build_domain(run, said, process.guarded)

    async def _ask_qemu(self, process: GuestProcess, run: DomainRun | None) -> Said:
        """What its QEMU says.

        One that says nothing is what it was last known to be: handed over from when its last part was let go, waiting
        until it was let go on, else running.
        """
        status, moved = "", dict[str, Any]()
        waits = run is not None and self._waits(run)
        with contextlib.suppress(OutliveError, OSError):
            if run is not None and run.incoming and self.runs.find_sending(run.vm) is None:
                self.moves.receive(run)
            if run is not None:
                await self.moves.call_off(run)
            status, moved = await self.moves.ask_qemu(process.vm, process.run_id, STATUS_S)
        state = STATES.get(status, DomainState.PAUSED)
        sending = self.runs.find_sending(run.vm) if run is not None else None
        if sending is not None and sending.last and state in (DomainState.PAUSED, DomainState.HANDED_OVER):
            if sending.last == POST_COPY and self.moves.is_lost(process.vm, moved):
                return Said(DomainState.OFF)
            split = sending.last == POST_COPY and (not moved or moved.get("status") in SPLIT)
            return Said(DomainState.HANDED_OVER, split)
        if waits and state is DomainState.PAUSED:
            return Said(DomainState.INCOMING)
        split = run is not None and run.post_copy and not waits and self._receives(run, process.pid, moved)
        return Said(state if status else DomainState.RUNNING, split, io_error=status == IO_ERROR)

    def _receives(self, run: DomainRun, pid: int, moved: dict[str, Any]) -> bool:
        """Whether parts of its memory are still to arrive; its silence is no sign of that."""
        split, phase = receives(pid), moved.get("status", "")
        if split is False or phase == "completed":
            with contextlib.suppress(OSError):  # it was destroyed meanwhile
                self.runs.change(run, post_copy=False)
        return phase in (*SPLIT, BROKEN) if split is None else split

    def _waits(self, run: DomainRun) -> bool:
        """Whether it waits for a guest, and was not let go on."""
        return run.incoming and self.runs.read_fate(run) != "resumed"

    def _is_creating(self, run: DomainRun) -> bool:
        """Whether the process that creates it is still about that."""
        if (run.creator, run.creator_started) == self._me:
            return run.vm in self._creating
        return start_time(run.creator) == run.creator_started

    async def _may_appear(self, runs: list[DomainRun]) -> list[tuple[DomainRun, GuestProcess | None]]:
        """Those that have a process by now, or may yet get one; of those that are over nothing is kept."""
        creating, never = [], []
        for run in [one for one in runs if not self.runs.is_created(one)]:
            if self._is_creating(run):
                creating.append(run)
            elif self.runs.close_gate(run):
                never.append(run)
        later = {(one.vm, one.run_id): one for one in await self._list_processes() if not one.uuid} if runs else {}
        there = [run for run in runs if run in creating or (run.vm, run.run_id) in later]
        for run in runs:
            waited = run.incoming and not self.runs.read_fate(run)  # it can be declined
            if run in never or (run not in there and not waited):
                self.runs.remove(run)
        return [(run, later.get((run.vm, run.run_id))) for run in there]

    async def _is_over(self, run: DomainRun) -> bool:
        """Whether it has no process and never gets one; not where that cannot be seen."""
        if self.runs.close_gate(run):
            return True
        try:
            return not await self._list_processes(run.vm, run.run_id)
        except Unavailable:
            return False

    # Beginning

    async def create(
        self, vm: VirtualMachine, *, run_id: str, epoch: int, incoming: MigrationSettings | None = None
    ) -> None:
        """See ``HypervisorPort``."""
        if problems := await self.list_problems():
            raise Refused(f"{vm.name} is not started: {problems[0]}", remedy="see the fault of its host")
        sockets = {name: self.runs.socket_path(vm.name, run_id, name) for name in SOCKETS}
        password = await self._read_screen_password(vm)
        start = Start(vm, run_id, epoch, incoming is not None, sockets, password)
        xml = domain_xml(start, self._settings_with_functions(), self._monitors)
        old = self.runs.find_run(vm.name)
        there = await self._list_processes(vm.name)
        if there or vm.name in self._creating or (old is not None and await self._may_appear([old])):
            raise InUse(f"a domain of {vm.name} is on this host already", remedy="destroy it first")
        if old is not None:
            self.runs.remove(old)
        await self._wait_free(vm.name)
        pid, started = self._me
        amounts = vm.spec.resources
        run = DomainRun(
            vm=vm.name,
            run_id=run_id,
            epoch=epoch,
            creator=pid,
            creator_started=started,
            incoming=incoming is not None,
            cpu_milli=amounts.cpu_milli,
            memory_bytes=amounts.memory_bytes,
        )
        self.runs.claim(run)
        work = asyncio.create_task(self._create(run, xml, incoming), name=f"create {vm.name}")
        self._creating[vm.name] = work
        work.add_done_callback(lambda _: self._creating.pop(vm.name, None))
        await _shield_task(work)

    async def _read_screen_password(self, vm: VirtualMachine) -> str:
        """Of its screens. Where it cannot be had the guest starts, and its screens stay closed until the next start."""
        if not vm.spec.console_secret:
            return ""
        why = "this host asks no server for it"
        if self._screen_password is not None:
            try:
                with deadline(float(self.settings.call_limit)):
                    password = await self._screen_password(vm.name)
                has_vnc = not vm.spec.definition or "vnc" in parse(vm.spec.definition).graphics
                if password and (len(password) <= VNC_PASSWORD or not has_vnc):
                    return password
                why = f"it is empty, or longer than the {VNC_PASSWORD} characters of VNC"
            except (OutliveError, TimeoutError) as error:
                why = str(error) or "no answer in time"
        _log.warning("domain.screen_locked", vm=vm.name, secret=vm.spec.console_secret, why=why)
        return secrets.token_urlsafe(6)

    async def _wait_free(self, vm: str) -> None:
        """Nobody has the name: libvirt takes a moment to see that a process has ended. ``InUse`` where somebody has."""
        for _ in range(FORGET_POLLS):
            if not await self.service.ask(lambda connection: _has_domain(connection, vm)):
                return
            await asyncio.sleep(FORGET_S)
        remedy = "end it (virsh destroy), or see why it does not end"
        raise InUse(f"libvirt has a domain {vm} that is not of this run", remedy=remedy)

    async def _create(self, run: DomainRun, xml: str, incoming: MigrationSettings | None) -> None:
        flags = libvirt.VIR_DOMAIN_START_PAUSED if incoming is not None else 0

        def begin(connection: libvirt.virConnect) -> tuple[Vnc | None, bool]:
            check_paths(run.vm, xml, self._settings_with_functions())  # here, since a disk may hang
            make_log(self.settings.console_folder, run.vm)
            if self.settings.partition:
                Path(self.settings.slice).mkdir(exist_ok=True)
            return _create_domain(connection, xml, flags)

        try:
            vnc, macvtap = await self.service.call(begin, float(self.settings.create_limit))
            if vnc is not None or macvtap:
                run = self.runs.change(run, vnc=vnc, macvtap=macvtap)
            if incoming is not None:
                listens = await listen(self.runs, run, self.settings, incoming)
                run = self.runs.change(run, listens=listens, post_copy=incoming.post_copy)
                self.moves.receive(run)
            self.runs.mark_created(run)
        except (Unavailable, Unknown):
            if not await self._is_over(run):
                raise Unknown(f"libvirt did not say whether {run.vm} started", remedy="look what is there") from None
            self.runs.remove(run)
            raise Unavailable(f"libvirt went away before it started {run.vm}", remedy="try again") from None
        except (libvirt.libvirtError, OSError, Refused) as error:
            if not await self._clear(run):
                raise Unknown(
                    f"{run.vm} may have started although libvirt failed", remedy="look what is there"
                ) from None
            why = text_of(error) if isinstance(error, libvirt.libvirtError) else str(error)
            if isinstance(error, libvirt.libvirtError) and error.get_error_code() in OF_DEFINITION:
                raise BadInput(f"{run.vm} does not start: {why}", remedy="correct its definition") from None
            raise Refused(f"{run.vm} does not start: {why}", remedy="see libvirt's log") from None
        _log.info("domain.created", vm=run.vm, run_id=run.run_id, epoch=run.epoch, incoming=run.incoming)

    def _settings_with_functions(self) -> LibvirtSettings:
        """The settings, with what guests may have of this host's cards."""
        allowed = (*self.settings.host_devices, *self.functions())
        return msgspec.structs.replace(self.settings, host_devices=allowed)

    async def _clear(self, run: DomainRun) -> bool:
        """Whether no process of a run that did not start is left."""
        with contextlib.suppress(Unavailable):
            for process in await self._list_processes(run.vm, run.run_id):
                await kill(process, KILL_S)
        over = await self._is_over(run)
        if over:
            self.runs.remove(run)
        return over

    # Ending

    async def destroy(self, vm: str, *, run_id: str = "", uuid: str = "") -> None:
        """See ``HypervisorPort``."""
        await self.service.ask(_read_version)
        if not uuid:
            await self._destroy(vm, run_id)
            return
        for process in [one for one in await self._scans.scan() if one.uuid == uuid]:
            if not await kill(process, KILL_S):
                raise Unavailable(f"{vm} ({uuid}) does not end: process {process.pid} hangs", remedy="reset the host")

    async def _destroy(self, vm: str, run_id: str = "") -> None:
        run = self.runs.find_run(vm)
        run = run if run is not None and run_id in ("", run.run_id) else None
        if run is not None:
            self.runs.close_gate(run)
        for process in await self._list_processes(vm, run_id):
            if not await kill(process, KILL_S):
                raise Unavailable(f"{vm} does not end: process {process.pid} hangs", remedy="reset the host")
        creating = self._creating.get(vm)
        if creating is not None and run is not None:
            await asyncio.wait([creating])
        await self._wait_forgotten(vm)
        if await self._list_processes(vm, run_id):
            raise Unavailable(f"{vm} is still there", remedy="try again")
        if run is not None:
            self.runs.remove(run)

    async def _wait_forgotten(self, vm: str) -> None:
        """libvirt has seen that the process has ended, so that the next start finds the name free."""
        for _ in range(FORGET_POLLS):
            if await self._list_processes(vm) or not await self.service.ask(
                lambda connection: _end_domain(connection, vm)
            ):
                return
            await asyncio.sleep(FORGET_S)

    async def decline(self, vm: str, run_id: str) -> None:
        """See ``HypervisorPort``. Who decides first what becomes of the run has decided it: this, or its resumption."""
        run = self.runs.find_run(vm)
        if run is None or run.run_id != run_id or not run.incoming or not self.runs.is_created(run):
            raise Refused(f"{vm} does not wait for a guest here", remedy="look at its state")
        if self.runs.decide(run, "declined") != "declined":
            raise Refused(f"{vm} has begun to run here", remedy="look at its state")
        await self._destroy(vm, run_id)

    async def shutdown(self, vm: str) -> None:
        """See ``HypervisorPort``."""

        def ask(connection: libvirt.virConnect) -> None:
            domain = connection.lookupByName(vm)
            try:
                domain.shutdown()
            except libvirt.libvirtError:
                if domain.isActive():  # else it has ended by itself, perhaps while it was asked
                    raise

        try:
            await self.service.ask(_read_version)
            await self.service.call(ask)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                raise Refused(f"{vm} was not asked to shut down: {text_of(error)}", remedy="destroy it") from None
            if await self._list_processes(vm):
                raise Refused(f"libvirt does not know of {vm}", remedy="destroy it") from None

    async def list_devices(self, vm: str, *, run_id: str) -> dict[str, str]:
        """See ``HypervisorPort``."""
        return await self._devices.list_disks(vm, run_id)

    async def disk_io(self) -> tuple[DiskIo, ...]:
        """See ``HypervisorPort``."""
        found = [one for one in await self._list_processes() if not one.uuid and self._is_undisturbed(one)]
        return await self._disks.read_disk_io(found, float(self.settings.call_limit))

    def _is_undisturbed(self, process: GuestProcess) -> bool:
        """Whether it neither waits for a guest, nor is being created or sent: those stand still for other reasons."""
        run = self.runs.find_run(process.vm)
        if run is None or run.run_id != process.run_id or not self.runs.is_created(run):
            return False
        return not self._waits(run) and self.runs.find_sending(run.vm) is None

    async def attach(self, vm: VirtualMachine, device: str, *, run_id: str) -> None:
        """See ``HypervisorPort``."""
        await self._devices.attach(vm, device, run_id)

    async def detach(self, vm: str, device: str, *, run_id: str) -> None:
        """See ``HypervisorPort``."""
        await self._devices.detach(vm, device, run_id)

    async def resume(self, vm: str, *, run_id: str) -> None:
        """See ``HypervisorPort``."""
        await self.service.ask(_read_version)
        run = self.runs.find_run(vm)
        there = await self._list_processes(vm, run_id)
        if not there or (run is not None and self._waits(run)):
            raise Refused(f"{vm} has no run {run_id} here that could be resumed", remedy="look at its state")
        said = await self._ask_qemu(there[0], run)
        if said.split or said.state not in (DomainState.PAUSED, DomainState.HANDED_OVER):
            why = "its memory is on two hosts" if said.split else f"it is {said.state}"
            raise Refused(f"{vm} cannot be resumed: {why}", remedy="look at its state")
        await self.moves.go_on(vm, run_id)

    # Moving

    async def _start_devices(self, vm: str) -> None:
        """Have libvirt let the guest run, and start its macvtap devices before: libvirt makes them down, as they would
        announce the guest's address here while it runs elsewhere. Without libvirt the guest runs, and is not heard."""
        try:
            await self.service.call(lambda connection: connection.lookupByName(vm).resume(), START_DEVICES_S)
        except (libvirt.libvirtError, OutliveError) as error:
            why = text_of(error) if isinstance(error, libvirt.libvirtError) else error.message
            _log.error("domain.devices_not_started", vm=vm, why=why)

    async def migrate(self, vm: str, target: str, *, listens: str, settings: MigrationSettings) -> None:
        """See ``HypervisorPort``."""
        await self.service.ask(_read_version)
        run = self.runs.find_run(vm)
        if run is None or self._waits(run) or not await self._list_processes(vm, run.run_id):
            raise Refused(f"{vm} does not run here", remedy="look at its state")
        if not listens:
            raise Refused(f"nothing listens for {vm} on {target}", remedy="see the daemon of the target")
        await _shield_task(asyncio.create_task(self.moves.send(run, listens, settings), name=f"migrate {vm}"))

    async def cancel(self, vm: str) -> None:
        """See ``HypervisorPort``."""
        self.moves.cancel(vm)

    async def read_progress(self, vm: str) -> MigrationProgress | None:
        """See ``HypervisorPort``."""
        move = self.moves.outgoing.get(vm)
        return move.progress if move is not None else None

    # The host

    async def read_statistics(self) -> tuple[GuestCounts, ...]:
        """What running guests use, by the names of their VMs. ``Unavailable`` where libvirt does not answer."""
        return await self.service.ask(read)

    async def list_problems(self) -> tuple[str, ...]:
        """See ``HypervisorPort``."""
        persistent = await self.service.ask(_list_autostarted)
        found = [f"libvirt starts domain {name} by itself: virsh autostart --disable {name}" for name in persistent]
        if starts_guests():
            found.append(f"{GUESTS_SERVICE} starts domains at boots: systemctl mask {GUESTS_SERVICE}")
        return tuple(found)

    # The service

    async def start_service(self) -> None:
        """See ``HypervisorPort``."""
        words = self.settings.start_service
        await self.service.start(shlex.split(LIBVIRT["--start-service"] if words == "libvirt" else words))


async def _shield_task(work: asyncio.Task[T]) -> T:
    """Its answer; the caller may give up, and the work goes on."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        work.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise


def _create_domain(connection: libvirt.virConnect, xml: str, flags: int) -> tuple[Vnc | None, bool]:
    """Create the domain; where its screen is, which stays so for as long as it runs, and whether it has macvtap."""
    domain = connection.createXML(xml, flags)
    has_macvtap = ET.fromstring(xml).find("devices/interface[@type='direct']") is not None  # noqa: S314 - the driver's
    with contextlib.suppress(libvirt.libvirtError, ET.ParseError):
        return find_screen(ET.fromstring(domain.XMLDesc(0))), has_macvtap  # noqa: S314 - libvirt's own
    return None, has_macvtap


def _read_states(connection: libvirt.virConnect) -> dict[str, tuple[int, int]]:
    """What libvirt says of each domain that it knows, by name: state and reason."""
    flags = libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_ACTIVE
    found = connection.getAllDomainStats(libvirt.VIR_DOMAIN_STATS_STATE, flags)
    return {domain.name(): (stats.get("state.state", 0), stats.get("state.reason", 0)) for domain, stats in found}


def starts_guests(root: str = "/") -> bool:
    """Whether systemd starts ``GUESTS_SERVICE`` at boots: it is enabled and not masked."""
    units = Path(root, "etc/systemd/system")
    masked = os.path.realpath(units / GUESTS_SERVICE) == "/dev/null"
    enabled = any(os.path.lexists(units / f"{one}.target.wants" / GUESTS_SERVICE) for one in ("multi-user", "default"))
    return Path(root, "run/systemd/system").is_dir() and enabled and not masked


def _list_autostarted(connection: libvirt.virConnect) -> list[str]:
    flags = libvirt.VIR_CONNECT_LIST_DOMAINS_AUTOSTART
    return sorted(domain.name() for domain in connection.listAllDomains(flags))


def _read_version(connection: libvirt.virConnect) -> int:
    return int(connection.getLibVersion())


def _has_domain(connection: libvirt.virConnect, vm: str) -> bool:
    """Whether libvirt has a domain of that name."""
    try:
        connection.lookupByName(vm)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return False
        raise
    return True


def _end_domain(connection: libvirt.virConnect, vm: str) -> bool:
    """Whether libvirt still knows of the domain, which is ended if so; one that Outlive did not make is left alone."""
    try:
        domain = connection.lookupByName(vm)
        domain.metadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, METADATA)
        domain.destroy()
    except libvirt.libvirtError as error:
        gone = (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_NO_DOMAIN_METADATA)
        return error.get_error_code() not in gone
    return True


def _build_domain(run: DomainRun, said: Said, guarded: bool = True) -> Domain:
    state = said.state
    return Domain(
        vm=run.vm,
        run_id=run.run_id,
        epoch=run.epoch,
        state=state,
        cpu_milli=run.cpu_milli,
        memory_bytes=run.memory_bytes,
        crashed=state is DomainState.OFF,
        guarded=guarded,
        listens=run.listens if state is DomainState.INCOMING else "",
        split=said.split,
        vnc=run.vnc,
        io_error=said.io_error,
    )
