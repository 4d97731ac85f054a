"""Live moves, by QEMU's own migration in lock-step with ``outlive.node.migration``.

The source pauses right before the last of the state is sent and goes on only when this driver says so; it is called off
before that and never after. The end of the state is the last byte that is sent (``xml``), and nobody answers it: where
writing it fails, no target has the whole state, and QEMU lets the source run on; where it was written, the source stays
as it is until ``resume`` or ``destroy``. The target never runs by itself: its driver lets it go on once it has the
whole state, unless somebody decided before that it is to be declined (``runs.Runs.decide``).

Post-copy needs a way back, and QEMU would let a source run again whose way back ends, whatever the target has. So the
guest is stopped first (``_switch``): QEMU never starts what did not run when it began to hand over. One that is nearly
sent without that is called off, because the driver did not stop it. What was let go in post-copy never runs on here.

A daemon that is killed, or whose QEMU answers too late, leaves a source that waits before the last part: the next
daemon that looks calls that off. That the last part is let go is written down before it is (``runs.Sending``), so that
a QEMU that says nothing is taken for what it is. Post-copy of which nothing more arrives is over at its source
(``Pace``): QEMU would wait for as long as TCP does, with a monitor that may not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from outlive.base import OutliveError, Refused, Unavailable, Unknown, get_logger, start_time
from outlive.drivers.libvirt.qmp import Qmp
from outlive.drivers.libvirt.runs import PLAIN, POST_COPY, DomainRun, Runs, Sending
from outlive.drivers.libvirt.settings import LibvirtSettings
from outlive.node.ports import POST_COPY_STALL_S, MigrationProgress, MigrationSettings

LOOK_S: Final = 0.5
"""How often a move is looked at beside its events."""
LOOKS_S: Final = 15.0
"""Two looks at a guest are no further apart, unless nobody looked."""
MIB: Final = 1 << 20
UNLIMITED: Final = 1 << 50
"""Bytes a second."""
LISTEN_S: Final = 10.0
SWITCH_LOOK_S: Final = 0.05
"""… and while it is to be switched to post-copy."""
ARRIVED_LOOKS: Final = 400
ARRIVED_S: Final = 0.005
CALL_OFF_LOOKS: Final = 250
CALL_OFF_S: Final = 0.02
COUNTED_LOOKS: Final = 25
OVER: Final = frozenset({"completed", "failed", "cancelled"})
TLS: Final = "outlive-tls"
NO_ADDRESS: Final = "set libvirt.migrationAddress or host.addresses.cluster there"
NO_POST_COPY: Final = (
    "run sysctl vm.unprivileged_userfaultfd=1 there, "
    "or set spec.migrationPostCopy of the VM, or node.migrationPostCopy, to false"
)
FIRST_PASS: Final = 2
"""As QEMU counts them: all of the memory was sent once, and a second round has begun."""
STOPPED: Final = frozenset({"paused", "postmigrate"})
"""How a guest stands still that was stopped to be sent, and was not."""
BROKEN: Final = "postcopy-paused"
"""Post-copy whose connection has ended: nothing is left at its source that could run."""
SPLIT: Final = frozenset({"postcopy-active", "postcopy-recover"})
"""Post-copy is under way: parts of the memory are on either side."""
ESTABLISHED: Final = "01"
"""A state of connections, as Linux writes it."""
_log = get_logger("drivers.libvirt")


async def listen(runs: Runs, run: DomainRun, settings: LibvirtSettings, tuning: MigrationSettings) -> str:
    """Let a run wait for the state of a guest; where it listens. ``Refused`` where no address is set for that."""
    if not settings.migration_address:
        raise Refused("its host has no address to which guests are sent", remedy=NO_ADDRESS)
    qmp = await Qmp.open(runs.socket_path(run.vm, run.run_id, "qmp"))
    try:
        try:
            await _set_capabilities(qmp, tuning, {"late-block-activate": True, "postcopy-ram": tuning.post_copy})
        except Refused as error:
            if not tuning.post_copy:
                raise
            raise Refused(f"its host cannot receive by post-copy: {error.message}", remedy=NO_POST_COPY) from None
        if tuning.tls:
            await _set_tls(qmp, settings, "server")
        if tuning.multifd:
            await qmp("migrate-set-parameters", **{"multifd-channels": tuning.multifd})
        first, last = settings.migration_ports
        address = settings.migration_address
        address = f"[{address}]" if ":" in address else address
        await qmp("migrate-incoming", LISTEN_S, uri=f"tcp:{address}:{first},to={last}")
        port = (await qmp("query-migrate"))["socket-address"][0]["port"]
    finally:
        qmp.close()
    return f"{address}:{port}"


class Moves:
    """See the module."""

    def __init__(
        self,
        runs: Runs,
        settings: LibvirtSettings,
        me: tuple[int, str],
        start_devices: Callable[[str], Awaitable[None]],
    ) -> None:
        """``start_devices``: have libvirt start the network devices of a VM whose guest has arrived, by its name."""
        self.outgoing: dict[str, _Move] = {}
        """By VM, what this process sends."""
        self.last: MigrationProgress | None = None
        """How the last one was that succeeded."""
        self.post_copy_stall_s = POST_COPY_STALL_S
        self._runs = runs
        self._settings = settings
        self._me = me
        self._start_devices = start_devices
        self._receiving: dict[str, asyncio.Task[None]] = {}
        self._paces: dict[str, Pace] = {}
        """By VM, of what is sent, also if an earlier process began that."""

    # Asking

    async def ask_qemu(self, vm: str, run_id: str, limit_s: float) -> tuple[str, dict[str, Any]]:
        """What its QEMU is doing, and how far it is with what it sends or receives."""
        qmp = await Qmp.open(self._runs.socket_path(vm, run_id, "qmp"), limit_s)
        try:
            status = str((await qmp("query-status", limit_s))["status"])
            return status, dict(await qmp("query-migrate", limit_s))
        finally:
            qmp.close()

    def is_lost(self, vm: str, found: dict[str, Any]) -> bool:
        """Whether post-copy has ended before its end, or nothing more of it arrives; ``found``: empty where unknown."""
        status = found.get("status", "")
        late = self._stalled_s(vm, found) >= self.post_copy_stall_s
        return status == BROKEN or (late and (not found or status in SPLIT))

    def _stalled_s(self, vm: str, found: dict[str, Any]) -> float:
        """How long it has been no nearer to its end."""
        now_s = asyncio.get_running_loop().time()
        if vm not in self._paces:
            self._paces = {one: pace for one, pace in self._paces.items() if self._runs.find_sending(one) is not None}
            self._paces[vm] = Pace(now_s)
        return self._paces[vm].stalled_s(found, now_s)

    async def go_on(self, vm: str, run_id: str) -> None:
        """Let it run; ``Refused`` where its QEMU will not (its disks are open elsewhere)."""
        if self._runs.find_sending(vm) is not None:
            self._runs.mark_moving(vm, Sending(*self._me))  # it is not handed over any more
        qmp = await Qmp.open(self._runs.socket_path(vm, run_id, "qmp"))
        try:
            await qmp("cont")
            if not (await qmp("query-status"))["running"]:
                raise Unknown(f"{vm} was resumed and does not run", remedy="look at its state")
        finally:
            qmp.close()
        self._runs.unmark_moving(vm)

    def cancel(self, vm: str) -> None:
        """Call it off, unless the last part is being sent already; ``Refused`` where nothing is sent."""
        move = self.outgoing.get(vm)
        if move is None:
            raise Refused(f"{vm} is not being moved from here", remedy="look at its state")
        move.cancelled = True

    # Receiving

    def receive(self, run: DomainRun) -> None:
        """See to it that it runs once it has all of the guest, unless it is declined before."""
        key = f"{run.vm}/{run.run_id}"
        if key not in self._receiving:
            task = asyncio.create_task(self._receive(run), name=f"receive {run.vm}")
            self._receiving[key] = task
            task.add_done_callback(lambda _: self._receiving.pop(key, None))

    async def _receive(self, run: DomainRun) -> None:
        try:
            qmp = await Qmp.open(self._runs.socket_path(run.vm, run.run_id, "watch"), float("inf"))
        except (OutliveError, OSError):
            return
        try:
            while not await _has_arrived(qmp):
                await qmp.wait_event(LOOK_S)
            if self._runs.find_sending(run.vm) is not None or self._runs.decide(run, "resumed") != "resumed":
                return
            if run.macvtap:
                await self._start_devices(run.vm)
            await qmp("cont")  # again, if the process that decided it did not come to that
            self._runs.change(run, incoming=False)
            _log.info("domain.arrived", vm=run.vm, run_id=run.run_id)
        except (OutliveError, OSError) as error:
            _log.warning("domain.not_arrived", vm=run.vm, run_id=run.run_id, why=str(error))
        finally:
            qmp.close()

    # Sending

    async def send(self, run: DomainRun, listens: str, tuning: MigrationSettings) -> None:
        """Send it; ``Refused``: it runs on here. ``Unknown``: look."""
        if run.vm in self.outgoing:
            raise Refused(f"{run.vm} is being moved already", remedy="wait for its end, or call it off")
        move = self.outgoing[run.vm] = _Move()
        self._paces.pop(run.vm, None)
        try:
            qmp = await self._open_monitor(run)
            try:
                if (status := (await qmp("query-status"))["status"]) != "running":
                    raise Refused(f"{run.vm} is {status} and cannot be moved", remedy="look at its state")
                self._runs.mark_moving(run.vm, Sending(*self._me))
                await self._prepare(qmp, tuning)
                await qmp("migrate", uri=f"tcp:{listens}")
                await self.on_phase("precopy", run)
                try:
                    await self._follow(run, qmp, move, tuning, listens)
                except Refused:
                    if not move.sent:
                        await _run_on(qmp)
                    raise
            finally:
                qmp.close()
        except Refused:
            self._runs.unmark_moving(run.vm)
            raise
        finally:
            del self.outgoing[run.vm]

    async def _open_monitor(self, run: DomainRun) -> Qmp:
        try:
            return await Qmp.open(self._runs.socket_path(run.vm, run.run_id, "watch"))
        except Unavailable as error:
            raise Refused(f"{run.vm} cannot be moved: {error.message}", remedy="look at its state") from None

    async def _prepare(self, qmp: Qmp, tuning: MigrationSettings) -> None:
        # Without a way back the end of the state has no answer that could be lost (see the module).
        own = {"pause-before-switchover": True, "return-path": False, "auto-converge": tuning.auto_converge}
        await _set_capabilities(qmp, tuning, {**own, "postcopy-ram": tuning.post_copy})
        parameters: dict[str, Any] = {
            "downtime-limit": tuning.downtime_ms,
            "max-bandwidth": tuning.bandwidth_mib_s * MIB or UNLIMITED,
            "max-postcopy-bandwidth": tuning.bandwidth_mib_s * MIB,
            "tls-creds": "",
        }
        if tuning.multifd:
            parameters["multifd-channels"] = tuning.multifd
        if tuning.tls:
            await _set_tls(qmp, self._settings, "client")
            parameters.pop("tls-creds")
        await qmp("migrate-set-parameters", **parameters)

    async def _follow(self, run: DomainRun, qmp: Qmp, move: _Move, tuning: MigrationSettings, listens: str) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + tuning.time_limit_s if tuning.time_limit_s > 0 else float("inf")
        called_off = ""
        while True:
            found = await qmp("query-migrate")
            status = found.get("status", "")
            move.progress = _parse_progress(found)
            stands_s = self._stalled_s(run.vm, found)
            if status == "completed":
                self.last = move.progress = await _read_final_progress(qmp)
                _log.info("domain.sent", vm=run.vm, to=listens, **msgspec.structs.asdict(move.progress))
                return
            if status in OVER or (move.sent and tuning.post_copy and self.is_lost(run.vm, found)):
                why = called_off or found.get("error-desc") or "nothing more arrives"
                if move.sent and tuning.post_copy:
                    raise Unknown(f"{run.vm} was being handed over: {why}", remedy="look at both sides")
                raise Refused(f"{run.vm} was not moved: {why}", remedy="it runs on; see QEMU's log")
            if not move.sent and not called_off and (why := _cancel_reason(move, tuning, loop.time() > end, stands_s)):
                called_off = why
                await qmp("migrate_cancel")
            elif status == "cancelling":
                await _end_cancelling(qmp)
            elif status == "pre-switchover" and not called_off and not move.sent:
                called_off = await self._send_last_part(qmp, move, run, tuning, listens)
            elif tuning.post_copy and status == "active" and not called_off and not move.stopped:
                await self._switch(qmp, run, move, found)
            await qmp.wait_event(LOOK_S if move.stopped or not tuning.post_copy else SWITCH_LOOK_S)
            if _take_last_status(qmp) == "pre-switchover" and not called_off and not move.cancelled and not move.sent:
                # the guest stands still: without another question
                called_off = await self._send_last_part(qmp, move, run, tuning, listens)

    async def _switch(self, qmp: Qmp, run: DomainRun, move: _Move, found: dict[str, Any]) -> None:
        """Stop the guest and let the target run it on what is there, once all of its memory was sent a first time."""
        if found.get("ram", {}).get("dirty-sync-count", 0) < FIRST_PASS:
            return
        await qmp("stop")
        await self.on_phase("stopped", run)
        # One that QEMU had stopped before, to send what is left, has begun to be handed over while it ran.
        move.stopped = (await qmp("query-status"))["status"] == "paused"
        if move.stopped:
            with contextlib.suppress(Refused):  # it has failed meanwhile
                await qmp("migrate-start-postcopy")

    async def _send_last_part(
        self, qmp: Qmp, move: _Move, run: DomainRun, tuning: MigrationSettings, listens: str
    ) -> str:
        """Send the last part: from here on nothing is called off. Why it was called off instead; empty: it was not."""
        await self.on_phase("paused", run)
        why = ""
        if tuning.post_copy and not move.stopped:
            why = "it is nearly sent, and needs no post-copy"
        elif not has_connection(listens):
            why = "its target has ended the connection"  # what is sent last would be lost in buffers
        if why:
            await qmp("migrate_cancel")
            return why
        move.sent = True
        self._runs.mark_moving(run.vm, Sending(*self._me, POST_COPY if tuning.post_copy else PLAIN))
        await self.on_phase("let-go", run)
        try:
            await qmp("migrate-continue", state="pre-switchover")
        except Refused:
            move.sent = False  # it has failed meanwhile
            self._runs.mark_moving(run.vm, Sending(*self._me))
        return ""

    async def on_phase(self, phase: str, run: DomainRun) -> None:
        """Called once sending has begun, and the guest is stopped for post-copy, and before the last part is sent."""

    async def call_off(self, run: DomainRun) -> None:
        """A move that nobody follows any more: stop it, unless the last part is being sent or was."""
        sending = self._runs.find_sending(run.vm)
        if run.vm in self.outgoing or sending is None:
            return
        if sending[:2] != self._me and start_time(sending.pid) == sending.started:
            return
        # The monitor of the process that sent it: QEMU has done, or forgotten, all that was asked there before.
        qmp = await Qmp.open(self._runs.socket_path(run.vm, run.run_id, "watch"))
        try:
            for _ in range(CALL_OFF_LOOKS):
                status = (await qmp("query-migrate")).get("status", "none")
                if status in OVER or status == "none":
                    await self._is_over(qmp, run, status, sending.last)
                    break
                if status.startswith("postcopy"):
                    break
                if status in ("setup", "active", "pre-switchover"):
                    with contextlib.suppress(Refused):
                        await qmp("migrate_cancel")
                elif status == "cancelling":
                    await _end_cancelling(qmp)
                await asyncio.sleep(CALL_OFF_S)
        finally:
            qmp.close()

    async def _is_over(self, qmp: Qmp, run: DomainRun, status: str, last: str) -> None:
        """It runs on here where the last part was not sent. Of post-copy that failed nobody knows what has arrived."""
        if status == "cancelled" or (status == "failed" and not last):
            await _run_on(qmp)
        handed_over = status == "completed" or (status == "failed" and last == POST_COPY)
        if not handed_over or (await qmp("query-status"))["running"]:
            self._runs.unmark_moving(run.vm)


class Pace:
    """How long a transfer has been no nearer to its end.

    Nearer is what is sent in a pass over the memory that began with less than any before; the first one sends all of
    it, each later one what changed during the one before. Post-copy is one pass of its own. What counts is time during
    which it was looked at: a daemon that stood still itself knows nothing of it.
    """

    def __init__(self, now_s: float) -> None:
        self._pass: tuple[bool, int] = (False, -1)
        self._begins = self._left = math.inf
        self._since_s = self._looked_s = now_s

    def stalled_s(self, found: dict[str, Any], now_s: float) -> float:
        """Seconds, by QEMU's figures of now and of each call before; empty: it says nothing, which is no nearer."""
        self._since_s += max(0.0, now_s - self._looked_s - LOOKS_S)
        self._looked_s = now_s
        if not found:
            return now_s - self._since_s
        ram, split = found.get("ram", {}), found.get("status", "") in SPLIT
        remaining, now = ram.get("remaining", math.inf), (split, ram.get("dirty-sync-count", 0))
        if split and not self._pass[0]:
            self._begins = math.inf
        if now != self._pass and remaining < self._begins:
            self._begins, self._left = remaining, math.inf
        self._pass = now
        if remaining < self._left:
            self._left, self._since_s = remaining, now_s
        return now_s - self._since_s


class _Move:
    """One that this process sends."""

    def __init__(self) -> None:
        self.cancelled = False
        self.stopped = False
        """Whether the driver has stopped the guest, to send the rest by post-copy."""
        self.sent = False
        """Whether the last part was let go."""
        self.progress: MigrationProgress | None = None


def _cancel_reason(move: _Move, tuning: MigrationSettings, late: bool, stands_s: float) -> str:
    """Why it is to be called off; empty: it is not."""
    if move.cancelled:
        return "it was called off"
    if late:
        return f"not done within {tuning.time_limit_s:g} s"
    stalled = 0 < tuning.stall_limit_s <= stands_s
    return f"no nearer to its end for {tuning.stall_limit_s:g} s" if stalled else ""


async def _set_capabilities(qmp: Qmp, tuning: MigrationSettings, more: dict[str, bool]) -> None:
    # The port of a target that has ended may be another guest's by now: QEMU takes only the guest that it waits for.
    wanted = {"events": True, "validate-uuid": True, "multifd": tuning.multifd > 0, **more}
    states = [{"capability": name, "state": state} for name, state in wanted.items()]
    await qmp("migrate-set-capabilities", capabilities=states)


async def _set_tls(qmp: Qmp, settings: LibvirtSettings, endpoint: str) -> None:
    if not settings.migration_tls:
        why = "moves are to use TLS, and libvirt.migrationTls names no folder of certificates"
        raise Refused(why, remedy="set it on both hosts, or set spec.migrationTls of the VM to false")
    with contextlib.suppress(Refused):
        await qmp("object-del", id=TLS)
    arguments = {"qom-type": "tls-creds-x509", "id": TLS, "dir": settings.migration_tls, "endpoint": endpoint}
    await qmp("object-add", **arguments, **{"verify-peer": True})
    await qmp("migrate-set-parameters", **{"tls-creds": TLS})


async def _has_arrived(qmp: Qmp) -> bool:
    """Whether all is there that the guest needs to begin: its state, and at least a part of its memory in post-copy."""
    heard = _take_last_status(qmp)
    status = heard or (await qmp("query-migrate")).get("status")
    if status not in SPLIT:
        return status == "completed"
    for _ in range(ARRIVED_LOOKS):
        if (await qmp("query-status"))["status"] != "inmigrate":
            return True
        await asyncio.sleep(ARRIVED_S)  # the guest stands still
    return False


async def _end_cancelling(qmp: Qmp) -> None:
    """Let a move end that is being cancelled.

    QEMU (seen with 7.2) that is told to cancel just as it stops the guest for the last part misses it: it waits to be
    continued for ever, and the guest stands still. Continued while it is "cancelling", it sends nothing and ends.
    """
    with contextlib.suppress(Refused):  # it has ended meanwhile
        await qmp("migrate-continue", state="cancelling")


async def _run_on(qmp: Qmp) -> None:
    """Let a guest that was stopped for its move run on here, since the last part was not sent."""
    for _ in range(CALL_OFF_LOOKS):
        status = (await qmp("query-status"))["status"]
        if status != "finish-migrate":
            break
        await asyncio.sleep(CALL_OFF_S)
    if status in STOPPED:
        await qmp("cont")


def has_connection(listens: str) -> bool:
    """Whether a connection of this host to that address is whole, as its kernel knows: neither side has ended it."""
    address, _, port = listens.rpartition(":")
    try:
        words = ipaddress.ip_address(address.strip("[]")).packed
    except ValueError:
        return True  # a name: nobody here knows which address it was
    swapped = b"".join(words[at : at + 4][:: -1 if sys.byteorder == "little" else 1] for at in range(0, len(words), 4))
    wanted = f"{swapped.hex().upper()}:{int(port):04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                _, _, remote, state, *_ = line.split()
                if (remote, state) == (wanted, ESTABLISHED):
                    return True
    return False


async def _read_final_progress(qmp: Qmp) -> MigrationProgress:
    """What was sent; QEMU counts its downtime a moment after it has said that all is sent."""
    found = await qmp("query-migrate")
    for _ in range(COUNTED_LOOKS):
        if found.get("downtime"):
            break
        await asyncio.sleep(CALL_OFF_S)
        found = await qmp("query-migrate")
    return _parse_progress(found)


def _take_last_status(qmp: Qmp) -> str:
    """The last status of a migration among the events, which are taken; empty: there is none."""
    statuses = [one["data"]["status"] for one in qmp.events if one.get("event") == "MIGRATION"]
    qmp.events.clear()
    return statuses[-1] if statuses else ""


def _parse_progress(found: dict[str, Any]) -> MigrationProgress:
    ram = found.get("ram", {})
    return MigrationProgress(
        phase=str(found.get("status", "")),
        total_bytes=int(ram.get("total", 0)),
        sent_bytes=int(ram.get("transferred", 0)),
        remaining_bytes=int(ram.get("remaining", 0)),
        expected_downtime_ms=int(found.get("downtime", found.get("expected-downtime", 0))),
        took_ms=int(found.get("total-time", 0)),
    )
