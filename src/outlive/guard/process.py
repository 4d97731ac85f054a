"""The guard as a process: one loop that waits for messages and for the next moment that matters.

It reads the clock, asks the core, and carries out what the core says, in that order. Nothing in here judges, and
nothing in here waits: not for a client, not for the log, not for the command that stops the hypervisor service. An
error that nobody foresaw ends the process, and its end means that nobody feeds.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import signal
import socket
from collections.abc import Callable
from typing import Final

from outlive.guard import cgroups, core, messages, requirements
from outlive.guard.clients import Clients
from outlive.guard.clocks import START, Instants, max_elapsed, read_clocks
from outlive.guard.laboratory import LaboratoryWatchdog
from outlive.guard.messages import GuardRequest
from outlive.guard.options import GuardOptions
from outlive.guard.states import (
    YES,
    Arm,
    Event,
    GuardAction,
    GuardError,
    GuardRefusal,
    GuardState,
    Looked,
    ServiceStopped,
    Tick,
)
from outlive.guard.watchdog import Watchdog

STDERR: Final = 2
LINE_BYTES: Final = 2048
"""What a line is cut to; a pipe takes as much at once without waiting."""


class GuardLog:
    """The guard's log: events with fields on standard error, and never a wait for its reader.

    A log that is full or stalled must not keep the guard from feeding or killing. A line that cannot be written at once
    is dropped and counted, and the next one that gets through says how many are missing.
    """

    def __init__(self) -> None:
        self._dropped = 0
        self._ready = select.poll()
        self._ready.register(STDERR, select.POLLOUT)

    def write(self, event: str, **fields: object) -> None:
        """One event, as ``event=… name=value …``; text is quoted like JSON."""
        if self._dropped:
            fields["dropped_lines"] = self._dropped
        words = [f"event={event}", *(f"{name}={_format_value(value)}" for name, value in fields.items())]
        line = " ".join(words).encode("utf-8", "replace")[: LINE_BYTES - 1] + b"\n"
        self._dropped = 0 if self._write_line(line) else self._dropped + 1

    def _write_line(self, line: bytes) -> bool:
        try:
            if not any(flags & select.POLLOUT for _, flags in self._ready.poll(0)):
                return False
            return os.write(STDERR, line) == len(line)
        except OSError:
            return False


def _format_value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, bool | int):
        return str(value).lower()
    text = str(value)
    plain = text and all(char.isalnum() or char in "-_./:@" for char in text)
    return text if plain else json.dumps(text, ensure_ascii=True)


COMMAND_LIMIT_S: Final = 10.0
"""After which a command has failed."""

IGNORED_HERE: Final = (signal.SIGPIPE, signal.SIGHUP)
"""Signals that the guard ignores and a command must not."""


class Runner:
    """Runs one command; a later one replaces an earlier one."""

    def __init__(self) -> None:
        self._pid = 0
        self._started = START

    @property
    def busy(self) -> bool:
        """Whether a command runs."""
        return self._pid > 0

    def start(self, command: tuple[str, ...], now: Instants) -> bool:
        """Start it; ``False`` where it cannot be started."""
        self._kill()
        null = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        try:
            self._pid = os.posix_spawnp(
                command[0], command, os.environ, file_actions=[null], setpgroup=0, setsigdef=IGNORED_HERE
            )
        except OSError:
            return False
        self._started = now
        with contextlib.suppress(OSError), open(f"/proc/{self._pid}/oom_score_adj", "w") as file:  # noqa: PTH123
            file.write("0")
        return True

    def poll_result(self, now: Instants) -> bool | None:
        """Whether the command ended well; ``None`` while it runs or where none does."""
        if not self.busy:
            return None
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            self._pid = 0
            return os.waitstatus_to_exitcode(status) == 0
        if max_elapsed(self._started, now) < COMMAND_LIMIT_S:
            return None
        self._kill()
        return False

    def _kill(self) -> None:
        """End what runs. A child that cannot die yet is left to the kernel."""
        if self.busy:
            with contextlib.suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(self._pid, os.WNOHANG)
            self._pid = 0


CHILD_LOOK_S: Final = 0.02
"""Between two looks at a running command."""
LOOK_KEPT_S: Final = 1.0
"""How old the count of processes in a status may be."""
WORDS: Final[dict[GuardAction, tuple[str, dict[str, object]]]] = {
    GuardAction.CLOSE_GATE: ("guard.gate-closed", {"why": "no renewal was acknowledged for T: all VMs are killed"}),
    GuardAction.OPEN_GATE: ("guard.gate-opened", {}),
    GuardAction.WARN_LATE: ("guard.renewal-late", {"why": "no renewal was acknowledged for half of T"}),
    GuardAction.VERIFIED: ("guard.emptied", {"why": "nothing is left; the host may live on"}),
    GuardAction.RELAPSED: ("guard.not-empty-any-more", {"why": "a process appeared while the gate is shut"}),
    GuardAction.GIVE_UP: ("guard.gave-up", {"remedy": "none: the watchdog resets the host"}),
}
"""What the log says of actions."""


class Guard:
    """The state, and what it is connected to."""

    def __init__(self, options: GuardOptions, journal: GuardLog) -> None:
        self._options = options
        self._note = journal.write
        self._state = GuardState()
        self._watchdog: Watchdog | LaboratoryWatchdog = (
            LaboratoryWatchdog(options.laboratory)
            if options.laboratory
            else Watchdog(options.watchdog, rehearsal=options.rehearsal)
        )
        self._runner = Runner()
        self._stop = False
        self._seen: tuple[Instants, int] | None = None

    def run(self, listening: socket.socket) -> int:
        """Serve until asked to stop while unarmed; returns the exit code."""
        selector = selectors.DefaultSelector()
        clients = Clients(listening, selector, self._note)
        woken = self._woken_by_signals()
        selector.register(woken, selectors.EVENT_READ)
        behind = False
        while True:
            ready = [key.fd for key, _ in selector.select(self._patience_s(behind))]
            if woken.fileno() in ready:
                heard = woken.recv(64)
                self._stop = self._stop or signal.SIGTERM in heard or signal.SIGINT in heard
            behind = clients.serve(ready, self._handle)
            self._check_runner()
            self._apply(Tick())
            if self._stop and self._may_stop():
                clients.close()
                return YES

    # --- waiting

    def _patience_s(self, behind: bool) -> float | None:
        if behind:
            return 0.0
        due = core.wake_s(self._state, read_clocks())
        if self._runner.busy:
            return CHILD_LOOK_S if due is None else min(due, CHILD_LOOK_S)
        return due

    def _woken_by_signals(self) -> socket.socket:
        """TERM and INT become bytes on a socket that the loop waits on; a reader that went away is no end."""
        woken, waker = socket.socketpair()
        woken.setblocking(False)
        waker.setblocking(False)
        self._waker = waker
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        return woken

    def _may_stop(self) -> bool:
        """An armed guard goes on: its end would reset the host. The next signal asks again."""
        self._stop = False
        if not self._state.armed:
            self._note("guard.stopped")
            return True
        self._note(
            "guard.stop-refused",
            phase=self._state.phase,
            why="armed: its end resets the host within W",
            remedy="outlive disarm HOST, then stop it",
        )
        return False

    def _check_runner(self) -> None:
        well = self._runner.poll_result(read_clocks())
        if well is not None:
            self._note("guard.service-command-ended", well=well)
            self._apply(ServiceStopped(well))

    # --- requests

    def _handle(self, request: GuardRequest) -> bytes:
        event = request.event
        if event is None:
            return messages.encode_grant(request.id, self._build_status())
        refusal = self._arm(event) if isinstance(event, Arm) else self._apply(event)
        if refusal is not None:
            self._note("guard.refused", do=type(event).__name__, code=refusal.code, why=refusal.message)
            return messages.encode_refusal(request.id, *refusal)
        return messages.encode_grant(request.id)

    def _build_status(self) -> dict[str, object]:
        now = read_clocks()
        if self._seen is None or max_elapsed(self._seen[0], now) >= LOOK_KEPT_S:
            self._seen = (now, self._count_processes().left)
        feeding = self._watchdog.open and core.may_feed(self._state, now)
        said = messages.describe_state(
            self._state, now=now, feeding=feeding, processes=self._seen[1], hardware=self._watchdog.hardware
        )
        return {**said, "laboratory": bool(self._options.laboratory), "cgroup": self._options.cgroup}

    def _arm(self, event: Arm) -> GuardRefusal | None:
        """Armed only on request, and only with everything that it takes to keep the promise.

        A guard knows nothing of what the membership says: with times of its own, one that was started anew could wait
        longer than fencers count on. The daemon that asks knows what is published (``outlive.node.membership.guard``).
        """
        refusal = core.arm_refusal(self._state, event, read_clocks())
        if refusal is not None:
            return refusal
        try:
            if not self._state.armed:
                options = self._options
                requirements.check(
                    options.cgroup,
                    options.stop_service,
                    rehearsal=options.rehearsal,
                    laboratory=bool(options.laboratory),
                )
            identity = self._watchdog.start(event.watchdog_s)
        except GuardError as error:
            return GuardRefusal("refused", str(error))
        refusal = self._apply(event)
        if not self._state.armed:
            self._end_watchdog(self._watchdog.give_back)
            return refusal
        self._note(
            "guard.armed",
            timeout_s=event.timeout_s,
            watchdog_s=event.watchdog_s,
            watchdog=identity,
            epoch=self._state.epoch,
        )
        return refusal

    # --- judging and acting

    def _apply(self, event: Event) -> GuardRefusal | None:
        """Let the core judge an event and all that follows from it; returns its refusal."""
        self._state, refused = core.follow(self._state, event, read_clocks, self._act)
        return refused

    def _act(self, state: GuardState, action: GuardAction) -> Event | None:
        """Carry out one action; what it leads to, if that is known at once."""
        match action:
            case GuardAction.FEED:
                self._feed(state)
            case GuardAction.KILL:
                return Looked(cgroups.kill(self._options.cgroup, folders=self._options.rehearsal).left)
            case GuardAction.LOOK:
                return Looked(self._count_processes().left)
            case GuardAction.STOP_SERVICE:
                return self._stop_service()
            case GuardAction.START_SERVICE:
                if self._options.start_service and not self._runner.start(self._options.start_service, read_clocks()):
                    self._note("guard.start-service-failed", remedy="start the hypervisor service by hand")
            case GuardAction.RELEASE:
                if self._end_watchdog(self._watchdog.stop):
                    self._note("guard.disarmed")
            case _:
                self._log_action(state, action)
        return None

    def _count_processes(self) -> cgroups.Found:
        return cgroups.count_processes(self._options.cgroup, folders=self._options.rehearsal)

    def _feed(self, state: GuardState) -> None:
        """The clock is read again on both sides of the write: before, to be true; after, to say if it was not."""
        if not self._watchdog.open or not core.may_feed(state, read_clocks()):
            return
        try:
            self._watchdog.feed()
        except OSError as error:
            self._note("guard.feed-failed", why=error.strerror)
        if not core.may_feed(state, read_clocks()):
            self._note("guard.fed-late", why="the guard was not scheduled between judging and feeding")

    def _stop_service(self) -> Event | None:
        command = self._options.stop_service
        if not command:
            return ServiceStopped(True)
        return None if self._runner.start(command, read_clocks()) else ServiceStopped(False)

    def _end_watchdog(self, end: Callable[[], None]) -> bool:
        """Whether it took the order."""
        try:
            end()
        except OSError as error:
            self._note("guard.watchdog-not-stopped", why=error.strerror, remedy="the host will be reset: empty it now")
            return False
        return True

    def _log_action(self, state: GuardState, action: GuardAction) -> None:
        """What only the log needs to know."""
        now = read_clocks()
        event, more = WORDS.get(action, (f"guard.{action}", {}))
        if action is GuardAction.VERIFIED:
            more = {"took_s": max_elapsed(state.shut, now), **more}
        elif action is GuardAction.GIVE_UP:
            more = {"why": self._explain_loss(state), **more}
        age_s = max_elapsed(state.beat, now) if state.beat is not None else -1.0
        self._note(
            event, epoch=state.epoch, beat_age_s=age_s, timeout_s=state.timeout_s, phase=str(state.phase), **more
        )

    def _explain_loss(self, state: GuardState) -> str:
        found = self._count_processes()
        return (
            f"not empty after W: {found.processes} processes, {found.unreadable} unreadable groups, "
            f"{len(state.creates)} creates under way, service {state.service}"
        )
