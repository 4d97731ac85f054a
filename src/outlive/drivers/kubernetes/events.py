"""Events of Kubernetes about objects of others, by ``events.k8s.io/v1``.

A repeat raises ``series.count`` of the event that is there already, as long as no more than ``SERIES_S`` pass in
between; the count is written as a whole number, so that a write whose answer was lost does no harm when it is repeated.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from outlive.base import AlreadyExists, Clock, Ids, Instant, NotFound, as_datetime
from outlive.resources import ObjectRef
from outlive.resources.foreign import KubernetesEvent
from outlive.runtime import BackgroundWriter, Waiting
from outlive.store.kubernetes import KubernetesStore

QUEUE_LIMIT: Final = 1000
"""Events that wait to be written."""
SERIES_LIMIT: Final = 1000
"""Events that are remembered, so that a repeat is counted there."""
SERIES_S: Final = 360.0
"""The longest time between two repeats that are one series, as of client-go."""
NOTE_CHARACTERS: Final = 1024
NAME_CHARACTERS: Final = 200
"""What an event's name takes of its object's name."""
CLUSTER_NAMESPACE: Final = "kube-system"
"""Where events about objects without a namespace are; 1.20 takes them in no other one by this API."""
MERGE_PATCH: Final = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """What was said of an object."""

    regarding: ObjectRef
    type: str
    reason: str
    note: str
    action: str
    related: ObjectRef | None
    first: Instant


@dataclass(slots=True)
class EventSeries:
    """An event that is there, or is being created (``count`` 0)."""

    key: str
    """``namespace/name``."""
    count: int = 0
    last: float = 0.0
    """When it was counted last, by the wall clock."""


class KubernetesEvents(BackgroundWriter[ObjectEvent]):
    """``ClusterEvents``. ``controller``: a qualified name such as ``outlive.dev/storage-agent``; ``instance``: which
    process."""

    what = "kubernetes-events"

    def __init__(self, store: KubernetesStore, *, clock: Clock, ids: Ids, controller: str, instance: str) -> None:
        super().__init__(clock, limit=QUEUE_LIMIT)
        self._store = store
        self._ids = ids
        self._reporter = {"reportingController": controller, "reportingInstance": instance[:128]}
        self._series: OrderedDict[Hashable, EventSeries] = OrderedDict()

    def emit(
        self,
        regarding: ObjectRef,
        reason: str,
        note: str,
        *,
        type: Literal["Normal", "Warning"] = "Normal",
        action: str = "",
        related: ObjectRef | None = None,
    ) -> None:
        """See ``ClusterEvents``; a full queue drops it and counts that."""
        said = (regarding, type, reason, note[:NOTE_CHARACTERS], action or reason, related)
        self.put(said, lambda now: ObjectEvent(*said, first=now))

    def prepare_write(self, waiting: Waiting[ObjectEvent]) -> Callable[[], Awaitable[object]]:
        """Create the event or count on."""
        item = waiting.item
        said = (item.regarding, item.type, item.reason, item.note, item.action, item.related)
        series = self._series.get(said)
        if series is None or waiting.last - series.last > SERIES_S:
            series = self._series[said] = EventSeries(self._new_key(item.regarding))
        self._series.move_to_end(said)
        if len(self._series) > SERIES_LIMIT:
            self._series.popitem(last=False)
        return partial(self._record, waiting, series, series.count + waiting.count)

    async def _record(self, waiting: Waiting[ObjectEvent], series: EventSeries, count: int) -> None:
        progress = {"count": count, "lastObservedTime": _micro_time(waiting.last)}
        if series.count:
            try:
                path = self._store.path_of(KubernetesEvent, series.key)
                await self._store.call("PATCH", path, {"series": progress}, MERGE_PATCH)
            except NotFound:  # the API server forgets events after an hour
                series.key, series.count, count = self._new_key(waiting.item.regarding), 0, waiting.count
                progress["count"] = count
        if not series.count:
            item, (namespace, _, name) = waiting.item, series.key.partition("/")
            document: dict[str, Any] = {
                "apiVersion": KubernetesEvent.info.api_version,
                "kind": KubernetesEvent.kind(),
                "metadata": {"name": name, "namespace": namespace},
                "eventTime": _micro_time(item.first),
                **self._reporter,
                "action": item.action[:128],
                "reason": item.reason[:128],
                "regarding": _object_reference(item.regarding),
                **({"related": _object_reference(item.related)} if item.related is not None else {}),
                "note": item.note,
                "type": item.type,
            }
            if count > 1:
                document["series"] = progress
            path = self._store.path_of(KubernetesEvent, series.key).rpartition("/")[0]
            with contextlib.suppress(AlreadyExists):  # its name is a random one: the answer to its creation was lost
                await self._store.call("POST", path, document)
        series.count, series.last = count, waiting.last

    def _new_key(self, regarding: ObjectRef) -> str:
        stem = regarding.name[:NAME_CHARACTERS].rstrip("-.")
        return f"{regarding.namespace or CLUSTER_NAMESPACE}/{stem}.{self._ids.new_uuid().replace('-', '')[:16]}"


def _object_reference(about: ObjectRef) -> dict[str, str]:
    """What is known of the object; a reference that names nothing would be one to nothing."""
    names = {"apiVersion": about.api_version, "kind": about.kind, "name": about.name}
    names |= {"namespace": about.namespace, "uid": about.uid}
    return {name: value for name, value in names.items() if value}


def _micro_time(at: Instant) -> str:
    return as_datetime(at).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
