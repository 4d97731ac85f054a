"""The guard of one virtual host: the real judgement of ``outlive.guard.core``, acting on virtual hardware.

What the real process does with cgroups, a device file and a command, this one does with the hypervisor and the
watchdog of its host. It dies and is started again as every process; a new one knows nothing of the old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from outlive.base import Unavailable
from outlive.guard import (
    Arm,
    Disarm,
    Event,
    GuardAction,
    GuardRefusal,
    GuardState,
    Instants,
    Looked,
    Phase,
    ServiceStopped,
    Tick,
    core,
    name_of,
)
from outlive.node import GuardConnection
from outlive.node.ports import GuardReport
from outlive.simulation.history import History
from outlive.simulation.hypervisors import SimHypervisor
from outlive.simulation.machines import Machine
from outlive.simulation.narration import narrate_guard
from outlive.simulation.process import Process, go

SERVICE_STOP_S: Final = 0.3
"""How long the command takes that stops the hypervisor service."""


class SimGuard:
    """One run of the guard."""

    def __init__(
        self,
        machine: Machine,
        hypervisor: SimHypervisor,
        process: Process,
        history: History,
        changed: Callable[[GuardState], None],
    ) -> None:
        """``changed``: called once it was armed, or disarmed."""
        self._machine = machine
        self._changed = changed
        self._hypervisor = hypervisor
        self._history = history
        self.process = process
        process.at_end = self._close
        self.state = GuardState()
        self._context = process.part.make_context()
        self._timer: asyncio.TimerHandle | None = None
        self._service_ends: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Judge at every moment that matters, until killed."""
        self._tick()
        await asyncio.get_running_loop().create_future()

    def _tick(self) -> None:
        self._timer = None
        if self.process.alive:
            self._apply(Tick())
            self._wake()

    def _wake(self) -> None:
        """Set the timer for the next moment; halted with the process, like all of it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = core.wake_s(self.state, self._read_clocks())
        if due_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(due_s, 0.001), self._tick, context=self._context)

    def handle(self, event: Event) -> GuardRefusal | None:
        """One request; the answer is a refusal or nothing."""
        if isinstance(event, Arm):
            refusal = core.arm_refusal(self.state, event, self._read_clocks())
            if refusal is None and self._machine.lacks and not self.state.armed:
                refusal = GuardRefusal("refused", self._machine.lacks)
            if refusal is not None:
                return refusal
            self._machine.watchdog.start(event.watchdog_s)
        refusal = self._apply(event)
        self._wake()
        if refusal is None and isinstance(event, Arm | Disarm):
            self._changed(self.state)
        return refusal

    def _read_clocks(self) -> Instants:
        return self._machine.clock.read_clocks()

    def _apply(self, event: Event) -> GuardRefusal | None:
        self.state, refused = core.follow(self.state, event, self._read_clocks, self._act)
        return refused

    def _act(self, state: GuardState, action: GuardAction) -> Event | None:
        for event in narrate_guard(self._machine.name, action.value, state.timeout_s):
            self._history.record(event)
        match action:
            case GuardAction.FEED:
                if core.may_feed(state, self._read_clocks()):
                    self._machine.watchdog.feed()
            case GuardAction.KILL:
                return Looked(self._hypervisor.kill_all())
            case GuardAction.LOOK:
                return Looked(self._hypervisor.count_guests())
            case GuardAction.STOP_SERVICE:
                self._hypervisor.stop_service()
                self._service_ends = go(self._finish_stop(), name=f"{self._machine.name}/stop", part=self.process.part)
            case GuardAction.START_SERVICE:
                go(self._hypervisor.start_service(), name=f"{self._machine.name}/start", part=self._hypervisor.part)
            case GuardAction.RELEASE:
                self._machine.watchdog.stop()
            case _:
                pass
        return None

    def _close(self) -> None:
        """The kernel feeds a watchdog whose process ends without having stopped it, once more."""
        if self.state.armed:
            self._machine.watchdog.feed()

    async def _finish_stop(self) -> None:
        await asyncio.sleep(SERVICE_STOP_S)
        if self.process.alive:
            self._apply(ServiceStopped(True))
            self._wake()


class SimGuardClient(GuardConnection):
    """The guard as the daemon of its host reaches it."""

    def __init__(self, guard: Callable[[], SimGuard | None], machine: Machine, process: Process) -> None:
        """``guard``: the one that answers now."""
        super().__init__()
        self._guard = guard
        self._machine = machine
        self._process = process

    def read_clocks(self) -> Instants:
        """The host's clocks."""
        return self._machine.clock.read_clocks()

    async def ask(self, event: Event | None) -> GuardReport | GuardRefusal:
        """At once, or never."""
        self._process.check()
        await asyncio.sleep(0)
        self._process.check()
        guard = self._guard()
        if guard is None:
            what = name_of(event)
            raise Unavailable(f"the guard of {self._machine.name} did not answer {what}", remedy="is it running?")
        refusal = guard.handle(event) if event is not None else None
        state = guard.state
        return refusal or GuardReport(
            armed=state.armed,
            timeout_s=state.timeout_s,
            watchdog_s=state.watchdog_s,
            gate_open=state.gate_open,
            misses=self._machine.misses,
            gave_up=state.phase is Phase.LOST,
            closed_epochs=state.closed_epochs,
            creates=tuple(create.run_id for create in state.creates),
        )
