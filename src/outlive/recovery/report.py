"""What recovery reports: events on the VM, structured logs, metrics, and faults where somebody has to act.

Times are measured on this process's own clock from when it first saw the fact; after a change of leader a VM that
was under way is counted from then on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from outlive.base import Clock, get_logger, shown_time
from outlive.failover.report import Events
from outlive.recovery.model import ActionKind, RecoveryAction, RecoveryPlan, RecoveryView
from outlive.recovery.states import summary_of, was_sent
from outlive.resources import Hypervisor, Proof, VirtualMachine
from outlive.resources.reasons import Reason, StepReason, render
from outlive.runtime import Metrics

SECONDS: Final = (0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 12.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_log = get_logger("recovery")


class RecoveryReporter:
    """See the module."""

    def __init__(self, events: Events, metrics: Metrics, clock: Clock, wake_faults: Callable[[], None]) -> None:
        self._events = events
        self._wake_faults = wake_faults
        self._clock = clock
        self._concerned_at: dict[str, float] = {}
        self._fenced_at: dict[str, float] = {}
        self._recovered = metrics.add_counter(
            "recovery_recovered_total", "VMs seen running again after their host died, by where they went", ("into",)
        )
        self._rejected = metrics.add_counter("recovery_rejections_total", "Hosts that refused or did not start a VM")
        self._waiting = metrics.add_gauge("recovery_waiting", "VMs that wait for an operator, by reason", ("reason",))
        self._under_way = metrics.add_gauge("recovery_under_way", "VMs whose recovery has begun and is not over")
        self._seconds = metrics.add_histogram(
            "recovery_seconds", "From the first sign of trouble to the VM seen running", buckets=SECONDS
        )
        self._from_proof = metrics.add_histogram(
            "recovery_from_proof_seconds",
            "From the proof that its host is dead to the VM seen running",
            buckets=SECONDS,
        )
        self._reasons: set[str] = set()

    def report_plan(self, view: RecoveryView, plan: RecoveryPlan) -> None:
        """A plan was made."""
        now = self._clock.monotonic()
        for vm in view.vms:
            self._concerned_at.setdefault(vm.id, now)
            if all(holder.fenced for holder in vm.holders):
                self._fenced_at.setdefault(vm.id, now)
            elif not vm.unfinished:
                self._fenced_at.pop(vm.id, None)
        here = {vm.id for vm in view.vms}
        for times in (self._concerned_at, self._fenced_at):
            for vm_id in [one for one in times if one not in here]:
                del times[vm_id]
        held = Counter(action.reason.code for action in plan.actions if action.kind is ActionKind.HOLD)
        for reason in sorted(self._reasons | held.keys()):
            self._waiting.labels(reason).set(held[reason])
        self._reasons |= held.keys()
        self._under_way.set(sum(1 for vm in view.vms if vm.unfinished))

    def report_assigned(
        self, before: VirtualMachine, vm: VirtualMachine, action: RecoveryAction, proofs: Sequence[Proof]
    ) -> None:
        """The VM was sent to a host."""
        if vm.status.recovery is not None and before.status.recovery is not None:
            news = len(vm.status.recovery.rejected) - len(before.status.recovery.rejected)
            self._rejected.inc(max(0, news))
        said = "; ".join((render(summary_of(vm)).text, *(f"{proof.kind}: {proof.evidence}" for proof in proofs)))
        self._events.emit(vm.ref, "RecoveryAssigned", said[:1000], type="Normal", action="Recover")
        _log.info(
            "recovery.assigned",
            vm=vm.name,
            host=action.host,
            slot=action.slot,
            fence=action.fence,
            proofs=[proof.kind for proof in proofs],
            detail=action.message.text,
        )
        self._report_release(before)

    def report_soft_rules(self, vm: VirtualMachine, rules: Iterable[Reason]) -> None:
        """The VM came to a host, by any way, and goes against these soft rules there."""
        for one in rules:
            said = render(one)
            self._events.emit(vm.ref, "AgainstSoftRule", said.text, type="Warning", action="Move")
            _log.warning("vm.against_rule", vm=vm.name, host=vm.host, rule=one.code, why=said.text)

    def report_held(self, vm: VirtualMachine, action: RecoveryAction) -> None:
        """The VM waits for somebody to act."""
        said = action.message
        self._events.emit(vm.ref, "RecoveryHeld", f"{said.text}; {said.remedy}", type="Warning", action="Recover")
        _log.warning("recovery.held", vm=vm.name, reason=action.reason.code, message=said.text, remedy=said.remedy)
        self._wake_faults()

    def report_quarantine(self, host: Hypervisor) -> None:
        """A host came into quarantine, or out of it."""
        now = host.status.quarantine
        if now is None:
            self._events.emit(
                host.ref, "QuarantineEnded", f"{host.name} takes VMs again", type="Normal", action="Quarantine"
            )
        else:
            said = f"{host.name} died {now.deaths} times and takes no VM until {shown_time(now.until)}"
            self._events.emit(host.ref, "Quarantined", said, type="Warning", action="Quarantine")
        _log.warning("recovery.quarantine", host=host.name, until=now.until if now is not None else None)
        self._wake_faults()

    def report_storage(self, vm: VirtualMachine, *, lost: bool) -> None:
        """Storage does not serve the VM any more, or does again."""
        if lost:
            self._events.emit(vm.ref, "StorageLost", vm.status.message[:1000], type="Warning", action="Watch")
        else:
            self._events.emit(vm.ref, "StorageBack", "its disks serve it again", type="Normal", action="Watch")

    def report_dropped(self, before: VirtualMachine, vm: VirtualMachine, proofs: Sequence[Proof]) -> None:
        """Nobody wants the VM, and nothing of it is left."""
        _log.info("recovery.dropped", vm=vm.name, proofs=[proof.kind for proof in proofs])
        self._report_release(before)

    def report_recovered(self, before: VirtualMachine, vm: VirtualMachine) -> None:
        """The VM was seen running."""
        record = vm.status.recovery
        if record is None:
            return
        into = "slot" if record.slot else "placed" if was_sent(record) else "own-host"
        now = self._clock.monotonic()
        took_s = now - self._concerned_at.pop(vm.name, now)
        from_proof_s = now - self._fenced_at.pop(vm.name, now)
        self._recovered.labels(into).inc()
        self._seconds.observe(took_s)
        self._from_proof.observe(from_proof_s)
        self._events.emit(vm.ref, "Recovered", render(summary_of(vm)).text, type="Normal", action="Recover")
        _log.info(
            "recovery.done",
            vm=vm.name,
            host=record.host,
            slot=record.slot,
            fence=record.fence,
            promised=record.promised,
            took_s=round(took_s, 3),
            from_proof_s=round(from_proof_s, 3),
        )
        self._report_release(before)

    def _report_release(self, before: VirtualMachine) -> None:
        """The VM is not held any more."""
        if any(
            step.what == StepReason.HELD for step in (before.status.recovery.steps if before.status.recovery else ())
        ):
            self._wake_faults()
