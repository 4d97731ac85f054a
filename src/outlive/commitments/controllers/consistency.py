"""Looks now and then for what Limes, commitments, slots, hosts and the list of VMs say differently.

Each class has a gauge; one that lasts is a fault. Classes with a safe repair are repaired when somebody asks, or always
where the settings say so (docs/reference/commitments.md#consistency).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

from outlive.base.clock import Clock, as_instant
from outlive.base.errors import Unavailable
from outlive.base.logging import get_logger
from outlive.commitments.application import ChangeApplier, swap_cached
from outlive.commitments.consistency import (
    OWNERS,
    ConsistencyInput,
    ConsistencyResult,
    Disagreement,
    Kind,
    Repair,
    VmFacts,
    compare,
)
from outlive.commitments.names import commitment_name
from outlive.commitments.ports import Offload
from outlive.commitments.settings import CommitmentSettings
from outlive.commitments.state import Commitment
from outlive.commitments.sync import WRITTEN_DOWN_S
from outlive.commitments.verification import without_vms
from outlive.commitments.view import CommitmentView
from outlive.commitments.vm_table import YIELD_EVERY
from outlive.resources import COMMITTED, CommittedResource, ObjectRef, Reservation, SlotChange
from outlive.resources.reasons.faults import FaultCode
from outlive.runtime.controller import Requeue
from outlive.runtime.faults import ActiveFault, FaultRecorder
from outlive.runtime.metrics import Metrics
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
    """What Limes listed the last time, from whoever asks it."""

    @property
    def asked_at(self) -> float:
        """When it was asked for that, in seconds since 1970."""
        ...

    def last(self) -> tuple[dict[str, Commitment], tuple[str, ...]] | None:
        """Uuid → commitment, and uuids that it lists and that could not be read; ``None``: it did not answer whole."""
        ...

    def ask_again(self) -> None:
        """Bring commitments to what Limes lists, soon."""
        ...


class Wakers(Protocol):
    """The controllers that repair, by what their keys are."""

    def commitment(self, name: str) -> None:
        """Work out the slots of a commitment."""
        ...

    def slot(self, name: str) -> None:
        """Place a slot, or verify its VMs."""
        ...

    def usage(self, project: str) -> None:
        """Count a project, whenever it was counted last."""
        ...


class ConsistencyController:
    """See the module."""

    name = "commitment-consistency"

    def __init__(
        self,
        store: Store,
        view: CommitmentView,
        applier: ChangeApplier,
        settings: CommitmentSettings,
        wakers: Wakers,
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
        self._wakers = wakers
        self._unapplied = unapplied
        self._moving = moving
        self._faults = faults
        self._offload = offload
        self._clock = clock
        self.listing: LimesListing | None = None
        """Who asks Limes; nobody is not an error: nothing is compared with it then."""
        self._since: dict[tuple[Kind, str, str], float] = {}
        """Disagreement → when it was seen first."""
        self._changed: dict[str, float] = {}
        """Uuid → when its commitment was made, changed or deleted, in seconds since 1970."""
        self._counts = metrics.gauge(
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

    def _listed(self) -> tuple[dict[str, Commitment] | None, tuple[str, ...]]:
        """What Limes lists, without commitments that changed since it was asked, or shortly before: it writes down what
        we accepted after our answer."""
        listed = self.listing.last() if self.listing is not None else None
        if self.listing is None or listed is None:
            return None, ()
        begun = self.listing.asked_at - WRITTEN_DOWN_S
        self._changed = {uuid: at for uuid, at in self._changed.items() if at >= begun}
        found = {uuid: one for uuid, one in listed[0].items() if uuid not in self._changed}
        return found, (*listed[1], *self._changed)

    async def reconcile(self, _key: str) -> Requeue | None:
        """Look, show, and repair what is to be repaired without asking."""
        result = await self.look()
        self._show(result)
        await self._record(result)
        if self._settings.enable_consistency_repair:
            await self._repair_all(self._lasting(result.disagreements))
        return Requeue(self._settings.consistency_interval)

    async def look(self) -> ConsistencyResult:
        """Everything that is said differently now."""
        given = await self._observe()
        return await self._offload(lambda: compare(given))

    async def repair(self, kinds: Collection[Kind] = frozenset(Kind)) -> tuple[Disagreement, ...]:
        """Repair what is safe of these classes, and say what that was."""
        result = await self.look()
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
        for number, vm in enumerate(list(vms.all().values()) if facts is not None else (), 1):
            assert facts is not None
            facts[vm.id] = VmFacts(host=vm.host, project=vm.project)
            if number % YIELD_EVERY == 0:
                await self._clock.sleep(0)
        slots = tuple(one for one in informers.reservations.items() if one.spec.type == COMMITTED)
        listed, protected = self._listed()
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

    def _lasting(self, disagreements: Iterable[Disagreement]) -> list[Disagreement]:
        """Those that no controller has repaired for as long as something may be new."""
        before = self._clock.monotonic() - self._settings.allocation_grace_period
        return [one for one in disagreements if self._since.get(_key_of(one), before + 1.0) <= before]

    async def _record(self, result: ConsistencyResult) -> None:
        """A fault for each class that lasts."""
        if self._faults is None:
            return
        lasting: dict[Kind, list[Disagreement]] = {}
        for one in self._lasting(result.disagreements):
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

    async def _repair_all(self, disagreements: Iterable[Disagreement]) -> tuple[Disagreement, ...]:
        safe = [one for one in disagreements if one.safe][:REPAIRS_LIMIT]
        for one in safe:
            await self._repair(one)
            _log.info("commitments.repaired", kind=one.kind, subject=one.subject, vm=one.vm, repair=one.repair)
        return tuple(safe)

    async def _repair(self, one: Disagreement) -> None:
        match one.repair:
            case Repair.SYNC:
                if self.listing is not None:
                    self.listing.ask_again()
            case Repair.RECONCILE:
                self._wakers.commitment(self._commitment_of(one))
            case Repair.VERIFY_SLOT:
                self._wakers.slot(one.subject)
            case Repair.DELETE_SLOT:
                await self._applier.delete_slots((SlotChange(name=one.subject, deleted=True),))
            case Repair.DROP_ALLOCATION:
                await self._drop(one.subject, one.vm)
            case Repair.COUNT_USAGE:
                found = self._view.commitment(one.subject)
                if found is not None:
                    self._wakers.usage(found.spec.project_id)
            case None:
                raise AssertionError("only what is safe is repaired")

    def _commitment_of(self, one: Disagreement) -> str:
        """The name of the commitment that a disagreement is about: its own, or that of a slot."""
        slot = self._view.informers.reservations.get(one.subject) if one.kind is Kind.SLOT_DIFFERS else None
        details = slot.spec.committed_resource_reservation if slot is not None else None
        return commitment_name(details.commitment_uuid if details is not None else one.subject)

    async def _drop(self, slot: str, vm: str) -> None:
        def without(found: Reservation | None) -> Reservation | None:
            return None if found is None else without_vms(found, frozenset((vm,)))

        cache = self._view.informers.reservations
        await swap_cached(self._store, Reservation, slot, without, cache, "spec", clock=self._clock)
        await swap_cached(self._store, Reservation, slot, without, cache, "status", clock=self._clock)


def _key_of(one: Disagreement) -> tuple[Kind, str, str]:
    return one.kind, one.subject, one.vm
