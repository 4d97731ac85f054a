"""The reconciler of one virtual machine: what is here of it, what is wanted, and the one job that follows.

The order of the questions is what counts: what may yet run, what was received, migrations, runs that nobody holds, and
only then ``vm.event``. Level-triggered: what was missed is seen at the next pass. Whether a start is allowed is not
decided here, but by the protocol steps that the jobs take. Jobs of one virtual machine never overlap, and a job that
waits is woken by every change.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from outlive.base import OutliveError, Random, get_logger, new_global_request_id, request_context, set_within
from outlive.node.membership.registration import report_unknown
from outlive.node.migration import migration
from outlive.node.migration.record import LOOK_S, adopt, claim_after_restore, find_unfenced_holders, tidy
from outlive.node.ports import DomainState
from outlive.node.vm.affinity import start_by_rules
from outlive.node.vm.context import SeenVm, VmContext, VmMemory
from outlive.node.vm.dead_storage import hand_over, has_ended_run, leave_dead_storage, run_on
from outlive.node.vm.requests import answer, is_asked
from outlive.node.vm.start import (
    BACK_OFF_S,
    SOON_S,
    create_is_over,
    report_running,
    report_waiting,
)
from outlive.node.vm.states import (
    VM_EVENT,
    VmAction,
    VmEventInput,
    VmState,
    active_move,
    end_phase,
    entries_of_host,
    is_kept_down,
    own_entries,
    rejected_by,
    set_phase,
    state_of,
)
from outlive.node.vm.stop import Shutdown, destroy, release, shut_down
from outlive.resources import HOST_LABEL, ObjectRef, VirtualMachine, VirtualMachineStatus, limits_of
from outlive.resources.reasons import FaultCode, VmReason, make_reason, render
from outlive.runtime import OrderedTaskGroup, QueueClosed, WorkQueue

RELABEL_S: Final = 20.0
"""How long a label may name another host than the one that is assigned, as it does for a moment in every move."""
ORPHAN_S: Final = 10.0
"""How long a document must have been missing before its domain is destroyed."""
UNKNOWN_S: Final = 30.0
"""How often is looked for the document of a domain that the store does not know."""
MEMORY_LOST_S: Final = 5.0
"""How long the rest of a guest's memory is waited for once no host is left that could send it: the hypervisor may be
late to say that all of it is there."""
FROZEN_S: Final = 5.0
"""How often is looked whether the cluster is armed again."""
_replace = msgspec.structs.replace
_log = get_logger("node.vm")


async def reconcile(node: VmContext, name: str, memory: VmMemory) -> float | None:
    """One look and at most one job; in how many seconds to look again, ``None``: when something changes."""
    if not node.lease.held or not node.domains.looked:
        return None  # called again once the host has entered
    starting = node.domains.by_vm.get(name)
    if memory.late_create or name in node.domains.creating or (starting and starting.state is DomainState.STARTING):
        await node.domains.refresh()
        if not await create_is_over(node, name, memory):
            return SOON_S  # nothing is decided about what may yet run
    cached = node.informer.get(name)
    if cached is not None and _is_settled(node, cached) and (node.was_read(name) or name not in node.domains.by_vm):
        return None
    incarnation = node.desired.incarnation
    vm = await node.read(name)
    domain = node.domains.by_vm.get(name)
    if vm is None and domain is not None:
        return await _handle_orphan(node, name, memory)
    memory.orphaned_s = None
    if domain is None or (
        vm is not None and node.find_entry(vm) is not None
    ):  # till then no other host starts the name
        node.faults.clear(FaultCode.UNKNOWN_VM, _vm_ref(name))
    if vm is None:
        node.read_in.pop(name, None)
        return None
    node.read_in[name] = incarnation
    if (
        not vm.guarded and not vm.deleting and entries_of_host(vm, node.lease.me)
    ):  # an older version, or a backup, lacks it
        await node.guard_deletion(name)
        return 0.0
    if is_asked(vm) and vm.host == node.host:
        await answer(node, vm)
        return 0.0
    return await _step(SeenVm(node, vm, domain, memory))


async def _step(seen: SeenVm) -> float | None:
    """What was received, a move under way, runs that nobody holds; and only then what ``vm.event`` says."""
    node, vm, domain = seen.node, seen.vm, seen.domain
    entry = node.find_entry(vm)
    if entry is not None and entry.role == "incoming" and node.is_running(vm):
        return await adopt(node, vm)
    move = active_move(vm)
    if move is not None and node.host in (move.source, move.target):
        if node.host == move.target and _is_older_than_restore(seen):
            if not node.cleaned:
                return 1.0
            if entry is not None:
                return await claim_after_restore(node, vm)  # that move is over: it runs here
        label_s = await _repair_label(seen)  # the target hears of it by its label
        return _earlier_wait(await migration.step(seen), label_s)
    if domain is not None and entry is None:  # a run that is not held, unless it may still be taken over
        if not node.cleaned or not await node.confirm_store():
            return 1.0
        _log.warning("vm.stray_destroyed", vm=vm.name, host=node.host, run_id=domain.run_id)
        return 0.0 if await destroy(node, vm.name, run_id=domain.run_id) else 1.0
    if domain is not None and domain.state in (DomainState.INCOMING, DomainState.HANDED_OVER):
        return await migration.clear_leftover(node, vm, domain)
    label_s = await _repair_label(seen)
    return _earlier_wait(await _act(seen), label_s)


def _is_older_than_restore(seen: SeenVm) -> bool:
    """Whether it runs here, and the store had gone back when this host entered."""
    entered, domain = seen.node.lease.entered, seen.domain
    runs = domain is not None and domain.state is DomainState.RUNNING
    return entered is not None and entered.restored and runs


def _is_settled(node: VmContext, vm: VirtualMachine) -> bool:
    """Whether there is certainly nothing to do: it runs here as it should, or it neither is nor belongs here."""
    me, domain = node.lease.me, node.domains.by_vm.get(vm.name)
    if is_asked(vm) or active_move(vm) is not None or not (vm.guarded or vm.deleting or not entries_of_host(vm, me)):
        return False
    here = vm.host == me.host
    if vm.host not in ("", vm.metadata.labels.get(HOST_LABEL, "")):
        return False
    if domain is None:
        down = state_of(vm) in (VmState.STOP, VmState.DISABLE, VmState.FAIL) or is_kept_down(vm, me)
        idle = not here or down or rejected_by(vm, me.host)
        return idle and not entries_of_host(vm, me) and state_of(vm) != VmState.SHUTDOWN
    entry = node.find_entry(vm)
    seen = len(vm.status.holders) == 1 and entry is not None and entry.seen == "running" and entry.vnc == domain.vnc
    said, why = vm.status, node.losses.reason_of(vm.name)
    known = said.phase == VmState.START and (said.reason, said.message) == (
        ("", said.message) if why is None else (why.code, render(why).text)
    )
    known = known and vm.name not in node.losses.restart
    whole = domain.state is DomainState.RUNNING and not domain.split and vm.name not in node.domains.ending
    return here and seen and known and whole and state_of(vm) == VmState.START


async def _repair_label(seen: SeenVm) -> float | None:
    """Set the label right if a process that changed it did not finish; until when to wait for that, else ``None``."""
    node, vm, memory = seen.node, seen.vm, seen.memory
    label = vm.metadata.labels.get(HOST_LABEL, "")
    if vm.host in ("", label) or node.host not in (vm.host, label):
        memory.mislabelled_s = None
        return None
    now_s = node.clock.monotonic()
    if memory.mislabelled_s is None:
        memory.mislabelled_s = now_s
    left_s = memory.mislabelled_s + RELABEL_S - now_s
    if left_s > 0:
        return left_s
    memory.mislabelled_s = None
    _log.warning("vm.relabelled", vm=vm.name, label=label, assigned=vm.host)
    await node.relabel(vm.name, vm.host)
    return None


# Domains that no document, or no entry, explains


async def _handle_orphan(node: VmContext, name: str, memory: VmMemory) -> float | None:
    """A domain without a document: destroyed once it is certain that somebody has deleted that.

    That this daemon has read it, in the store as it is now, is the only sign of it: a restored store does not know
    what was made after its backup. Anything else runs on, and it is reported to an operator.
    """
    now_s = node.clock.monotonic()
    if memory.orphaned_s is None:
        memory.orphaned_s = now_s
    certain = now_s - memory.orphaned_s >= ORPHAN_S and node.lease.acknowledged_since(memory.orphaned_s)
    if not node.cleaned or not certain:
        return ORPHAN_S
    await node.desired.refresh()  # whether it is still the same store
    if not node.was_read(name):
        report_unknown(node.faults, node.host, name)
        return UNKNOWN_S
    _log.warning("vm.orphan_destroyed", vm=name, host=node.host)
    return None if await destroy(node, name) else ORPHAN_S


# What is wanted, and what is here


async def _act(seen: SeenVm) -> float | None:
    node, vm, domain = seen.node, seen.vm, seen.domain
    if domain is not None and domain.state is DomainState.OFF:
        return 0.0 if await destroy(node, vm.name, run_id=domain.run_id) else 1.0
    given = VmEventInput(this_node=node.host, state=state_of(vm), node=vm.host or None, running=domain is not None)
    action = node.decisions.use(VM_EVENT, given, subject=vm.name).action
    if action is VmAction.START and has_ended_run(node, vm, seen.memory):
        return await hand_over(node, vm, seen.memory)
    if not node.frozen or action not in CHANGES:
        return await STEPS.get(action, _forget)(seen)
    if action is VmAction.START and not rejected_by(vm, node.host):  # only said: that it ended, and is not started
        if any(one.seen for one in own_entries(vm, node.lease.me)):
            await _handle_crash(seen)
        await report_waiting(node, vm, VmReason.CLUSTER_FROZEN)
    return FROZEN_S


async def _adopt(seen: SeenVm) -> float | None:
    """It runs where it should: say so, and clear away entries of runs that are over."""
    node, vm, domain = seen.node, seen.vm, seen.domain
    if vm.name in node.losses.restart and not node.frozen:
        return await leave_dead_storage(node, vm, seen.memory)
    if vm.name in node.domains.ending:  # only that its end is not known to be done speaks for its running
        _note_run_end(seen)
        if await destroy(node, vm.name):
            return 0.0 if await release(node, vm.name) else 1.0
        await report_waiting(node, vm, VmReason.NOT_ENDED)
        return 1.0
    wait_s = await report_running(node, vm.name, seen.memory)
    if domain is not None and domain.io_error and not node.frozen:
        return _earlier_wait(wait_s, await run_on(node, vm, domain, seen.memory))
    if domain is not None and domain.split:
        return await _receive_memory(seen)
    seen.memory.alone_since_s = None
    if domain is None or len(vm.status.holders) == 1:
        return wait_s
    if any(one.run_id != domain.run_id for one in entries_of_host(vm, node.lease.me)):
        return 0.0 if await release(node, vm.name, but=domain.run_id) else 5.0
    return await tidy(node, vm)


async def _receive_memory(seen: SeenVm) -> float | None:
    """It runs by post-copy on memory that another host still sends; it is lost with that one, and starts anew."""
    node, vm, memory, now_s = seen.node, seen.vm, seen.memory, seen.node.clock.monotonic()
    if node.frozen or await find_unfenced_holders(node, vm):
        memory.alone_since_s = None
        return LOOK_S
    if memory.alone_since_s is None:
        memory.alone_since_s = now_s
    await node.domains.refresh()
    domain = node.domains.by_vm.get(vm.name)
    if domain is None or not domain.split:
        return 0.0
    if now_s - memory.alone_since_s < MEMORY_LOST_S or not await node.confirm_store():
        return LOOK_S
    memory.alone_since_s = None
    _log.warning("vm.memory_lost", vm=vm.name, host=node.host, run_id=domain.run_id)
    return 0.0 if await destroy(node, vm.name, run_id=domain.run_id) else LOOK_S


async def _start(seen: SeenVm) -> float | None:
    """Start, unless this host has said that it cannot, or it ended by itself just now."""
    node, vm = seen.node, seen.vm
    if rejected_by(vm, node.host) or is_kept_down(vm, node.lease.me):
        return await _forget(seen)
    if any(one.seen for one in own_entries(vm, node.lease.me)):
        return await _handle_crash(seen)
    if vm.status.phase == VmState.STOP:
        await _set_to_start(seen)
    return await start_by_rules(node, vm, seen.memory)


async def _set_to_start(seen: SeenVm) -> float | None:
    """It is to run where it is assigned; a move of which no record is left is over."""

    def change(now: VirtualMachine) -> VirtualMachineStatus | None:
        return set_phase(now.status, VmState.START) if now.host == seen.node.host else None

    await seen.node.change(seen.vm.name, change)
    return 0.0


async def _handle_crash(seen: SeenVm) -> float | None:
    """Its domain ended by itself: say so, and start it again after a while that grows."""
    node, memory = seen.node, seen.memory
    now_s = node.clock.monotonic()
    _note_run_end(seen)
    memory.crashes += 1
    wait_s = BACK_OFF_S[min(memory.crashes, len(BACK_OFF_S)) - 1]
    memory.not_before_s = now_s + wait_s
    why = make_reason(VmReason.CRASHED, crashes=memory.crashes, wait_s=f"{wait_s:g}")
    _log.warning("vm.crashed", vm=seen.vm.name, host=node.host, crashes=memory.crashes, wait_s=wait_s)

    def change(now: VirtualMachine) -> VirtualMachineStatus | None:
        ours = own_entries(now, node.lease.me)
        holders = tuple(
            _replace(one, seen="", vnc=None, since=None) if one in ours else one for one in now.status.holders
        )
        return _replace(set_phase(now.status, now.status.phase, why), holders=holders)

    await node.change(seen.vm.name, change)
    node.reported()
    return wait_s


def _note_run_end(seen: SeenVm) -> None:
    """Its run is over: after a long one everything that failed before is forgotten."""
    node, memory = seen.node, seen.memory
    since_s, memory.running_since_s = memory.running_since_s, None
    reset_s = limits_of(seen.vm.spec.recovery, node.desired.cluster_spec.recovery).reset_s
    if since_s is not None and node.clock.monotonic() - since_s >= reset_s:
        memory.crashes = memory.failures = 0


async def _shut_down(seen: SeenVm) -> float | None:
    match await shut_down(seen.node, seen.vm.name, seen.memory):
        case Shutdown.DONE:
            return await _report_down(seen)
        case Shutdown.CALLED_OFF:
            return 0.0
        case Shutdown.FAILED:
            return 1.0


async def _report_down(seen: SeenVm) -> float | None:
    """It is down as it was asked for: say so, and remove the entry; one that restarts is to run again."""
    node, state = seen.node, state_of(seen.vm)
    _note_run_end(seen)
    if state == VmState.RESTART:
        await release(node, seen.vm.name, phase=VmState.START)
        return 0.0
    phase, why = (None, None) if state == VmState.DISABLE else end_phase(seen.vm)
    released = await release(node, seen.vm.name, phase=phase, why=why)
    node.reported()
    return None if released else 1.0


async def _destroy(seen: SeenVm) -> float | None:
    return await _report_down(seen) if await destroy(seen.node, seen.vm.name) else 1.0


async def _terminate(seen: SeenVm) -> float | None:
    """It belongs to another host now: its phase is left alone."""
    node, vm = seen.node, seen.vm
    if not await node.confirm_store():
        return 1.0
    if _is_older_than_restore(seen):
        return await claim_after_restore(node, vm)
    _log.info("vm.terminated", vm=vm.name, host=node.host, assigned=vm.host)
    if not await destroy(node, vm.name):
        return 1.0
    released = await release(node, vm.name)
    node.reported()
    return None if released else 1.0


async def _forget(seen: SeenVm) -> float | None:
    """Nothing of it is, or should be, here: remove what entries are left."""
    node, vm = seen.node, seen.vm
    if vm.name in node.domains.by_vm or not entries_of_host(vm, node.lease.me):
        return None
    return None if await release(node, vm.name) else 5.0


async def _stays_down(seen: SeenVm) -> float | None:
    if seen.domain is None and seen.vm.status.reason == VmReason.TO_BE_DISABLED:
        return await _report_down(seen)  # the daemon that stopped it for that did not report it
    return await _forget(seen)


CHANGES: Final = frozenset({VmAction.START, VmAction.SHUTDOWN, VmAction.RESTART, VmAction.DESTROY})
"""What is not done while the cluster is disarmed so that VMs stay as they are."""
STEPS: Final[Mapping[VmAction, Callable[[SeenVm], Awaitable[float | None]]]] = {
    VmAction.ADOPT: _adopt,
    VmAction.SETTLE_START: _set_to_start,
    VmAction.WRITE_START: _set_to_start,
    VmAction.RECEIVE: _set_to_start,
    VmAction.START: _start,
    VmAction.SHUTDOWN: _shut_down,
    VmAction.RESTART: _shut_down,
    VmAction.DESTROY: _destroy,
    VmAction.SETTLE_STOP: _report_down,
    VmAction.FORGET: _stays_down,
    VmAction.TERMINATE: _terminate,
    VmAction.SEND: _terminate,
    VmAction.SEND_LIVE: _terminate,
}
"""What is done for each answer of ``vm.event``; the others: ``_forget``."""


def _earlier_wait(one_s: float | None, other_s: float | None) -> float | None:
    """When to look again; ``None``: when something changes."""
    given = [wait_s for wait_s in (one_s, other_s) if wait_s is not None]
    return min(given) if given else None


RETRY_BASE_S: Final = 0.5
"""The first wait after an error; it doubles."""
RETRY_CAP_S: Final = 30.0
"""The longest."""
CALM_S: Final = 2.0
"""How much of a wait after an error, or after too many looks, nothing shortens: a look may have changed the virtual
machine itself, and would be woken by that."""
FOLLOW_S: Final = 1.0
"""How often a virtual machine is read that is here and labelled for another host: nobody reports its changes."""
LOOKS: Final = 50
"""Looks one upon the other without a rest; more of them mean that two rules contradict each other."""


WORKER: Final = "its worker"
"""The part that crashes, as the fault of the virtual machine names it."""


def _vm_ref(vm: str) -> ObjectRef:
    return ObjectRef(kind="VirtualMachine", name=vm)


class VmReconciler:
    """See the module. ``enqueue`` from anywhere; jobs run in the group that ``run`` opens."""

    def __init__(self, node: VmContext, *, random: Random) -> None:
        self._node = node
        self._queue = WorkQueue(node.clock, random, base_s=RETRY_BASE_S, cap_s=RETRY_CAP_S)
        self._closing = asyncio.Event()

    @property
    def busy(self) -> int:
        """Virtual machines that are being worked on."""
        return self._queue.working

    def enqueue(self, vm: str) -> None:
        """Have a look at this virtual machine soon; a job that waits is woken."""
        self._queue.add(vm)
        if vm in self._node.memories:
            self._node.memory_of(vm).changed.set()

    def enqueue_all(self) -> None:
        """Have a look at all that this host has to do with."""
        for vm in sorted({*(one.name for one in self._node.informer.items()), *self._node.domains.list_names()}):
            self.enqueue(vm)

    def on_vm(self, old: VirtualMachine | None, new: VirtualMachine | None) -> None:
        """What the informer reports."""
        vm = new if new is not None else old
        if vm is not None:
            self.enqueue(vm.name)

    async def run(self) -> None:
        """Until cancelled, or until ``close`` and the last job has ended."""
        stop = self._node.informer.subscribe(self.on_vm, replay=False)
        try:
            async with OrderedTaskGroup() as group:
                self.enqueue_all()
                with contextlib.suppress(QueueClosed):
                    while True:
                        vm = await self._queue.get()
                        group.create_task(self._work(vm), name=f"vm {vm}")
        finally:
            stop()

    def close(self) -> None:
        """Take nothing new, and let jobs end."""
        self._queue.shut_down()
        self._closing.set()

    async def _work(self, vm: str) -> None:
        node, memory = self._node, self._node.memory_of(vm)
        memory.changed.clear()
        try:
            with request_context(greq=new_global_request_id(node.ids, "vm"), req=""):
                wait_s = await reconcile(node, vm, memory)
        except (OutliveError, TimeoutError) as error:
            _log.warning("vm.look_failed", vm=vm, host=node.host, error=str(error))
            await node.clock.sleep(min(self._queue.retry(vm), CALM_S))
        except Exception as error:  # noqa: BLE001 - a fault says so; one VM's trouble must not end the daemon
            wait_s = node.faults.crashes.record_crash(_vm_ref(vm), WORKER, error)
            self._queue.add_after(vm, wait_s)
            await set_within(self._closing, wait_s)  # nothing shortens it: the look may have changed the VM itself
        else:
            node.faults.crashes.record_success(_vm_ref(vm), WORKER)
            self._queue.forget(vm)
            memory.looks = memory.looks + 1 if wait_s == 0.0 or memory.changed.is_set() else 0
            if memory.looks >= LOOKS:
                _log.error("vm.too_many_looks", vm=vm, host=node.host, looks=memory.looks)
                memory.looks, wait_s = 0, RETRY_CAP_S
                await node.clock.sleep(CALM_S)
            elsewhere = node.informer.get(vm) is None
            if elsewhere and vm in node.domains.by_vm:
                wait_s = _earlier_wait(wait_s, FOLLOW_S)
            idle = not (memory.late_create or memory.changed.is_set())
            if wait_s is not None:
                self._queue.add_after(vm, wait_s)
            elif elsewhere and vm not in node.domains.list_names() and idle:
                node.memories.pop(vm, None)
        finally:
            self._queue.finish(vm)
