"""The guard of one virtual host: the real judgement of ``outlive.guard.core``, acting on virtual hardware.

What the real process does with cgroups, a device file and a command, this one does with the hypervisor and the
watchdog of its host. It dies and is started again as every process; a new one knows nothing of the old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from outlive.base.errors import Unavailable
from outlive.guard import core
from outlive.guard.clocks import Instants
from outlive.guard.messages import name_of
from outlive.guard.states import Action, Arm, Disarm, Event, Looked, Phase, Refusal, ServiceStopped, State, Tick
from outlive.node.guard_client import GuardConnection
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
        changed: Callable[[State], None],
    ) -> None:
        """``changed``: called once it was armed, or disarmed."""
        self._machine = machine
        self._changed = changed
        self._hypervisor = hypervisor
        self._history = history
        self.process = process
        process.at_end = self._close
        self.state = State()
        self._context = process.part.context()
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
        due_s = core.wake_s(self.state, self._now())
        if due_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(due_s, 0.001), self._tick, context=self._context)

    def handle(self, event: Event) -> Refusal | None:
        """One request; the answer is a refusal or nothing."""
        if isinstance(event, Arm):
            refusal = core.arm_refusal(self.state, event, self._now())
            if refusal is None and self._machine.lacks and not self.state.armed:
                refusal = Refusal("refused", self._machine.lacks)
            if refusal is not None:
                return refusal
            self._machine.watchdog.start(event.watchdog_s)
        refusal = self._apply(event)
        self._wake()
        if refusal is None and isinstance(event, Arm | Disarm):
            self._changed(self.state)
        return refusal

    def _now(self) -> Instants:
        return self._machine.clock.instants()

    def _apply(self, event: Event) -> Refusal | None:
        self.state, refused = core.follow(self.state, event, self._now, self._act)
        return refused

    def _act(self, state: State, action: Action) -> Event | None:
        for event in narrate_guard(self._machine.name, action.value, state.timeout_s):
            self._history.record(event)
        match action:
            case Action.FEED:
                if core.may_feed(state, self._now()):
                    self._machine.watchdog.feed()
            case Action.KILL:
                return Looked(self._hypervisor.kill_all())
            case Action.LOOK:
                return Looked(self._hypervisor.left())
            case Action.STOP_SERVICE:
                self._hypervisor.stop_service()
                self._service_ends = go(self._stopped(), name=f"{self._machine.name}/stop", part=self.process.part)
            case Action.START_SERVICE:
                go(self._hypervisor.start_service(), name=f"{self._machine.name}/start", part=self._hypervisor.part)
            case Action.RELEASE:
                self._machine.watchdog.stop()
            case _:
                pass
        return None

    def _close(self) -> None:
        """The kernel feeds a watchdog whose process ends without having stopped it, once more."""
        if self.state.armed:
            self._machine.watchdog.feed()

    async def _stopped(self) -> None:
        await asyncio.sleep(SERVICE_STOP_S)
        if self.process.alive:
            self._apply(ServiceStopped(True))
            self._wake()


class GuardClient(GuardConnection):
    """The guard as the daemon of its host reaches it."""

    def __init__(self, guard: Callable[[], SimGuard | None], machine: Machine, process: Process) -> None:
        """``guard``: the one that answers now."""
        super().__init__()
        self._guard = guard
        self._machine = machine
        self._process = process

    def instants(self) -> Instants:
        """The host's clocks."""
        return self._machine.clock.instants()

    async def ask(self, event: Event | None) -> GuardReport | Refusal:
        """At once, or never."""
        await self._sent()
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

    async def _sent(self) -> None:
        self._process.check()
        await asyncio.sleep(0)
        self._process.check()
