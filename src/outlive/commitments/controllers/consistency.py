"""Looks now and then for what Limes, commitments, slots, hosts and the list of VMs say differently.

Each class has a gauge; one that lasts is a fault. Classes with a safe repair are repaired when somebody asks, or always
where the settings say so (docs/reference/commitments.md#consistency).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

from outlive.base import Clock, Unavailable, as_instant, get_logger
from outlive.commitments.application import ChangeApplier, swap_cached
from outlive.commitments.consistency import (
    OWNERS,
    CommitmentDisagreement,
    ConsistencyInput,
    ConsistencyResult,
    DisagreementKind,
    Repair,
    VmFacts,
    compare,
)
from outlive.commitments.controllers.usage import UsageController
from outlive.commitments.names import commitment_name
from outlive.commitments.ports import Offload
from outlive.commitments.settings import CommitmentSettings
from outlive.commitments.state import Commitment
from outlive.commitments.sync import WRITTEN_DOWN_S
from outlive.commitments.verification import without_vms
from outlive.commitments.view import CommitmentView
from outlive.commitments.vm_table import YIELD_EVERY
from outlive.resources import COMMITTED, CommittedResource, ObjectRef, Reservation, SlotChange
from outlive.resources.reasons import FaultCode
from outlive.runtime import ActiveFault, ControllerRun, FaultRecorder, Metrics, Requeue
from outlive.store import Store

AUDIT: Final = "consistency"
"""The only key."""
REPAIRS_LIMIT: Final = 1_000
"""Disagreements that one look repairs at most; the next look repairs more."""
CHANGED_LIMIT: Final = 100_000
"""Commitments of which it is remembered that they changed after Limes was asked; older changes are forgotten beyond it.
"""
LOGGED: Final = 10
"""Disagreements of a class that the log names when they are new."""

_log = get_logger("commitments.consistency")


class LimesListing(Protocol):
    """What Limes listed the last time, from the controller that asks it."""

    @property
    def asked_at(self) -> float:
        """When it was asked for that, in seconds since 1970."""
        ...

    def last_listing(self) -> tuple[dict[str, Commitment], tuple[str, ...]] | None:
        """Uuid → commitment, and uuids that it lists and that could not be read; ``None``: it did not answer whole."""
        ...

    def request_sync(self) -> None:
        """Bring commitments to what Limes lists, soon."""
        ...


class RepairRuns:
    """The running controllers that repair, by what their keys are."""

    def __init__(self, usage: UsageController) -> None:
        self._usage = usage
        self.commitments: ControllerRun | None = None
        self.slots: ControllerRun | None = None
        self.usages: ControllerRun | None = None

    def wake_commitment(self, name: str) -> None:
        """Work out the slots of a commitment."""
        if self.commitments is not None:
            self.commitments.add(name)

    def wake_slot(self, name: str) -> None:
        """Place a slot, or verify its VMs."""
        if self.slots is not None:
            self.slots.add(name)

    def wake_usage(self, project: str) -> None:
        """Count a project, whenever it was counted last."""
        self._usage.ask(project)
        if self.usages is not None:
            self.usages.add(project)


class ConsistencyController:
    """See the module."""

    name = "commitment-consistency"

    def __init__(
        self,
        store: Store,
        view: CommitmentView,
        applier: ChangeApplier,
        settings: CommitmentSettings,
        runs: RepairRuns,
        *,
        unapplied: Mapping[str, str],
        moving: Callable[[Iterable[str]], tuple[str, ...]],
        faults: FaultRecorder | None,
        offload: Offload,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._view = view
        self._applier = applier
        self._settings = settings
        self._runs = runs
        self._unapplied = unapplied
        self._moving = moving
        self._faults = faults
        self._offload = offload
        self._clock = clock
        self.listing: LimesListing | None = None
        """Who asks Limes; nobody is not an error: nothing is compared with it then."""
        self._since: dict[tuple[DisagreementKind, str, str], float] = {}
        """Disagreement → when it was seen first."""
        self._changed: dict[str, float] = {}
        """Uuid → when its commitment was made, changed or deleted, in seconds since 1970."""
        self._counts = metrics.add_gauge(
            "committed_resource_disagreements", "What is said differently of commitments", ("class", "owner")
        )

    def on_commitment(self, old: CommittedResource | None, new: CommittedResource | None) -> None:
        """A commitment that is made, changed or deleted: what Limes listed of it before says nothing of it now."""
        one = new if new is not None else old
        if one is None or (old is not None and new is not None and old.spec == new.spec):
            return
        created = one.metadata.creation_timestamp
        uuid = one.spec.commitment_uuid
        self._changed.pop(uuid, None)  # the latest last
        self._changed[uuid] = as_instant(created) if old is None and created is not None else self._clock.now()
        while len(self._changed) > CHANGED_LIMIT:
            del self._changed[next(iter(self._changed))]

    def _list_unchanged(self) -> tuple[dict[str, Commitment] | None, tuple[str, ...]]:
        """What Limes lists, without commitments that changed since it was asked, or shortly before: it writes down what
        we accepted after our answer."""
        listed = self.listing.last_listing() if self.listing is not None else None
        if self.listing is None or listed is None:
            return None, ()
        begun = self.listing.asked_at - WRITTEN_DOWN_S
        self._changed = {uuid: at for uuid, at in self._changed.items() if at >= begun}
        found = {uuid: one for uuid, one in listed[0].items() if uuid not in self._changed}
        return found, (*listed[1], *self._changed)

    async def reconcile(self, _key: str) -> Requeue | None:
        """Look, show, and repair what is to be repaired without asking."""
        result = await self.find_disagreements()
        self._show(result)
        await self._record(result)
        if self._settings.enable_consistency_repair:
            await self._repair_all(self._filter_lasting(result.disagreements))
        return Requeue(self._settings.consistency_interval)

    async def find_disagreements(self) -> ConsistencyResult:
        """Everything that is said differently now."""
        given = await self._observe()
        return await self._offload(lambda: compare(given))

    async def repair(
        self, kinds: Collection[DisagreementKind] = frozenset(DisagreementKind)
    ) -> tuple[CommitmentDisagreement, ...]:
        """Repair what is safe of these classes, and say what that was."""
        result = await self.find_disagreements()
        return await self._repair_all(one for one in result.disagreements if one.kind in kinds)

    # Observation

    async def _observe(self) -> ConsistencyInput:
        informers, vms = self._view.informers, self._view.vms
        instances: dict[str, tuple[str, ...]] = {}
        for number, host in enumerate(informers.hypervisors.items(), 1):
            instances[host.name] = tuple(one.id for one in host.status.instances)
            if number % YIELD_EVERY == 0:
                await self._clock.sleep(0)
        facts: dict[str, VmFacts] | None = {}
        try:
            vms.check()
        except Unavailable:
            facts = None
        for number, vm in enumerate(list(vms.vms_by_id().values()) if facts is not None else (), 1):
            assert facts is not None
            facts[vm.id] = VmFacts(host=vm.host, project=vm.project)
            if number % YIELD_EVERY == 0:
                await self._clock.sleep(0)
        slots = tuple(one for one in informers.reservations.items() if one.spec.type == COMMITTED)
        listed, protected = self._list_unchanged()
        return ConsistencyInput(
            listed=listed,
            protected=protected,
            unapplied=dict(self._unapplied),
            commitments=tuple(informers.commitments.items()),
            slots=slots,
            instances=instances,
            vms=facts,
            moving=self._moving(facts if facts is not None else ()),
            now=self._clock.now(),
            grace_s=self._settings.allocation_grace_period,
        )

    # What is shown

    def _show(self, result: ConsistencyResult) -> None:
        now = self._clock.monotonic()
        for kind, count in result.counts.items():
            self._counts.labels(kind, OWNERS[kind]).set(count)
        found = {_key_of(one): one for one in result.disagreements}
        new = [one for key, one in found.items() if key not in self._since]
        self._since = {key: self._since.get(key, now) for key in found}
        for one in new[:LOGGED]:
            _log.warning(
                "commitments.disagree", kind=one.kind, owner=one.owner, subject=one.subject, vm=one.vm, why=one.detail
            )

    def _filter_lasting(self, disagreements: Iterable[CommitmentDisagreement]) -> list[CommitmentDisagreement]:
        """Those that no controller has repaired for as long as something may be new."""
        before = self._clock.monotonic() - self._settings.allocation_grace_period
        return [one for one in disagreements if self._since.get(_key_of(one), before + 1.0) <= before]

    async def _record(self, result: ConsistencyResult) -> None:
        """A fault for each class that lasts."""
        if self._faults is None:
            return
        lasting: dict[DisagreementKind, list[CommitmentDisagreement]] = {}
        for one in self._filter_lasting(result.disagreements):
            lasting.setdefault(one.kind, []).append(one)
        await self._faults.record(
            ActiveFault(
                FaultCode.COMMITMENTS_DISAGREE,
                ObjectRef(kind="CommittedResource", name=kind),
                {
                    "count": len(found),
                    "first": found[0].subject,
                    "why": found[0].detail,
                    "owner": found[0].owner,
                    "safe": found[0].safe,
                },
            )
            for kind, found in sorted(lasting.items())
        )

    # Repairs

    async def _repair_all(self, disagreements: Iterable[CommitmentDisagreement]) -> tuple[CommitmentDisagreement, ...]:
        safe = [one for one in disagreements if one.safe][:REPAIRS_LIMIT]
        for one in safe:
            match one.repair:
                case Repair.SYNC:
                    if self.listing is not None:
                        self.listing.request_sync()
                case Repair.RECONCILE:  # the commitment that it is about, or that of the slot
                    differs = one.kind is DisagreementKind.SLOT_DIFFERS
                    slot = self._view.informers.reservations.get(one.subject) if differs else None
                    details = slot.spec.committed_resource_reservation if slot is not None else None
                    uuid = details.commitment_uuid if details is not None else one.subject
                    self._runs.wake_commitment(commitment_name(uuid))
                case Repair.VERIFY_SLOT:
                    self._runs.wake_slot(one.subject)
                case Repair.DELETE_SLOT:
                    await self._applier.delete_slots((SlotChange(name=one.subject, deleted=True),))
                case Repair.DROP_ALLOCATION:
                    await self._drop(one.subject, one.vm)
                case Repair.COUNT_USAGE:
                    found = self._view.find_commitment(one.subject)
                    if found is not None:
                        self._runs.wake_usage(found.spec.project_id)
                case None:
                    raise AssertionError("only what is safe is repaired")
            _log.info("commitments.repaired", kind=one.kind, subject=one.subject, vm=one.vm, repair=one.repair)
        return tuple(safe)

    async def _drop(self, slot: str, vm: str) -> None:
        def remove_vm(found: Reservation | None) -> Reservation | None:
            return None if found is None else without_vms(found, frozenset((vm,)))

        cache = self._view.informers.reservations
        await swap_cached(self._store, Reservation, slot, remove_vm, cache, "spec", clock=self._clock)
        await swap_cached(self._store, Reservation, slot, remove_vm, cache, "status", clock=self._clock)


def _key_of(one: CommitmentDisagreement) -> tuple[DisagreementKind, str, str]:
    return one.kind, one.subject, one.vm
