"""The record that a VM keeps of its recovery: what was done when, by which proofs, and why it is held.

Records are for people and for ``outlive why``; nothing that safety rests on is read from them. They are written
in the same compare-and-swap as the step that they tell of, so they never tell of something that did not happen.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec

from outlive.recovery.model import MOVED_THERE, Action
from outlive.resources import Proof, Recovery, RecoveryStep, Rejection, VirtualMachine
from outlive.resources.vms import RECOVERY_STEPS

REJECTIONS_KEPT: Final = 16
"""Refusals that a record remembers; older ones are forgotten, and their hosts may be asked again."""

_replace = msgspec.structs.replace


def unfinished(vm: VirtualMachine) -> bool:
    """Whether a recovery of the VM was begun and has not ended."""
    return vm.status.recovery is not None and vm.status.recovery.unfinished


def record_of(vm: VirtualMachine, action: Action) -> Recovery:
    """The record of the recovery that the action belongs to: the present one, or a new one."""
    known = vm.status.recovery
    if known is not None and known.unfinished:
        return known
    return Recovery(fence=action.fence, origin=_origin(vm))


def _origin(vm: VirtualMachine) -> str:
    """The host that it was lost on: its own holder's, else where it was assigned."""
    owners = [holder.hypervisor for holder in vm.status.holders if holder.role == ""]
    if owners:
        return owners[0]
    return vm.status.assigned.hypervisor if vm.status.assigned is not None else ""


def with_step(record: Recovery, at: datetime, what: str, detail: str = "") -> Recovery:
    """The record with one more step; of too many the ones in the middle go."""
    steps = (*record.steps, RecoveryStep(at=at, what=what, detail=detail))
    if len(steps) > RECOVERY_STEPS:
        first = RECOVERY_STEPS // 2
        steps = (*steps[:first], *steps[first + 1 :])
    return _replace(record, steps=steps)


def held(vm: VirtualMachine, action: Action, at: datetime) -> Recovery:
    """The VM waits, for this reason."""
    record = _replace(record_of(vm, action), phase="held", reason=_reason(action), remedy=action.remedy)
    return with_step(record, at, "held", _reason(action))


def says(record: Recovery | None, action: Action) -> bool:
    """Whether the record says already what the hold says."""
    return record is not None and (record.phase, record.reason, record.remedy) == (
        "held",
        _reason(action),
        action.remedy,
    )


def assigned(vm: VirtualMachine, action: Action, proofs: Iterable[Proof], at: datetime, *, forgiven: bool) -> Recovery:
    """The VM was sent to another host; ``forgiven``: who refused it before may be asked again."""
    proofs = tuple(proofs)
    record = record_of(vm, action)
    refusal = refusal_of(vm, record)
    if refusal is not None:
        record = with_step(record, at, "rejected", f"{refusal.hypervisor}: {refusal.reason}")
    rejected = () if forgiven else (*record.rejected, *((refusal,) if refusal is not None else ()))
    for proof in proofs:
        record = with_step(record, at, "mute", f"{proof.kind}: {proof.evidence}")
    if action.slot:
        record = with_step(record, at, "claimed", f"slot {action.slot}")
    elif action.reason == MOVED_THERE:
        record = with_step(record, at, "kept", action.detail)
    record = with_step(record, at, "assigned", action.host)
    return _replace(
        record,
        fence=action.fence,
        phase="assigned",
        slot=action.slot,
        host=action.host,
        promised=bool(action.slot),
        reason="",
        remedy="",
        proofs=proofs or record.proofs,
        rejected=rejected[-REJECTIONS_KEPT:],
    )


def refusal_of(vm: VirtualMachine, record: Recovery) -> Rejection | None:
    """Why the VM leaves the host that it was sent to before: it refused, or did not start it."""
    status = vm.status
    now = status.assigned
    if record.phase not in ("assigned", "held") or now is None or record.host != now.hypervisor:
        return None
    said = status.rejection
    if said is not None and not said.stays and said.hypervisor == now.hypervisor and said.fence in ("", now.fence):
        return said
    return Rejection(hypervisor=now.hypervisor, fence=now.fence, reason="it did not start the VM, or died before")


def recovered(vm: VirtualMachine, action: Action, at: datetime) -> Recovery:
    """The VM was seen running."""
    record = record_of(vm, action)
    sent = record.host == action.host
    record = with_step(record, at, "running", action.host)
    return _replace(
        record,
        phase="recovered",
        host=action.host,
        slot=record.slot if sent else "",
        promised=record.promised and sent,
        reason="",
        remedy="",
    )


def dropped(vm: VirtualMachine, action: Action, proofs: Iterable[Proof], at: datetime) -> Recovery:
    """Nobody wants it to run, and nothing of it is left."""
    proofs = tuple(proofs)
    record = record_of(vm, action)
    for proof in proofs:
        record = with_step(record, at, "mute", f"{proof.kind}: {proof.evidence}")
    record = with_step(record, at, "dropped", action.detail)
    return _replace(record, phase="dropped", reason="", remedy="", proofs=proofs or record.proofs)


def _reason(action: Action) -> str:
    return f"{action.reason}: {action.detail}" if action.detail else action.reason
