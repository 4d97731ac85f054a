"""BMCs of virtual hosts: honest, dead, lying, wavering, slow, wired to another host, or dead with theirs.

Each is a small computer of its own. An honest one answers as long as it has power and its network reaches it, and what
it switches is the machine that it is wired to, whichever that is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Literal, TypeVar

from outlive.base import NotFound, Random, Unavailable
from outlive.node.ports import PowerReading, PowerState
from outlive.resources import Hypervisor
from outlive.simulation.machines import Machine
from outlive.simulation.process import Process, go
from outlive.simulation.spec import BmcMode

T = TypeVar("T")
ANSWER_S: Final = (0.05, 0.3)
SLOW_S: Final = (6.0, 25.0)
OFF_S: Final = (0.3, 1.2)
"""From the acknowledged command to the power really going."""
SILENT_S: Final = 180.0
"""After so long without an answer the driver gives up by itself; callers have limits of their own."""


class Bmc:
    """The BMC of one host."""

    def __init__(
        self,
        machine: Machine,
        *,
        random: Random,
        mode: BmcMode | Literal["wired-to"] = "ok",
        answer_s: float | None = None,
    ) -> None:
        self.machine = machine
        """What it really switches."""
        self.owner = machine
        """The host whose controller it is meant to be."""
        self.mode: BmcMode | Literal["wired-to"] = mode
        self.answer_s = answer_s
        """How long it takes for each answer; ``None``: as its mode says."""
        self._random = random
        self.commands = 0
        """Power commands that it has received."""
        self._claims_off = False
        """What a lying one says."""
        self._said: dict[str, int] = {}
        """Who told a flapping one to switch off, and how often it has answered that one since."""

    @property
    def answers(self) -> bool:
        """Whether it is there at all."""
        return self.mode not in ("dead", "none") and not (self.mode == "with-host" and not self.owner.fed)

    async def wait_answer(self) -> None:
        """The time that it takes."""
        usual_s = self._random.uniform(*(SLOW_S if self.mode == "slow" else ANSWER_S))
        await asyncio.sleep(usual_s if self.answer_s is None else self.answer_s)

    def read(self, asker: str) -> PowerReading:
        """Its word."""
        on = self.machine.powered and not (self.mode == "lying" and self._claims_off)
        if self.mode == "flapping" and asker in self._said:
            on = on and self._said[asker] % 2 == 1
            self._said[asker] += 1
        state = PowerState.ON if on else PowerState.OFF
        return PowerReading(state=state, system_uuid=self.machine.system_uuid)

    def switch(self, on: bool, asker: str) -> None:
        """A command; a lying controller only says that it was carried out, and a flapping one only half the time."""
        self.commands += 1
        self._claims_off = not on
        if self.mode == "flapping" and not on:
            self._said[asker] = 0
            return
        if self.mode == "lying":
            return
        go(self._switch(on), name=f"bmc of {self.owner.name}")

    async def _switch(self, on: bool) -> None:
        await asyncio.sleep(self._random.uniform(*OFF_S))
        if on:
            self.machine.switch_on()
        else:
            self.machine.switch_off()


class PowerClient:
    """All BMCs, as one process reaches them: ``PowerPort``."""

    def __init__(self, process: Process, bmcs: dict[str, Bmc], reaches: Callable[[str], bool]) -> None:
        self._process = process
        self._bmcs = bmcs
        self._reaches = reaches
        """Whether the controller of that host is reached from here."""

    async def read(self, host: Hypervisor) -> PowerReading:
        """Identity and state."""
        return await self._call_bmc(host, lambda bmc: bmc.read(self._process.name))

    async def power_off(self, host: Hypervisor) -> None:
        """Switch off."""
        await self._call_bmc(host, lambda bmc: bmc.switch(False, self._process.name))

    async def power_on(self, host: Hypervisor) -> None:
        """Switch on."""
        await self._call_bmc(host, lambda bmc: bmc.switch(True, self._process.name))

    async def check(self, host: Hypervisor) -> str:
        """Nothing speaks against a command here."""
        return ""

    async def _call_bmc(self, host: Hypervisor, act: Callable[[Bmc], T]) -> T:
        """A command that arrived is carried out, also when nobody waits for the answer any more."""
        self._process.check()
        bmc = self._bmcs.get(host.name)
        if bmc is None or bmc.mode == "none":
            raise NotFound(f"{host.name} has no BMC", remedy="give it one in spec.fencing")
        if not bmc.answers or not self._reaches(host.name):
            await self._process.call(go(asyncio.sleep(SILENT_S), name=f"silence of the bmc of {host.name}"))
            raise Unavailable(f"the BMC of {host.name} does not answer", remedy="see its network")

        async def serve_call() -> T:
            await bmc.wait_answer()
            return act(bmc)

        try:
            async with asyncio.timeout(SILENT_S):
                return await self._process.call(go(serve_call(), name=f"bmc of {host.name}"))
        except TimeoutError:
            raise Unavailable(f"the BMC of {host.name} does not answer in time") from None
