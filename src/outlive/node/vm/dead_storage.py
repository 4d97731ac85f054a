"""What the worker of a virtual machine does once storage does not serve it: end it for another host, or let it run on.

That it is to leave was decided before (``outlive.node.storage_loss``). It goes as one goes that its host cannot start:
ended, seen to be absent, and then its entry is removed together with the word for recovery, in one write; where the
store is away by then, that is written once it is back. A process
that does not end is not proven gone, and nothing starts elsewhere: its entry stays, and that is said.
"""

from __future__ import annotations

from typing import Final

from outlive.base import OutliveError, get_logger
from outlive.node.ports import Domain
from outlive.node.storage_loss import LossKind
from outlive.node.vm.context import VmContext, VmMemory
from outlive.node.vm.start import rejection_by, report_running
from outlive.node.vm.states import own_entries
from outlive.node.vm.stop import destroy, release
from outlive.resources import VirtualMachine, limits_of
from outlive.resources.reasons import VmReason, make_reason

AGAIN_S: Final = 5.0
"""Between two tries to end one."""
RUN_ON_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Waits before the daemon resumes a guest that a disk error paused; the next one counts if it is paused again."""
_log = get_logger("node.vm")


async def leave_dead_storage(node: VmContext, vm: VirtualMachine, memory: VmMemory) -> float | None:
    """End it and hand it to recovery; in how many seconds to look again."""
    loss = node.losses.by_vm.get(vm.name)
    domain = node.domains.by_vm.get(vm.name)
    if loss is None or (domain is not None and domain.run_id != loss.run_id) or not await node.confirm_store():
        return AGAIN_S
    _log.warning("vm.leaves_dead_storage", vm=vm.name, host=node.host, kind=loss.kind, why=loss.why)
    if not await destroy(node, vm.name, run_id=loss.run_id):
        node.losses.hanging[vm.name] = None
        await report_running(node, vm.name, memory)  # its reason is that it does not end
        return AGAIN_S
    memory.left_storage = (loss.run_id, loss.why)
    node.losses.by_vm.pop(vm.name, None)
    node.losses.hanging.pop(vm.name, None)
    return await hand_over(node, vm, memory)


def has_ended_run(node: VmContext, vm: VirtualMachine, memory: VmMemory) -> bool:
    """Whether this host ended its run because of dead storage, and could not tell recovery yet."""
    return any(one.run_id == memory.left_storage[0] for one in own_entries(vm, node.lease.me))


async def hand_over(node: VmContext, vm: VirtualMachine, memory: VmMemory) -> float | None:
    """Tell recovery that it left dead storage, and remove its entry; in how many seconds to look again."""
    why = make_reason(VmReason.LEFT_STORAGE, host=node.host, why=memory.left_storage[1])
    if not await release(node, vm.name, rejection=rejection_by(node, vm, why)):
        return AGAIN_S
    memory.left_storage = ("", "")
    node.reported()
    return None


async def run_on(node: VmContext, vm: VirtualMachine, domain: Domain, memory: VmMemory) -> float | None:
    """Let one go on that only an error of a disk has paused, once that may serve it; when to look again."""
    loss, now_s = node.losses.by_vm.get(vm.name), node.clock.monotonic()
    limits = limits_of(vm.spec.recovery, node.desired.cluster_spec.recovery)
    if limits.storage_resume == "never" or (loss is not None and loss.kind is LossKind.UNREACHED):
        return AGAIN_S
    if loss is None:
        memory.resumed, memory.resume_s = 0, now_s + RUN_ON_S[0]
        return RUN_ON_S[0]
    if now_s < memory.resume_s:
        return memory.resume_s - now_s
    if not await node.confirm_store():
        return AGAIN_S
    wait_s = RUN_ON_S[min(memory.resumed, len(RUN_ON_S) - 1)]
    memory.resumed, memory.resume_s = memory.resumed + 1, now_s + wait_s
    try:
        await node.domains.resume(vm.name, domain.run_id)
        _log.info("vm.runs_on", vm=vm.name, host=node.host, tries=memory.resumed)
    except OutliveError as error:
        _log.warning("vm.not_resumed", vm=vm.name, host=node.host, error=str(error))
    await node.domains.refresh()
    return wait_s
