"""Requests of users for VMs whose host is not there: recovery answers them in its stead.

The host that a VM is assigned to answers while it lives (``outlive.node.vm.requests``). Where it is silent, condemned,
dead, stopped, or has no Membership, nobody would, nor where the VM is assigned to none; so the leader of recovery
answers, by the same decision and with the same compare-and-swap: of two answers one loses. A start begins a recovery,
which brings the VM elsewhere once its host is proven dead, or finds its first host. A move waits for that proof for a
while, and then goes to the host that the user wants, else it is refused. What this does not promise: that the VM has
room there; that host says so, and then its slots are next.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec
from msgspec import UNSET

from outlive.base import Clock, as_datetime, get_logger
from outlive.node.membership import PauseGate, is_fenced
from outlive.node.vm import (
    RELOCATIONS,
    VM_REQUEST,
    Choice,
    Places,
    VmRequestResult,
    apply_writes,
    end_phase,
    is_asked,
    places_for,
    reach_of,
    relocate_status,
    request_input,
    set_phase,
)
from outlive.recovery import states as records
from outlive.recovery.act import SHUT_DOWN, RecoveryActions
from outlive.recovery.informers import ASKED_INDEX, RecoveryInformers, Since
from outlive.recovery.model import ActionKind, HostHealth, RecoveryAction
from outlive.recovery.view import RecoveryObserver
from outlive.resources import CLUSTER, Request, VirtualMachine, VirtualMachineStatus, VmState, is_to_run
from outlive.resources.reasons import PlanReason, VmReason, make_reason
from outlive.runtime import DecisionLog
from outlive.store import Store, read

SILENT_S: Final = 10.0
"""How long a host may be silent while a request waits for it: it may come back, or is condemned by then."""
PROOF_S: Final = 60.0
"""How long a move waits for the proof that the VM's host is dead, before it is refused."""
_replace = msgspec.structs.replace
_log = get_logger("recovery")


class Responder(enum.Enum):
    """Whose turn it is to answer a request."""

    HOST = enum.auto()
    """Its host's, which lives."""
    LATER = enum.auto()
    """Nobody's yet: its host may come back, or its death may be proven."""
    RECOVERY = enum.auto()


def turn_of(health: HostHealth, verb: str, *, not_fenced: bool, unconfirmed: bool, waited_s: float) -> Responder:
    """Who answers a request that waits for so long; ``find_unfenced_holders``: a host may still run the VM."""
    if health is HostHealth.LIVE:
        return Responder.HOST
    if health is HostHealth.SILENT and waited_s < SILENT_S:
        return Responder.LATER
    hopeless = health is HostHealth.UNKNOWN or unconfirmed
    if verb in RELOCATIONS and not_fenced and not hopeless and waited_s < PROOF_S:
        return Responder.LATER
    return Responder.RECOVERY


class RequestAnswers:
    """See the module; errors are the store's, and ``StepRefused``."""

    def __init__(
        self,
        store: Store,
        informers: RecoveryInformers,
        observer: RecoveryObserver,
        actions: RecoveryActions,
        pause: PauseGate,
        *,
        decisions: DecisionLog,
        clock: Clock,
    ) -> None:
        self._store = store
        self._vms = informers.vms
        self._clusters = informers.clusters
        self._observer = observer
        self._actions = actions
        self._pause = pause
        self._decisions = decisions
        self._clock = clock
        self._waiting = Since(clock)
        """Requests, by VM."""

    def due_requests(self) -> tuple[list[str], bool]:
        """VMs whose requests are to be answered now, and whether others wait for a host that is not there."""
        due: list[str] = []
        later = False
        seen: set[str] = set()
        for host in self._vms.index_keys(ASKED_INDEX):
            if self._observer.is_managed_elsewhere(host):
                continue
            for vm in self._vms.list_by_index(ASKED_INDEX, host):
                seen.add(vm.name)
                turn = self._decide_turn(vm)
                due += [vm.name] if turn is Responder.RECOVERY else []
                later = later or turn is Responder.LATER
        self._waiting.forget_except(seen)
        return sorted(due), later

    def _decide_turn(self, vm: VirtualMachine) -> Responder:
        request, host = vm.spec.request, self._observer.host_state(vm.host)
        assert request is not None
        waited_s = self._waiting.see(vm.name, (request.id, vm.host))
        return turn_of(
            host.health,
            request.verb,
            not_fenced=self._list_unfenced(vm),
            unconfirmed=host.unconfirmed,
            waited_s=waited_s,
        )

    def _list_unfenced(self, vm: VirtualMachine) -> bool:
        members, reach = self._observer.find_members(vm.status.holders), reach_of(vm)
        return any(not is_fenced(one, members, reach) for one in vm.status.holders)

    async def answer(self, name: str) -> None:
        """Answer the request for this VM, on what a fresh read shows."""
        vm = await read(self._store, VirtualMachine, name)
        if vm is None or not is_asked(vm) or self._decide_turn(vm) is not Responder.RECOVERY:
            return
        request = vm.spec.request
        assert request is not None
        places = await places_for(self._store, vm, request)
        result = await self._decide_request(vm, request, places)
        said = places.answer(request, result)
        moves = result.ok and result.writes.node is not UNSET
        if moves and is_to_run(vm):
            target, home = str(result.writes.node), result.writes.last_node
            fence, why = self._observer.fence_id(vm), make_reason(PlanReason.ASKED_THERE, host=target)
            against = places.rules.rules_against(target)
            action = RecoveryAction(
                vm=name, kind=ActionKind.PLACE, fence=fence, host=target, reason=why, against=against
            )
            await self._actions.send_as_asked(vm, action, said, home=home if isinstance(home, str) else "")
        else:
            status = self._build_status(vm, request, result) if result.ok else vm.status
            target = str(result.writes.node) if moves else ""
            await self._actions.write_answer(vm, _replace(status, answered=said), target)
        _log.info("recovery.request", vm=name, verb=request.verb, id=request.id, code=result.code.value, host=vm.host)

    async def _decide_request(self, vm: VirtualMachine, request: Request, places: Places) -> VmRequestResult:
        cluster = self._clusters.get(CLUSTER)
        selector = cluster.spec.default_selector if cluster is not None else ""
        given = request_input(
            vm,
            request,
            places,
            Choice(default_selector=selector or None, require_fit=True, mem_means="provisioned"),
            frozen=self._observer.disarmed_mode() == "freeze",
            not_fenced=self._list_unfenced(vm),
            paused=self._observer.is_paused() or await self._pause.is_paused(),
            host_away=True,
        )
        return self._decisions.use(VM_REQUEST, given, subject=vm.name)

    def _build_status(self, vm: VirtualMachine, request: Request, result: VmRequestResult) -> VirtualMachineStatus:
        """The status after what the answer writes: what its host would do then is over, or begins here."""
        if result.writes.node is not UNSET:  # it is down: nothing is to be started
            home = result.writes.last_node
            return relocate_status(
                vm,
                target=result.writes.node,
                home=home if isinstance(home, str) else "",
                phase=vm.status.phase,
                move_id="",
            )
        status = apply_writes(vm, result.writes, "")
        after = _replace(vm, status=status)
        if request.verb in ("start", "restart") and is_to_run(after):
            record = records.enter_asked(vm, self._observer.fence_id(vm), as_datetime(self._clock.now()))
            return _replace(status, recovery=record)
        down = status.phase in SHUT_DOWN or status.reason == VmReason.TO_BE_DISABLED
        if not status.holders and down and not is_to_run(after) and status.phase != VmState.START:
            return set_phase(status, *end_phase(after))
        return status
