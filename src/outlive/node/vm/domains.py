"""The domains of this host as the hypervisor listed them last, and creates that are under way.

Everybody in the daemon shares one picture. A listing that was asked for earlier never replaces one that was asked for
later, so after ``look`` returns, the picture is not older than that call. Between two looks a domain may end by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from outlive.base.clock import Clock
from outlive.base.deadline import deadline
from outlive.base.errors import OutliveError, Unavailable, Unknown
from outlive.base.logging import get_logger
from outlive.node.ports import Domain, DomainState, HypervisorPort

PRESENT: Final = frozenset({DomainState.RUNNING, DomainState.PAUSED})
"""States in which a domain is a virtual machine of this host, and not one on its way in or out."""
_log = get_logger("node.domains")


class LocalDomains:
    """See the module."""

    def __init__(self, hypervisor: HypervisorPort, clock: Clock, *, limit_s: float) -> None:
        self.hypervisor = hypervisor
        self.by_vm: dict[str, Domain] = {}
        """By virtual machine."""
        self.creating: dict[str, str] = {}
        """Virtual machine → run, from before a create of this daemon until a later picture shows what became of it."""
        self.looked = False
        """Whether the picture was ever taken."""
        self._clock = clock
        self._limit_s = limit_s
        self._asked = 0
        self._shown = 0
        self._ended: dict[str, int] = {}
        """Virtual machine → how often had been looked when the call that creates it ended."""
        self.on_change: Callable[[str], None] = lambda vm: None
        """Called with the virtual machine whose domain changed; it must not block."""
        self.on_look: Callable[[float], None] = lambda seconds: None
        """Called with the seconds that each listing took; it must not block."""

    def names(self) -> tuple[str, ...]:
        """Virtual machines with a domain here or a create under way, sorted."""
        return tuple(sorted({*self.by_vm, *self.creating}))

    def present(self) -> list[Domain]:
        """Domains that count as virtual machines of this host, by name."""
        return [one for _, one in sorted(self.by_vm.items()) if one.state in PRESENT]

    def outside_slice(self) -> tuple[str, ...]:
        """Virtual machines with a process that the guard of this host would not end, by name."""
        return tuple(vm for vm, one in sorted(self.by_vm.items()) if not one.guarded)

    def begin(self, vm: str, run_id: str) -> None:
        """A domain is about to be created."""
        self.creating[vm] = run_id
        self._ended.pop(vm, None)

    def ended(self, vm: str) -> None:
        """The call that creates it came back, with whatever answer; only a look that begins now says what is here."""
        self._ended[vm] = self._asked

    async def look(self) -> None:
        """Take a new picture. ``Unavailable`` if the hypervisor does not answer."""
        self._asked += 1
        asked, began_s = self._asked, self._clock.monotonic()
        try:
            with deadline(self._limit_s):
                listed = await self.hypervisor.domains()
        except (TimeoutError, Unknown) as error:
            self.on_look(max(0.0, self._clock.monotonic() - began_s))
            raise Unavailable(f"the hypervisor did not list its domains: {error or 'no answer in time'}") from error
        self.on_look(max(0.0, self._clock.monotonic() - began_s))
        if asked < self._shown:
            return
        self._shown = asked
        self.looked = True
        for vm in [vm for vm, then in self._ended.items() if asked > then]:
            del self._ended[vm]
            del self.creating[vm]
        before, self.by_vm = self.by_vm, {one.vm: one for one in listed}
        for vm in sorted({*before, *self.by_vm}):
            if before.get(vm) != self.by_vm.get(vm):
                self.on_change(vm)

    async def problems(self) -> tuple[str, ...]:
        """What else starts domains here (``HypervisorPort``). ``Unavailable`` where nobody answers in time."""
        try:
            with deadline(self._limit_s):
                return await self.hypervisor.problems()
        except (TimeoutError, Unknown) as error:
            raise Unavailable(f"the hypervisor did not answer: {error or 'no answer in time'}") from error

    async def look_once_started(self) -> None:
        """Take a new picture, and start the hypervisor service where it does not answer: the guard may have stopped it.

        ``Unavailable`` if it does not answer then either.
        """
        try:
            await self.look()
        except Unavailable:
            await self.start_service()
            await self.look()

    async def shutdown(self, vm: str) -> None:
        """Ask the guest to end. ``Unknown`` where nobody answers in time; other errors as they come."""
        await self._bounded(self.hypervisor.shutdown(vm), f"the request that {vm} shuts down")

    async def resume(self, vm: str, run_id: str) -> None:
        """Let the paused or handed-over domain of that run go on. ``Unknown`` where nobody answers in time."""
        await self._bounded(self.hypervisor.resume(vm, run_id=run_id), f"the request that {vm} runs on")

    async def start_service(self) -> None:
        """See to it that the hypervisor service runs. ``Unknown`` where nobody answers in time."""
        await self._bounded(self.hypervisor.start_service(), "the start of the hypervisor service")

    async def _bounded(self, call: Awaitable[None], what: str) -> None:
        try:
            with deadline(self._limit_s):
                await call
        except TimeoutError:
            raise Unknown(f"{what} was not answered within {self._limit_s:g} s") from None

    async def decline(self, vm: str, run_id: str) -> bool:
        """End what waits for a guest and look; whether it is certain that it never ran."""
        try:
            with deadline(self._limit_s):
                await self.hypervisor.decline(vm, run_id)
            certain = True
        except (OutliveError, TimeoutError) as error:
            _log.warning("domain.not_declined", vm=vm, error=str(error) or "no answer in time")
            certain = False
        await self.look()
        return certain

    async def destroy(self, vm: str, *, run_id: str = "") -> bool:
        """Stop it hard and look; whether no domain of it (or of that run) is left."""
        try:
            with deadline(self._limit_s):
                await self.hypervisor.destroy(vm, run_id=run_id)
        except (TimeoutError, Unavailable, Unknown) as error:
            _log.warning("domain.not_destroyed", vm=vm, error=str(error) or "no answer in time")
        await self.look()
        left = self.by_vm.get(vm)
        return left is None or (run_id != "" and left.run_id != run_id)
