"""The controllers of placement: conditions of pipelines, and flavor groups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

from outlive.base import AlreadyExists, Clock, NotFound, as_datetime, get_logger
from outlive.placement.flavor_groups import flavor_groups
from outlive.placement.knowledge import FLAVOR_GROUPS, record
from outlive.placement.pipelines import DOMAIN, PipelineTable, with_outcome
from outlive.placement.settings import PlacementSettings
from outlive.placement.shipped import shipped_pipelines
from outlive.resources import (
    CREATOR_LABEL,
    Flavor,
    FlavorGroup,
    Knowledge,
    ObjectMeta,
    Pipeline,
    find_condition,
    object_name,
)
from outlive.runtime import Informer
from outlive.store import Store

CREATOR: Final = "placement"
ALL_GROUPS: Final = "all"
"""The one key of the flavor group controller."""
_log = get_logger("placement")


async def install_shipped(store: Store) -> tuple[str, ...]:
    """Create the shipped pipelines that do not exist; what an operator changed stays. Returns what was created."""
    created: list[str] = []
    for pipeline in shipped_pipelines():
        try:
            await store.create(pipeline)
        except AlreadyExists:
            continue
        created.append(pipeline.name)
    return tuple(created)


def pipeline_metrics(pipelines: Iterable[Pipeline]) -> Iterator[Metric]:
    """Which of our pipelines can be used, as their objects say when somebody asks."""
    ready = GaugeMetricFamily("pipeline_ready", "Whether a pipeline can be used", labels=("pipeline",))
    for one in pipelines:
        if one.spec.scheduling_domain == DOMAIN:
            found = find_condition(one.status.conditions, "Ready")
            ready.add_metric((one.name,), float(found is not None and found.status == "True"))
    yield ready


class PipelineController:
    """Builds a pipeline when it changes, swaps it in, and writes what became of it into its conditions."""

    name = "pipelines"

    def __init__(
        self,
        store: Store,
        pipelines: Informer[Pipeline],
        table: PipelineTable,
        *,
        clock: Clock,
    ) -> None:
        self._store = store
        self._pipelines = pipelines
        self._table = table
        self._clock = clock

    def keys_of_knowledge(self, _old: Knowledge | None, _new: Knowledge | None) -> list[str]:
        """Every pipeline: which steps can be set up depends on what has records."""
        return [one.name for one in self._pipelines.items()]

    async def reconcile(self, key: str) -> None:
        """One pipeline, by name."""
        pipeline = self._pipelines.get(key)
        if pipeline is None or pipeline.spec.scheduling_domain != DOMAIN:
            self._table.remove(key)
            return
        result = self._table.put(pipeline)
        now = as_datetime(self._clock.now())
        # A condition whose status changed gets the time, the others keep theirs.
        before = {condition.type: condition.status for condition in pipeline.status.conditions}
        conditions = tuple(
            condition
            if before.get(condition.type) == condition.status
            else msgspec.structs.replace(condition, last_transition_time=now)
            for condition in with_outcome(pipeline.status.conditions, result)
        )
        if conditions == pipeline.status.conditions:
            return
        status = msgspec.structs.replace(pipeline.status, conditions=conditions)
        written = await self._store.replace_status(msgspec.structs.replace(pipeline, status=status))
        self._pipelines.note(written, replaced=pipeline.metadata.resource_version)
        _log.debug("placement.pipeline_built", pipeline=key, unknown=result.unknown, failed=result.failed)


class FlavorGroupController:
    """Keeps one ``FlavorGroup`` for each group that the flavors make, and removes those that they no longer make.

    Groups that somebody else wrote (their creator label is another) are left alone. When the groups of all creators
    together have become others is the content change of ``Knowledge/flavor-groups``.
    """

    name = "flavor-groups"

    def __init__(
        self,
        store: Store,
        flavors: Informer[Flavor],
        groups: Informer[FlavorGroup],
        *,
        settings: PlacementSettings,
        clock: Clock,
    ) -> None:
        self._store = store
        self._clock = clock
        self._flavors = flavors
        self._groups = groups
        self._settings = settings

    @staticmethod
    def keys(_old: object, _new: object) -> tuple[str, ...]:
        """Every change of a flavor or group asks for the same look."""
        return (ALL_GROUPS,)

    async def reconcile(self, key: str) -> None:
        """All groups."""
        wanted = {
            object_name(spec.group_name, "group"): spec
            for spec in flavor_groups(self._flavors.items(), keys=self._settings.flavor_group_keys)
        }
        for name, spec in wanted.items():
            known = self._groups.get(name)
            if known is None:
                meta = ObjectMeta(name=name, labels={CREATOR_LABEL: CREATOR})
                self._groups.note(await self._store.create(FlavorGroup(metadata=meta, spec=spec)), replaced="")
            elif known.spec != spec and _is_ours(known):
                written = await self._store.replace(msgspec.structs.replace(known, spec=spec))
                self._groups.note(written, replaced=known.metadata.resource_version)
        for group in self._groups.items():
            if group.name not in wanted and _is_ours(group):
                with contextlib.suppress(NotFound):
                    await self._store.delete(group.ref, uid=group.metadata.uid, version=group.metadata.resource_version)
                    self._groups.note_deleted(group.ref)
        listed = sorted((one.spec for one in self._groups.items()), key=lambda one: one.group_name)
        await record(self._store, FLAVOR_GROUPS, listed, clock=self._clock)


def _is_ours(group: FlavorGroup) -> bool:
    return group.metadata.labels.get(CREATOR_LABEL) == CREATOR
