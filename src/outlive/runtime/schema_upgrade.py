"""Brings the store to the storage schema that operators and hosts want, one step after the other.

The elected controller runs it. Every controller also finishes a change of the tree that somebody else has begun and
left: while that is open nobody may be able to win an election (docs/how-to/upgrades.md).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec

from outlive.base import Clock, OutliveError, as_datetime, as_instant, get_logger
from outlive.resources import (
    CLUSTER,
    SCHEMA_STEPS,
    Cluster,
    ClusterSchema,
    ClusterStatus,
    Hypervisor,
    Membership,
    ObjectRef,
    SchemaHold,
    SchemaStep,
)
from outlive.resources.reasons import FaultCode, Value
from outlive.runtime.decisions import DecisionLog
from outlive.runtime.faults import ActiveFault, FaultRecorder
from outlive.runtime.informer import Informer
from outlive.runtime.periodic import Periodic
from outlive.runtime.schema_steps import (
    SCHEMA_STEP,
    SchemaAction,
    SchemaHost,
    SchemaObservation,
    SchemaStepResult,
    next_schema_step,
)
from outlive.store import Store, change_status, read
from outlive.store.schema import MoveUndone, SchemaState, SchemaStorage, latest_version

LOOK_S: Final = 2.0
"""How often it is looked."""
SOON_S: Final = 0.2
"""The pause after a step that was done, and before a change is tried again whose store did not answer."""
RETRY_S: Final = 1.0
"""The pause before it looks again after another error."""
AGAIN_S: Final = 60.0
"""The pause before a change is tried again that took too long."""
STEPS: Final = 100
"""Steps that follow each other without a pause in between at most."""

_replace = msgspec.structs.replace
_log = get_logger("schema")


class SchemaUpgrade:
    """See the module. ``leads``: whether this process is elected; ``latest`` is the newest schema that it knows."""

    def __init__(
        self,
        store: Store,
        storage: SchemaStorage,
        hypervisors: Informer[Hypervisor],
        memberships: Informer[Membership],
        *,
        by: str,
        leads: Callable[[], bool],
        faults: FaultRecorder,
        decisions: DecisionLog,
        clock: Clock,
        latest: int | None = None,
    ) -> None:
        self._store = store
        self._storage = storage
        self._hypervisors = hypervisors
        self._memberships = memberships
        self._by = by
        self._leads = leads
        self._faults = faults
        self._decisions = decisions
        self._clock = clock
        self._latest = latest_version() if latest is None else latest
        self._reports = True
        """Whether a fault of this may be active."""
        self._stuck: dict[str, Value] = {}
        """Of the last change that did not come to its end: where it led, and why."""

    async def run(self) -> None:
        """Until cancelled."""
        await Periodic(self._upgrade_once, LOOK_S, clock=self._clock).run()

    async def _upgrade_once(self) -> float:
        try:
            state = await self._storage.read_state()
            if state.moving is not None:
                await self._storage.run(state.moving.target)
                return SOON_S  # another process may have begun it: writers wait for its end
            if self._leads() and self._hypervisors.synced and self._memberships.synced:
                return await self._advance(state)
        except OutliveError as error:
            _log.warning("schema.put_off", error=str(error))
            if "why" in self._stuck:  # the next look that finds nothing to do ends the fault
                about = ObjectRef(kind="Cluster", name=CLUSTER)
                await self._faults.record([ActiveFault(FaultCode.SCHEMA_UPGRADE_STUCK, about, self._stuck)])
                self._reports = True
            return AGAIN_S if isinstance(error, MoveUndone) else RETRY_S
        return LOOK_S

    async def _advance(self, state: SchemaState) -> float:
        """Take the steps that can be taken now; the pause before the next look."""
        for _ in range(STEPS):
            cluster = await read(self._store, Cluster, CLUSTER)
            if cluster is None:
                return LOOK_S
            seen = self._observe(state, cluster)
            result = next_schema_step(seen)
            if not SCHEMA_STEP.is_empty(result):
                self._decisions.use(SCHEMA_STEP, seen)
            if not await self._take(state, result):
                await self._report(state, cluster, result)
                return LOOK_S
            state = await self._storage.read_state()
        return SOON_S

    def _observe(self, state: SchemaState, cluster: Cluster) -> SchemaObservation:
        hold, move = cluster.status.schema.hold, state.moving
        return SchemaObservation(
            now=self._clock.now(),
            version=state.version,
            moving=move is not None,
            target=0 if move is None else move.target,
            recorded=cluster.schema_version,
            wanted=cluster.spec.schema.to,
            exclude=cluster.spec.schema.exclude,
            latest=self._latest,
            hosts={
                one.name: SchemaHost(
                    active=one.status.schema.active,
                    latest=one.status.schema.latest,
                    is_member=(member := self._memberships.get(one.name)) is not None and member.record.state == "Held",
                )
                for one in self._hypervisors.items()
                if one.spec.management == "node"
            },
            hold_to=0 if hold is None else hold.to,
            hold_since=0.0 if hold is None else as_instant(hold.since),
        )

    async def _take(self, state: SchemaState, result: SchemaStepResult) -> bool:
        """Do it; whether there may be more to do at once."""
        now = as_datetime(self._clock.now())
        match result.action:
            case SchemaAction.HOLD:
                hold = SchemaHold(to=result.to, since=now, by=self._by)
                await self._write(lambda schema: _replace(schema, hold=hold))
            case SchemaAction.MOVE | SchemaAction.FINISH:
                self._stuck = {"to": result.to, "version": state.version}
                try:
                    await self._storage.run(result.to)
                except OutliveError as error:
                    self._stuck["why"] = str(error)
                    raise
            case SchemaAction.RECORD:
                await self._write(lambda schema: _record_version(schema, result.to, now, self._by))
            case SchemaAction.RELEASE:
                await self._write(lambda schema: _replace(schema, hold=None))
                return False
            case _:
                return False
        return True

    async def _write(self, change: Callable[[ClusterSchema], ClusterSchema]) -> None:
        def apply_change(cluster: Cluster) -> ClusterStatus:
            return _replace(cluster.status, schema=change(cluster.status.schema))

        await change_status(self._store, Cluster, CLUSTER, apply_change, clock=self._clock)

    async def _report(self, state: SchemaState, cluster: Cluster, result: SchemaStepResult) -> None:
        """Faults, and in the cluster whom it waits for."""
        subject = ObjectRef(kind="Cluster", name=CLUSTER)
        active: list[ActiveFault] = []
        if result.waiting_for:
            fields: dict[str, Value] = {
                "version": state.version,
                "to": result.to,
                "what": ", ".join(result.waiting_for),
            }
            active.append(ActiveFault(FaultCode.SCHEMA_UPGRADE_WAITING, subject, fields))
        if cluster.status.schema.waiting_for != result.waiting_for:
            await self._write(lambda schema: _replace(schema, waiting_for=result.waiting_for))
        if active or self._reports:
            await self._faults.record(active)
            self._reports = bool(active)


def _record_version(schema: ClusterSchema, version: int, now: datetime, by: str) -> ClusterSchema:
    """The cluster's record of a store that is in this version now."""
    if schema.version == 0 and schema.hold is None:  # a new store, of which nobody has written it down yet
        return _replace(schema, version=version)
    step = SchemaStep(start=schema.version or 1, to=version, ended_at=now, by=by)
    return _replace(schema, version=version, journal=(*schema.journal, step)[-SCHEMA_STEPS:])
