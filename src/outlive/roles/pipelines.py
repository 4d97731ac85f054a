"""Keeps the pipelines in use in line with the ``Pipeline`` objects, and says of each whether it can be used.

Shipped pipelines that are not there are created once, at the start, as objects like any other: an operator may change
them, and what he changed is never written back. One that he deletes is gone until the next start.
"""

from __future__ import annotations

import msgspec

from outlive.base.clock import Clock, as_datetime
from outlive.base.errors import AlreadyExists, Conflict, NotFound
from outlive.base.logging import get_logger
from outlive.placement.pipelines import PipelineTable, shipped_pipelines, with_outcome
from outlive.placement.settings import PlacementSettings
from outlive.resources import Condition, Pipeline, PipelineStatus, condition
from outlive.runtime.controller import Requeue
from outlive.runtime.informer import Informer
from outlive.store import Store

_log = get_logger("pipelines")


async def create_shipped(store: Store) -> int:
    """Create the shipped pipelines that are not there; how many were created."""
    created = 0
    for pipeline in shipped_pipelines():
        try:
            await store.get(Pipeline, pipeline.name)
        except NotFound:
            try:
                await store.create(pipeline)
                created += 1
            except AlreadyExists:
                continue
    return created


class PipelineController:
    """Builds a pipeline whenever its object changes, and writes what came of it into its conditions."""

    name = "pipelines"

    def __init__(
        self,
        store: Store,
        informer: Informer[Pipeline],
        table: PipelineTable,
        *,
        clock: Clock,
        settings: PlacementSettings,
    ) -> None:
        self._store = store
        self._informer = informer
        self._table = table
        self._clock = clock
        self._settings = settings
        informer.subscribe(self._changed)

    def _changed(self, old: Pipeline | None, new: Pipeline | None) -> None:
        """Swap the pipeline at once, so that no placement uses an old one; its conditions follow."""
        if new is not None and (old is None or old.spec != new.spec):
            self._table.put(new, self._settings)
        elif new is None and old is not None:
            self._table.remove(old.name)

    async def reconcile(self, key: str) -> Requeue | None:
        """Write the conditions of one pipeline, if they say something else than they should."""
        pipeline = self._informer.get(key)
        if pipeline is None:
            return None
        before = pipeline.status.conditions
        result = PipelineTable().put(pipeline, self._settings)
        after = tuple(self._dated(before, one) for one in with_outcome(before, result))
        if after == before:
            return None
        status = PipelineStatus(conditions=after)
        try:
            written = await self._store.replace_status(msgspec.structs.replace(pipeline, status=status))
        except (Conflict, NotFound):
            return Requeue(after_s=1.0)
        self._informer.note(written, replaced=pipeline.metadata.resource_version)
        if result.failed:
            _log.error("pipeline.unusable", pipeline=key, why="; ".join(result.failed))
        return None

    def _dated(self, before: tuple[Condition, ...], new: Condition) -> Condition:
        old = condition(before, new.type)
        if old is not None and old.status == new.status:
            return new
        return msgspec.structs.replace(new, last_transition_time=as_datetime(self._clock.now()))
