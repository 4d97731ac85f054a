"""The API server of a virtual Kubernetes: documents of foreign kinds, under the rules that a real one has for them.

It is the read half of a ``Store`` and ``ClusterVerbs`` for programs, which reach it over a connection
(``simulation.kubernetes.connection``), and plain calls without waiting for controllers and kubelets, which are part of
this Kubernetes. What is kept: uids and versions, preconditions, graceful deletion of pods, finalizers, status apart
from the rest, JSON patch with ``test``, disruption budgets and admission webhooks of evictions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import jsonpatch
import msgspec
from jsonpointer import JsonPointerException
from msgspec import UNSET

from outlive.base import (
    AlreadyExists,
    BadInput,
    Clock,
    Conflict,
    Ids,
    Invalid,
    NotFound,
    Throttled,
    Unavailable,
    as_datetime,
)
from outlive.resources import Resource, decode
from outlive.resources.foreign import (
    ForeignResource,
    KubernetesEvent,
    KubernetesNode,
    KubernetesPod,
    KubernetesService,
    Lease,
    PersistentVolume,
    PodDisruptionBudget,
    VolumeAttachment,
)
from outlive.runtime import F, PatchOperation, ServedResource
from outlive.store import Judge, LocalStore, Write, WriteBatch

SERVED_KINDS: Final[tuple[type[ForeignResource], ...]] = (
    KubernetesEvent,
    KubernetesNode,
    KubernetesPod,
    KubernetesService,
    Lease,
    PersistentVolume,
    PodDisruptionBudget,
    VolumeAttachment,
)
"""Kinds that the virtual API server keeps."""
GRACE_S: Final = 30
"""Seconds that a pod gets to end, where it does not say (terminationGracePeriodSeconds)."""
ENDED: Final = ("Succeeded", "Failed")
"""Phases of pods whose containers have all ended."""
_NOT_PATCHED: Final = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "resourceVersion")
"""Metadata that no patch changes."""

Document = dict[str, Any]
"""An object as JSON has it. Those that the server hands out are shared: nobody changes them."""
Webhook = Callable[[Document], str]
"""Looks at a pod that is to be evicted; says why not, or nothing."""
Deleted = Callable[[type[ForeignResource], Document, str, bool], None]
"""Called before a verb of a client takes effect on an object: kind, object, client, whether it is an eviction."""


class ApiServer(LocalStore):
    """See the module. ``changed`` hooks are called after each write with kind, key, and the document or ``None``."""

    embedded = False

    def __init__(self, clock: Clock, ids: Ids, *, eviction_version: str = "v1") -> None:
        super().__init__(clock, ids, kinds={kind.kind(): kind for kind in SERVED_KINDS})
        self._documents: dict[str, dict[str, Document]] = {kind.kind(): {} for kind in SERVED_KINDS}
        self._objects: dict[tuple[str, str], ForeignResource] = {}
        self.eviction_version = eviction_version
        """Of the policy API that evictions are served with; empty: they are not served at all."""
        self.webhooks: list[Webhook] = []
        self.changed: list[Callable[[type[ForeignResource], str, Document | None], None]] = []
        self.removing: list[Deleted] = []

    # Reading without waiting

    def find(self, kind: type[ForeignResource], key: str) -> Document | None:
        """The document of that key."""
        return self._documents[kind.kind()].get(key)

    def list_all(self, kind: type[ForeignResource]) -> list[Document]:
        """All documents of a kind, in order of their keys."""
        documents = self._documents[kind.kind()]
        return [documents[key] for key in sorted(documents)]

    # Writing without waiting: what controllers, kubelets and connections come to

    def add(self, kind: type[ForeignResource], document: Mapping[str, Any]) -> Document:
        """Create an object; ``AlreadyExists``, ``Invalid``."""
        made = _copy(document)
        metadata = made.setdefault("metadata", {})
        if "name" not in metadata:
            if not metadata.get("generateName"):
                raise Invalid(f"create {kind.singular_name()}: it has no name", remedy="give it metadata.name")
            metadata["name"] = metadata["generateName"] + self._ids.new_suffix()
        key = key_of(made)
        if kind.info.namespaced != ("/" in key):
            raise Invalid(
                f"create {kind.singular_name()} {key}: wrong namespace", remedy="see whether its kind has any"
            )
        if self.find(kind, key) is not None:
            raise AlreadyExists(f"create {kind.singular_name()} {key}: it exists")
        metadata |= {"uid": self._ids.new_uuid(), "creationTimestamp": self.format_now()}
        return self._put(kind, key, {"apiVersion": kind.info.api_version, "kind": kind.kind(), **made})

    def edit(self, kind: type[ForeignResource], key: str, change: Callable[[Document], object]) -> Document | None:
        """Change a copy of the object and keep that; ``None`` if there is no such object."""
        before = self.find(kind, key)
        if before is None:
            return None
        after = _copy(before)
        change(after)
        return before if after == before else self._put(kind, key, after)

    def remove(
        self,
        kind: type[ForeignResource],
        key: str,
        *,
        uid: str = "",
        version: str = "",
        grace_s: int | None = None,
        client: str = "",
        evicted: bool = False,
    ) -> None:
        """Delete, or mark what has finalizers and pods that have time to end; ``NotFound``, ``Conflict``."""
        verb = f"{'evict' if evicted else 'delete'} {kind.singular_name()} {key}"
        document = self.find(kind, key)
        if document is None:
            raise NotFound(f"{verb}: there is no such object")
        metadata = document["metadata"]
        if uid and metadata["uid"] != uid:
            raise Conflict(f"{verb}: its uid is {metadata['uid']}, not {uid}", remedy="read it again")
        if version and metadata["resourceVersion"] != version:
            raise Conflict(f"{verb}: it has changed", remedy="read it again")
        for each in self.removing if client else ():
            each(kind, document, client, evicted)
        if kind is KubernetesPod and (left_s := _grace_s(document, grace_s)) > 0:
            if left_s < metadata.get("deletionGracePeriodSeconds", left_s + 1):
                ends = self.format_now(left_s)
                marks = {"deletionTimestamp": ends, "deletionGracePeriodSeconds": left_s}
                self.edit(kind, key, lambda pod: pod["metadata"].update(marks))
        elif metadata.get("finalizers"):
            if "deletionTimestamp" not in metadata:
                mark = {"deletionTimestamp": self.format_now()}
                self.edit(kind, key, lambda one: one["metadata"].update(mark))
        else:
            self._put(kind, key, None)

    def release(self, kind: type[ForeignResource], key: str, finalizer: str) -> None:
        """Take a finalizer off an object; one that was deleted goes with the last of them."""
        document = self.find(kind, key)
        left = [one for one in document["metadata"].get("finalizers", ()) if one != finalizer] if document else []
        if document is not None and not left and is_terminating(document):
            self._put(kind, key, None)
        else:
            self.edit(kind, key, lambda one: one["metadata"].update(finalizers=left))

    def evict_pod(self, key: str, *, uid: str = "", grace_s: int | None = None, client: str = "") -> None:
        """Delete a pod if webhooks and disruption budgets allow it now; ``Throttled``."""
        pod = self.find(KubernetesPod, key)
        if pod is not None and (not uid or pod["metadata"]["uid"] == uid):
            for webhook in self.webhooks:
                if why := webhook(pod):
                    raise Throttled(f"evict pod {key}: {why}")
            if pod.get("status", {}).get("phase") not in (*ENDED, "Pending"):
                self._spend_budget(pod)
        self.remove(KubernetesPod, key, uid=uid, grace_s=grace_s, client=client, evicted=True)

    def _spend_budget(self, pod: Document) -> None:
        budgets = [one for one in self.list_all(PodDisruptionBudget) if is_selected(one, pod)]
        if len(budgets) > 1:
            raise Unavailable(f"evict pod {key_of(pod)}: more than one disruption budget selects it")
        for budget in budgets:
            status = budget.get("status", {})
            if not is_ready(pod) and status.get("currentHealthy", 0) >= status.get("desiredHealthy", 0):
                continue
            if status.get("disruptionsAllowed", 0) <= 0:
                raise Throttled(
                    f"evict pod {key_of(pod)}: it would violate its disruption budget {budget['metadata']['name']}"
                )

            def spend_one(one: Document) -> None:
                one["status"]["disruptionsAllowed"] -= 1

            self.edit(PodDisruptionBudget, key_of(budget), spend_one)

    # ClusterVerbs

    async def list_served(self, api_version: str) -> tuple[ServedResource, ...]:
        """See ``ClusterVerbs``."""
        await asyncio.sleep(0)
        found = [
            ServedResource(name=kind.info.plural, kind=kind.kind())
            for kind in SERVED_KINDS
            if kind.info.api_version == api_version
        ]
        if api_version == "v1" and self.eviction_version:
            found.append(
                ServedResource(name="pods/eviction", kind="Eviction", group="policy", version=self.eviction_version)
            )
        if not found:
            raise NotFound(f"discover {api_version}: the API server has no such API")
        return tuple(found)

    async def evict(self, key: str, *, uid: str = "", grace_s: int | None = None, client: str = "") -> None:
        """See ``ClusterVerbs``."""
        await asyncio.sleep(0)
        self.evict_pod(key, uid=uid, grace_s=grace_s, client=client)

    async def delete_object(
        self,
        kind: type[ForeignResource],
        key: str,
        *,
        uid: str = "",
        version: str = "",
        grace_s: int | None = None,
        client: str = "",
    ) -> None:
        """``ClusterVerbs.delete``."""
        await asyncio.sleep(0)
        self.remove(kind, key, uid=uid, version=version, grace_s=grace_s, client=client)

    async def patch(
        self,
        kind: type[F],
        key: str,
        operations: Sequence[PatchOperation],
        *,
        version: str = "",
        subresource: str = "",
    ) -> F:
        """See ``ClusterVerbs``."""
        await asyncio.sleep(0)
        verb = f"patch {kind.singular_name()} {key}"
        before = self.find(kind, key)
        if before is None:
            raise NotFound(f"{verb}: there is no such object")
        if version and before["metadata"]["resourceVersion"] != version:
            raise Conflict(f"{verb}: it has changed", remedy="read it again")
        wanted = [msgspec.to_builtins(one) for one in operations]
        for one, operation in zip(wanted, operations, strict=True):
            if operation.value is not UNSET:
                one["value"] = operation.value  # null as well
        try:
            after = jsonpatch.JsonPatch(wanted).apply(_copy(before), in_place=True)
        except (jsonpatch.JsonPatchTestFailed, jsonpatch.JsonPatchConflict, JsonPointerException) as error:
            raise Conflict(f"{verb}: {error}"[:300], remedy="read it again and repeat") from None
        except (jsonpatch.JsonPatchException, TypeError, KeyError, IndexError) as error:
            raise Invalid(f"{verb}: {error}"[:300], remedy="see RFC 6902") from None
        given = {name: value for name, value in before["metadata"].items() if name in _NOT_PATCHED}
        after["metadata"] = {
            **{name: value for name, value in after["metadata"].items() if name not in _NOT_PATCHED},
            **given,
        }
        kept, other = (before, after) if subresource == "status" else (after, before)
        merged = {name: value for name, value in kept.items() if name != "status"}
        if "status" in other:
            merged["status"] = other["status"]
        if subresource == "status":  # metadata goes along, but for owners
            owners = before["metadata"].get("ownerReferences")
            merged["metadata"] = {**after["metadata"], **({} if owners is None else {"ownerReferences": owners})}
        if merged != before:
            self._put(kind, key, merged)
        return self.get_object(kind, key)

    async def post(
        self, kind: type[ForeignResource], key: str, subresource: str, document: Mapping[str, Any]
    ) -> dict[str, Any]:
        """See ``ClusterVerbs``; of pods ``binding``."""
        await asyncio.sleep(0)
        if kind is not KubernetesPod or subresource != "binding":
            raise NotFound(f"post {subresource} of {kind.singular_name()} {key}: there is no such subresource")
        self.bind(key, document["target"]["name"])
        return {"kind": "Status", "status": "Success"}

    async def create_object(self, kind: type[F], document: Mapping[str, Any]) -> F:
        """``ClusterVerbs.create``."""
        await asyncio.sleep(0)
        made = {name: value for name, value in document.items() if name != "status"}
        return self.get_object(kind, key_of(self.add(kind, made)))

    def bind(self, key: str, node: str) -> None:
        """Assign a pod to a node; ``Conflict`` if it has one."""
        pod = self.find(KubernetesPod, key)
        if pod is None:
            raise NotFound(f"post binding of pod {key}: there is no such object")
        if pod["spec"].get("nodeName"):
            raise Conflict(f"post binding of pod {key}: it is on {pod['spec']['nodeName']}")
        self.edit(KubernetesPod, key, lambda one: one["spec"].update(nodeName=node))

    def get_object(self, kind: type[F], key: str) -> F:
        """The object of that key, decoded; ``NotFound``."""
        found = self._objects.get((kind.kind(), key))
        if found is None:
            raise NotFound(f"get {kind.singular_name()} {key}: there is no such object")
        return found  # type: ignore[return-value]

    def format_now(self, later_s: float = 0.0) -> str:
        """Now, or so much later, as documents have times."""
        return as_datetime(self._clock.now() + later_s).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _put(self, kind: type[ForeignResource], key: str, document: Document | None) -> Document:
        """Keep the document under a new version, or take the object out (``None``), and notify who follows."""
        place, batch = (kind.kind(), key), WriteBatch(self._tables)
        before = self._objects.get(place)
        if document is None:
            assert before is not None
            last = self._documents[place[0]].pop(key)
            del self._objects[place]
            batch.add(Write(kind, key, before, None, None, before))
        else:
            last = document
            document["metadata"]["resourceVersion"] = batch.next_version()
            raw = msgspec.json.encode(document)
            after = decode(kind, raw)
            self._documents[place[0]][key], self._objects[place] = document, after
            batch.add(Write(kind, key, before, after, raw, after))
        self._count(batch)
        for each in self.changed:
            each(kind, key, document)
        return last

    async def _submit(self, judge: Judge) -> Resource:
        raise BadInput("objects of others are not written whole", remedy="use the verbs of their API")


def key_of(document: Mapping[str, Any]) -> str:
    """``name``, or ``namespace/name``."""
    metadata = document["metadata"]
    namespace, name = metadata.get("namespace"), metadata["name"]
    return f"{namespace}/{name}" if namespace else name


def condition_of(document: Mapping[str, Any], kind: str) -> str:
    """The status of a condition: ``True``, ``False``, ``Unknown``, or nothing."""
    conditions: Iterable[Mapping[str, Any]] = document.get("status", {}).get("conditions", ())
    return next((str(one["status"]) for one in conditions if one["type"] == kind), "")


def is_ready(document: Mapping[str, Any]) -> bool:
    """Whether a node or a pod is Ready."""
    return condition_of(document, "Ready") == "True"


def is_terminating(document: Mapping[str, Any]) -> bool:
    """Whether the object was deleted and is still there."""
    return "deletionTimestamp" in document["metadata"]


def is_selected(budget: Document, pod: Document) -> bool:
    """Whether a disruption budget (or any selector of labels) selects the pod."""
    labels = pod["metadata"].get("labels", {})
    wanted = budget["spec"].get("selector", {}).get("matchLabels", {})
    same = budget["metadata"].get("namespace") == pod["metadata"].get("namespace")
    return same and all(labels.get(name) == value for name, value in wanted.items())


def _grace_s(pod: Document, given: int | None) -> int:
    """How long the pod gets to end; 0: it is removed at once."""
    if not pod["spec"].get("nodeName") or pod.get("status", {}).get("phase") in ENDED:
        return 0
    return int(pod["spec"].get("terminationGracePeriodSeconds", GRACE_S)) if given is None else given


def _copy(document: Mapping[str, Any]) -> Document:
    found: Document = msgspec.json.decode(msgspec.json.encode(document))
    return found
