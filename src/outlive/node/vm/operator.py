"""What an operator does with one VM: find it by either name, follow a request to its end, tag, rename, undefine it.

A VM has the name of its object, which never changes, and a display name, by which people call it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from outlive.base import BadInput, Clock, Ids, Invalid, NotFound, Refused, Usage, join_parts
from outlive.node.operator import refuse_deleted, request_vm
from outlive.node.vm.requests import RELOCATIONS, WORK, VmRequestCode
from outlive.node.vm.states import (
    HALTED,
    MIGRATING,
    VmState,
    active_move,
    current_rejection,
    deletion_of,
    is_to_run,
    state_of,
)
from outlive.resources import (
    NO_DISK,
    PROFILE_LABEL,
    TAG_LABEL_PREFIX,
    WORD_LENGTH_LIMIT,
    Amounts,
    Console,
    Holder,
    Hypervisor,
    MigrationPhase,
    ObjectRef,
    RecoveryPhase,
    Request,
    VirtualMachine,
    check_key,
    device_of,
    host_problem,
    parse,
    replace_definition,
    with_device,
    without_device,
)
from outlive.resources.definitions import check_name
from outlive.resources.reasons import BLOCKED_BY_OTHERS, VmReason
from outlive.store import Store, compare_and_swap, list_all, read

WAIT_LIMIT_S: Final = 4 * 3600.0
"""How long a request is followed at most."""
BLOCKED_S: Final = 60.0
"""How long it is followed while another VM or host is in its way."""
LOOK_S: Final = 1.0
GONE_S: Final = 10.0
"""How long it is waited until a VM that was deleted has gone."""
NAMED: Final = 5
"""VMs that a sentence names."""
PROTECTED: Final = "protected"
"""Value of the label of a tag that is not removed by mistake."""
DONE: Final = frozenset({VmRequestCode.ACCEPTED, VmRequestCode.MADE_PERMANENT})

_replace = msgspec.structs.replace


def display_name_of(vm: VirtualMachine) -> str:
    """What people call it."""
    return vm.spec.display_name or vm.name


def is_at_rest(vm: VirtualMachine) -> bool:
    """Whether it runs nowhere, moves nowhere, and is not to run."""
    return not vm.status.holders and active_move(vm) is None and not is_to_run(vm)


DELETING: Final = "deleting"
"""The state that is shown of a VM that was deleted and that a host may still run."""


def shown_state(vm: VirtualMachine) -> str:
    """Its state in one word; what rests before its first host is there is stopped."""
    if vm.deleting:
        return DELETING
    return VmState.STOP if not vm.host and is_at_rest(vm) else state_of(vm)


# Following a request


def progress_of(vm: VirtualMachine) -> str:
    """What happens to it, in one line."""
    status, move = vm.status, active_move(vm)
    if move is not None:
        return f"{display_name_of(vm)}: moves from {move.source} to {move.target}: {move.phase}"
    where = f" on {vm.host}" if vm.host else ""
    runs = ", runs" if _is_running(vm) else ""
    held = status.recovery.message if not vm.host and status.recovery is not None else ""
    rejected = status.rejection.message if status.rejection is not None else ""
    why = rejected or status.message or held
    return f"{display_name_of(vm)}: {shown_state(vm)}{where}{runs}" + (f" ({why})" if why else "")


def outcome_of(vm: VirtualMachine, request: Request) -> bool | None:
    """Whether the VM came to what was requested; ``None`` while it is still on the way. Pure."""
    if vm.deleting and request.verb not in ("stop", "shutdown"):
        return False
    answer = vm.status.answered
    if answer is None or answer.id != request.id:
        return None if vm.spec.request == request else False
    if answer.code not in DONE:
        return False
    if request.verb in WORK:
        return True
    state = state_of(vm)
    if request.verb == "disable":
        return True if state == VmState.DISABLE and not vm.status.holders else None
    if state == VmState.FAIL:
        return request.verb in ("stop", "shutdown") and not vm.status.holders
    if request.verb in ("stop", "shutdown"):
        down = state in HALTED and not vm.status.holders and vm.status.reason != VmReason.TO_BE_DISABLED
        return True if down else None
    if active_move(vm) is not None or state in MIGRATING:
        return None
    if _has_given_up(vm):
        return False
    if request.verb in RELOCATIONS and _is_aborted(vm):
        return False
    if request.verb in RELOCATIONS and not is_to_run(vm):
        return True
    return True if state == VmState.START and _is_running(vm) else None


def _has_given_up(vm: VirtualMachine) -> bool:
    """Whether hosts have refused it since it was requested (an accepted request clears what was refused before), and
    recovery waits until the cause is mended."""
    record = vm.status.recovery
    return current_rejection(vm) is not None and record is not None and record.phase is RecoveryPhase.HELD


def _is_aborted(vm: VirtualMachine) -> bool:
    return vm.status.migration is not None and vm.status.migration.phase is MigrationPhase.ABORTED


def _is_running(vm: VirtualMachine) -> bool:
    return running_entry(vm, vm.host) is not None


def running_entry(vm: VirtualMachine, host: str = "") -> Holder | None:
    """The entry of the host (or of any) that says that it runs there."""
    said = (one for one in vm.status.holders if one.hypervisor == (host or one.hypervisor) and not one.role)
    return next((one for one in said if one.seen == "running"), None)


async def follow_request(
    store: Store, clock: Clock, name: str, request: Request, report: Callable[[str], None]
) -> bool:
    """Whether the VM came to what was requested within ``WAIT_LIMIT_S``; ``report`` gets a line for every change.

    Where another VM or host is in the way for ``BLOCKED_S``, it ends with that; the VM's host goes on trying.
    ``NotFound`` where it is deleted meanwhile.
    """
    began, said = clock.monotonic(), ""
    free_at = began
    while clock.monotonic() - began < WAIT_LIMIT_S:
        vm = await store.get(VirtualMachine, name, fresh=True)
        outcome = outcome_of(vm, request)
        if outcome is False:
            report(_explain_failure(vm, request))
            return False
        line = progress_of(vm)
        answered = vm.status.answered is not None and vm.status.answered.id == request.id
        if line != said and (outcome or answered):
            report(line)
            said = line
        if outcome:
            return True
        if not answered or vm.status.reason not in BLOCKED_BY_OTHERS:
            free_at = clock.monotonic()
        elif clock.monotonic() - free_at >= BLOCKED_S:
            break
        await clock.sleep(LOOK_S)
    report(f"{name}: {request.verb} is still not done, and goes on (outlive why {name})")
    return False


def _explain_failure(vm: VirtualMachine, request: Request) -> str:
    answer, what = vm.status.answered, f"{display_name_of(vm)}: {request.verb}"
    if vm.deleting:
        return f"{what} is over: {deletion_of(vm).text}"
    if answer is None or answer.id != request.id:
        return f"{what} was not answered: something else is requested by now (outlive vm info {vm.name})"
    if answer.code == VmRequestCode.FAILED:
        return f"{what} failed on {vm.host}: {answer.message}"
    if answer.code == VmRequestCode.UNKNOWN:
        return f"{what} may have been done or not on {vm.host}: {answer.message}"
    if answer.code not in DONE:
        message = f": {answer.message}" if answer.message else ""
        return f"{what} was refused as {answer.code}{message} (docs/design/node-decisions.md#vmrequest)"
    if state_of(vm) != VmState.FAIL and _is_aborted(vm) and vm.status.migration is not None:
        return f"{what} was called off, and it stays on {vm.host}: {vm.status.migration.message}"
    record = vm.status.recovery
    if state_of(vm) != VmState.FAIL and record is not None and _has_given_up(vm):
        return f"{what} failed, and it waits: {record.message} ({record.remedy})"
    return f"{what} failed on {vm.host}: {vm.status.message} (outlive why {vm.name})"


# Tags and other labels


def tags_of(vm: VirtualMachine) -> dict[str, str]:
    """Name of each of its tags → ``user`` or ``protected``, by name."""
    labels, prefix = vm.metadata.labels, TAG_LABEL_PREFIX
    return {key.removeprefix(prefix): labels[key] for key in sorted(labels) if key.startswith(prefix)}


def tag_labels(names: Iterable[str], *, protected: bool) -> dict[str, str]:
    """Labels of these tags. ``Usage`` for what is no name of a tag."""
    for name in names:
        try:
            check_key(TAG_LABEL_PREFIX + name, "")
        except Invalid:
            remedy = f"at most {WORD_LENGTH_LIMIT} letters, digits, -, _ and ., the first and last a letter or digit"
            raise Usage(f"{name[:80]!r} is no tag", remedy=remedy) from None
    return {TAG_LABEL_PREFIX + name: PROTECTED if protected else "user" for name in names}


def add_tags(labels: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """The labels of a VM and these tags of it; one that is protected stays so."""
    return {**labels, **{key: value for key, value in more.items() if labels.get(key) != PROTECTED}}


async def tag_vm(store: Store, clock: Clock, vm: VirtualMachine, more: Mapping[str, str]) -> VirtualMachine:
    """The VM with these tags besides those that it has."""
    return await _relabel(store, clock, vm, lambda labels: add_tags(labels, more))


async def untag_vm(
    store: Store, clock: Clock, vm: VirtualMachine, names: Collection[str], *, force: bool = False
) -> VirtualMachine:
    """The VM without these tags. ``NotFound`` for one that it has not; ``Refused`` for a protected one without
    ``force``; nothing is removed then."""

    def remove_tags(labels: Mapping[str, str]) -> dict[str, str]:
        for name in names:
            kind = labels.get(TAG_LABEL_PREFIX + name)
            if kind is None:
                raise NotFound(
                    f"{display_name_of(vm)} has no tag {name[:80]!r}", remedy=f"see outlive vm tag list {vm.name}"
                )
            if kind == PROTECTED and not force:
                raise Refused(f"tag {name} of {display_name_of(vm)} is protected", remedy="add --force")
        gone = {TAG_LABEL_PREFIX + name for name in names}
        return {key: value for key, value in labels.items() if key not in gone}

    return await _relabel(store, clock, vm, remove_tags)


async def set_profile(store: Store, clock: Clock, vm: VirtualMachine, profile: str) -> bool:
    """Write down what it was made from (empty: nothing); whether that is another than was there."""

    def change_labels(labels: Mapping[str, str]) -> dict[str, str]:
        others = {key: value for key, value in labels.items() if key != PROFILE_LABEL}
        return {**others, PROFILE_LABEL: profile} if profile else others

    after = await _relabel(store, clock, vm, change_labels)
    return after.metadata.labels.get(PROFILE_LABEL) != vm.metadata.labels.get(PROFILE_LABEL)


async def _relabel(
    store: Store, clock: Clock, vm: VirtualMachine, change: Callable[[Mapping[str, str]], dict[str, str]]
) -> VirtualMachine:
    def apply_change(found: VirtualMachine) -> VirtualMachine:
        return _replace(found, metadata=_replace(found.metadata, labels=change(found.metadata.labels)))

    return await change_vm(store, clock, vm, apply_change)


async def change_vm(
    store: Store, clock: Clock, vm: VirtualMachine, change: Callable[[VirtualMachine], VirtualMachine]
) -> VirtualMachine:
    """The VM after this change of its labels or spec, made to what it is now; ``NotFound``."""

    def apply_change(found: VirtualMachine | None) -> VirtualMachine:
        if found is None:
            raise NotFound(f"there is no VM {vm.name!r}", remedy="see outlive vm list")
        refuse_deleted(found)
        return change(found)

    after = await compare_and_swap(store, VirtualMachine, vm.name, apply_change, clock=clock, half="spec")
    assert after is not None, "a missing VM raises"
    return after


# Devices


async def attach_device(
    store: Store, clock: Clock, ids: Ids, vm: VirtualMachine, device: str, report: Callable[[str], None]
) -> str:
    """Give a VM that runs an interface (an element of domain XML), and keep it in its definition.

    The definition and the request are one write: whatever ends in between, the VM has the interface from its next start
    on at the latest, and its host goes on until it has answered. Where that refuses, and knows that nothing was done,
    the definition is as it was. ``BadInput``; ``Refused`` for a disk, where it does not run, or with what its host
    answered.
    """
    before = _definition_of(vm)
    after, name = with_device(before, device)
    if device_of(after, name).disk:
        raise Refused(NO_DISK, remedy="write it into the definition (outlive vm define), and restart the VM")
    asked = await request_vm(store, clock, ids, vm.name, "attach", device=name, definition=(before, after))
    refusal = await _find_refusal(store, clock, vm, asked.request, report)
    if refusal is not None and not refusal.known:
        undo = f"outlive vm detach {vm.name} {name} takes it out"
        raise Refused(
            f"{display_name_of(vm)} may have been given {name}, and its definition keeps it ({undo}); {refusal.why}"
        )
    if refusal is not None:
        await _redefine(store, clock, vm, after, before, asked.request)
        raise Refused(f"{display_name_of(vm)} was not given {name}, and its definition is as before; {refusal.why}")
    return f"{display_name_of(vm)} has {name}"


async def detach_device(
    store: Store,
    clock: Clock,
    ids: Ids,
    vm: VirtualMachine,
    name: str,
    report: Callable[[str], None],
    *,
    force: bool = False,
) -> str:
    """Take a device away from a VM that runs, and then out of its definition; repeating it is fine after an end in
    between. ``Refused`` as ``without_device``, or with what its host answered; ``NotFound``."""
    before = _definition_of(vm)
    after, device = without_device(before, name, force=force), device_of(before, name).name
    run = running_entry(vm, vm.host)
    asked = await request_vm(store, clock, ids, vm.name, "detach", device=device)
    refusal = await _find_refusal(store, clock, vm, asked.request, report)
    if refusal is not None:
        has = "still has" if refusal.known else "may still have"
        raise Refused(f"{display_name_of(vm)} {has} {device}, as its definition has; {refusal.why}")
    await _redefine(store, clock, vm, before, after, asked.request, run_id=run.run_id if run is not None else "")
    return f"{display_name_of(vm)} has {device} no more"


class _HostRefusal(NamedTuple):
    """That its host did not do it."""

    why: str
    """With what to do about it."""
    known: bool
    """Whether it is certain that nothing was done."""


async def _find_refusal(
    store: Store, clock: Clock, vm: VirtualMachine, request: Request, report: Callable[[str], None]
) -> _HostRefusal | None:
    """``None``: its host did it. ``report`` gets a line before that is waited for."""
    said: list[str] = []
    report(f"{display_name_of(vm)}: {request.verb} is requested as {request.id}; {vm.host} answers")
    if await follow_request(store, clock, vm.name, request, said.append):
        return None
    found = await store.get(VirtualMachine, vm.name, fresh=True)
    answer = found.status.answered
    known = answer is not None and answer.id == request.id and answer.code != VmRequestCode.UNKNOWN
    return _HostRefusal(said[-1], known)


def _definition_of(vm: VirtualMachine) -> str:
    """``Refused`` where it has none, or does not run."""
    if not vm.spec.definition:
        raise Refused(f"{display_name_of(vm)} has no definition", remedy="change spec.disks, and start it again")
    if running_entry(vm, vm.host) is None:
        raise Refused(
            f"{display_name_of(vm)} does not run: {progress_of(vm)}", remedy="change it with outlive vm define"
        )
    return vm.spec.definition


async def _redefine(
    store: Store,
    clock: Clock,
    vm: VirtualMachine,
    before: str,
    after: str,
    request: Request,
    *,
    run_id: str | None = None,
) -> None:
    """Write the definition that follows from the answer to that request.

    ``Refused`` where it was not answered, something else is requested by now, or another run than ``run_id`` has begun,
    which was made of the definition as it is: then the guest may have what the definition has, which never lists less.
    """

    def apply_definition(found: VirtualMachine | None) -> VirtualMachine | None:
        if found is None:
            return None
        answer = found.status.answered
        if found.spec.request != request:
            raise Refused(f"something else is requested of {display_name_of(vm)} by now", remedy="repeat")
        if answer is None or answer.id != request.id:
            raise Refused(
                f"the host of {display_name_of(vm)} has not answered; the request goes on", remedy="repeat later"
            )
        if run_id is not None and any(one.run_id != run_id for one in found.status.holders):
            raise Refused(f"{display_name_of(vm)} was started again meanwhile, and may have it", remedy="repeat")
        return replace_definition(found, before, after)

    await compare_and_swap(store, VirtualMachine, vm.name, apply_definition, clock=clock, half="spec")


# Names, and the end


async def check_name_is_free(store: Store, vm: str, name: str) -> None:
    """``Refused`` where another VM than ``vm`` is called so."""
    async for one in list_all(store, VirtualMachine):
        if one.name != vm and name in (one.name, one.spec.display_name):
            raise Refused(f"{one.name} is called {name!r} already", remedy="choose another name")


async def check_size(store: Store, vm: VirtualMachine, target: str = "") -> None:
    """``Refused`` where every host that it may run on is too small for it; ``target``: the one where it begins."""
    definition, why = parse(vm.spec.definition), ""
    async for host in list_all(store, Hypervisor):
        may = host.name == target if target else not vm.allowed_hosts or host.name in vm.allowed_hosts
        if not may or host.spec.management != "node":
            continue
        has = host.status.capacity or Amounts()
        problem = host_problem(definition, has.memory_bytes, has.cpu_milli // 1000)
        if not problem:
            return
        why = why or f"on {host.name} {problem}"
    if why:
        raise Refused(
            f"{display_name_of(vm)} is too large for every host that it may run on: {why}", remedy="make it smaller"
        )


async def rename_vm(store: Store, clock: Clock, vm: VirtualMachine, name: str) -> str:
    """Give a VM that rests another display name. ``BadInput`` for what is none; ``Refused`` where it is taken, or the
    VM does not rest."""
    try:
        check_name(name)
    except BadInput as error:
        raise BadInput(error.message, place="NAME", remedy=error.remedy) from None
    await check_name_is_free(store, vm.name, name)

    def set_name(found: VirtualMachine | None) -> VirtualMachine:
        if found is None:
            raise NotFound(f"there is no VM {vm.name!r}", remedy="see outlive vm list")
        if not is_at_rest(found):
            raise Refused(
                f"{display_name_of(found)} is not stopped: {progress_of(found)}",
                remedy=f"first: outlive vm stop {vm.name} --wait",
            )
        return _replace(found, spec=_replace(found.spec, display_name=name))

    await compare_and_swap(store, VirtualMachine, vm.name, set_name, clock=clock, half="spec")
    return f"{vm.name} is called {name} now; it was {display_name_of(vm)}"


async def undefine_vm(store: Store, clock: Clock, ids: Ids, vm: VirtualMachine, report: Callable[[str], None]) -> str:
    """Stop the VM where it does not rest, then delete it, and wait a moment until it has gone; its disks stay.

    ``Refused`` where it was not stopped, ``Conflict`` where it changed before it was deleted; nothing is deleted then.
    """
    if vm.deleting:
        return deletion_of(vm).text
    if not is_at_rest(vm):
        asked = await request_vm(store, clock, ids, vm.name, "stop")
        if not await follow_request(store, clock, vm.name, asked.request, report):
            raise Refused(
                f"{display_name_of(vm)} was not stopped, and is kept", remedy=f"outlive why {vm.name} says more"
            )
    found = await store.get(VirtualMachine, vm.name, fresh=True)
    if not is_at_rest(found):
        raise Refused(f"{display_name_of(vm)} is to run again, and is kept", remedy="find out who asked, and repeat")
    await store.delete(found.ref, uid=found.metadata.uid, version=found.metadata.resource_version)
    with contextlib.suppress(NotFound):
        await store.delete(ObjectRef(kind=Console.kind(), name=vm.name))
    disks = join_parts(found.spec.disks, most=NAMED)
    left: VirtualMachine | None = found
    until_s = clock.monotonic() + GONE_S
    while clock.monotonic() < until_s:
        left = await read(store, VirtualMachine, vm.name)
        if left is None or not left.deleting:
            break
        await clock.sleep(LOOK_S)
    done = deletion_of(left).text if left is not None and left.deleting else f"{display_name_of(vm)} is undefined"
    return done + (f"; its disks stay: {disks}" if disks else "")
