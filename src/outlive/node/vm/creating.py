"""Creating the domain of a run that the store has acknowledged: the one way past the gate, for starts and for moves.

Between the answer to a hold and the domain everything is looked at once more: the guard, the membership, the
store's incarnation. Who may not go on gives the hold back, and nothing was created. The guard counts a create as under
way until it is told of its end, and it is told only once a look has shown what became of it: a call that was given up
may still take effect. What this does not give: between the guard's yes and the domain the gate may shut; then the
guard waits for the end of that create before it calls the host empty.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from outlive.base.errors import InUse, OutliveError, Refused, Unavailable, Unknown
from outlive.base.logging import get_logger
from outlive.node.membership.holding import CREATE, CreateView
from outlive.node.ports.hypervisor import Domain, DomainState
from outlive.node.vm.ending import Ender
from outlive.node.vm.former import end_former_creates
from outlive.node.vm.shared import VmHost, VmMemory
from outlive.resources import VirtualMachine

END_CREATE_TRIES: Final = 5
"""How often the guard is told that a create is over."""

_CREATE: Final = CREATE.decision
_log = get_logger("node.vm")


@dataclass(frozen=True, slots=True)
class Created:
    """What came of it."""

    passed: bool
    """Whether the run got past the gate; if not, its entry was given back and nothing was created."""
    domain: Domain | None = None
    """The domain of the run, as a look afterwards showed it; ``None``: there is none."""
    problem: str = ""
    """What the hypervisor said, where it was no plain yes."""


class Creator:
    """See the module."""

    def __init__(self, shared: VmHost, ender: Ender) -> None:
        self._shared = shared
        self._ender = ender
        self._open: dict[str, None] = {}
        """Runs that this daemon has asked the guard for, and whose end it has not told."""

    async def create(
        self, vm: VirtualMachine, run_id: str, held_in: str, memory: VmMemory, *, incoming: bool = False
    ) -> Created:
        """Go past the gate with this run, create its domain and look.

        ``vm``: with the entry, as the store acknowledged it. ``held_in``: the store's incarnation before the hold
        was decided on. ``incoming``: the domain listens for a guest of another host.
        """
        epoch = await self._pass(vm, run_id, held_in)
        if epoch is None:
            return Created(passed=False)
        problem = await self._made(vm, run_id, epoch, memory, incoming=incoming)
        domain = self._shared.here.domains.get(vm.name)
        ours = domain is not None and domain.run_id == run_id
        return Created(passed=True, domain=domain if ours else None, problem=problem)

    async def followed(self, name: str, memory: VmMemory) -> bool:
        """Whether no create of it is under way any more, by the last look; the guard is told of the last one's end."""
        domain = self._shared.here.domains.get(name)
        if name in self._shared.here.creating or (domain is not None and domain.state is DomainState.STARTING):
            return False
        if memory.late_create:
            await self._end(memory.late_create)
            memory.late_create = ""
        return True

    async def end_former(self) -> None:
        """Tell the guard the end of creates that this daemon does not follow, as of one that was killed before it."""
        await end_former_creates(self._shared.guard, self._shared.here, self._open)

    async def _pass(self, vm: VirtualMachine, run_id: str, held_in: str) -> int | None:
        """The epoch in which the domain may be created; ``None``: it may not, and the entry was given back."""
        shared = self._shared
        self._open[run_id] = None
        gate_open = await shared.guard.begin_create(run_id)
        me = shared.keeper.me
        view = CreateView(
            vm=vm.name,
            me=me,
            run_id=run_id,
            holders=vm.status.holders,
            gate_open=gate_open,
            held_in=held_in,
            incarnation=shared.wishes.incarnation,
        )
        outcome = shared.decisions.use(_CREATE, view, subject=vm.name)
        if outcome.refused is None:
            return me.epoch
        _log.info("vm.gate_not_passed", vm=vm.name, host=shared.host, run_id=run_id, why=outcome.refused.why)
        if gate_open:
            await self._end(run_id)
        self._open.pop(run_id, None)  # where only the guard's yes was lost, it is ended as a former one
        await self._ender.release(vm.name)
        return None

    async def _made(self, vm: VirtualMachine, run_id: str, epoch: int, memory: VmMemory, *, incoming: bool) -> str:
        """Create the domain and look; why that went wrong, empty if it did not."""
        shared, name = self._shared, vm.name
        problem = ""
        shared.here.begin(name, run_id)
        try:
            async with asyncio.timeout(float(shared.settings.create_limit)):
                await shared.here.hypervisor.create(vm, run_id=run_id, epoch=epoch, incoming=incoming)
        except (Refused, InUse, Unavailable) as error:
            problem = error.message
        except (Unknown, TimeoutError) as error:
            problem = str(error) or f"not created within {float(shared.settings.create_limit):g} s"
        except OutliveError as error:
            problem = str(error)
        finally:
            shared.here.ended(name)
        memory.late_create = run_id
        await shared.here.look()
        await self.followed(name, memory)
        if problem:
            _log.warning("vm.not_created", vm=name, host=shared.host, run_id=run_id, why=problem)
        return problem

    async def _end(self, run_id: str) -> None:
        """Tell the guard that a create is over; it is told again while it does not hear, and in the end as a former."""
        self._open.pop(run_id, None)
        for attempt in range(END_CREATE_TRIES):
            try:
                await self._shared.guard.end_create(run_id)
            except OutliveError as error:
                _log.warning("guard.not_told", run_id=run_id, error=str(error))
                await self._shared.clock.sleep(0.2 * 2.0**attempt)
            else:
                return
