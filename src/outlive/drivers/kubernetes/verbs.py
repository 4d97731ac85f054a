"""The verbs of ``runtime.cluster_verbs`` on an API server, over the connections of its store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from outlive.base import BadInput, Conflict, Invalid, NotFound, OutliveError, Unavailable
from outlive.resources import decode
from outlive.resources.foreign import ForeignResource, KubernetesPod
from outlive.runtime import F, PatchOperation, ServedResource
from outlive.store.kubernetes import CRDS_REMEDY, KubernetesStore

JSON_PATCH: Final = "application/json-patch+json"
EVICTION: Final = "pods/eviction"
UNEXPLAINED: Final = "the server rejected our request due to an error in our request"
"""What a server says of a patch that cannot be applied; of an object that its kind does not allow it says more."""


class _ServedList(msgspec.Struct, frozen=True):
    resources: tuple[ServedResource, ...] = ()


class KubernetesVerbs:
    """``ClusterVerbs``."""

    def __init__(self, store: KubernetesStore) -> None:
        self._store = store
        self._eviction = ""
        """Group and version of an eviction on this server; empty: it was not discovered yet."""

    async def list_served(self, api_version: str) -> tuple[ServedResource, ...]:
        """See ``ClusterVerbs``."""
        with _prefix_errors("discover", api_version):
            root = "apis" if "/" in api_version else "api"
            try:
                answer = await self._store.call("GET", f"/{root}/{api_version}")
            except Unavailable as error:
                if error.remedy != CRDS_REMEDY:
                    raise
                raise NotFound("the API server has no such API") from None
            return msgspec.convert(answer, _ServedList).resources

    async def evict(self, key: str, *, uid: str = "", grace_s: int | None = None) -> None:
        """See ``ClusterVerbs``; by ``policy/v1`` or ``policy/v1beta1``, whichever the server names."""
        with _prefix_errors("evict", f"pod {key}"):
            namespace, _, name = key.partition("/")
            if not self._eviction:
                found = [one for one in await self.list_served("v1") if one.name == EVICTION]
                if not found:
                    raise Unavailable(f"the API server has no {EVICTION}", remedy="delete the pod instead")
                self._eviction = f"{found[0].group}/{found[0].version}"
            document = {
                "apiVersion": self._eviction,
                "kind": "Eviction",
                "metadata": {"name": name, "namespace": namespace},
                "deleteOptions": _delete_options(uid, "", grace_s),
            }
            try:
                await self._store.call("POST", f"{self._store.path_of(KubernetesPod, key)}/eviction", document)
            except BadInput:  # also where the server is another one now, which takes another version
                self._eviction = ""
                raise

    async def delete(
        self, kind: type[ForeignResource], key: str, *, uid: str = "", version: str = "", grace_s: int | None = None
    ) -> None:
        """See ``ClusterVerbs``."""
        with _prefix_errors("delete", f"{kind.singular_name()} {key}"):
            await self._store.call("DELETE", self._store.path_of(kind, key), _delete_options(uid, version, grace_s))

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
        with _prefix_errors("patch", f"{kind.singular_name()} {key}"):
            path = self._store.path_of(kind, key) + (f"/{subresource}" if subresource else "")
            # a version that is written must be the present one, which the server answers with a Conflict of its own
            locked = (PatchOperation("replace", "/metadata/resourceVersion", version),) if version else ()
            try:
                answer = await self._store.call("PATCH", path, [*locked, *operations], JSON_PATCH)
            except Invalid as error:
                if error.message != UNEXPLAINED:
                    raise
                raise Conflict("a test failed, or a path is not there", remedy="read it again and repeat") from None
            return decode(kind, msgspec.json.encode(answer))

    async def post(
        self, kind: type[ForeignResource], key: str, subresource: str, document: Mapping[str, Any]
    ) -> dict[str, Any]:
        """See ``ClusterVerbs``."""
        with _prefix_errors(f"post {subresource} of", f"{kind.singular_name()} {key}"):
            found: dict[str, Any] = await self._store.call(
                "POST", f"{self._store.path_of(kind, key)}/{subresource}", document
            )
            return found

    async def create(self, kind: type[F], document: Mapping[str, Any]) -> F:
        """See ``ClusterVerbs``."""
        metadata = document["metadata"]
        name = metadata.get("name") or f"{metadata['generateName']}-"
        key = f"{metadata['namespace']}/{name}" if kind.info.namespaced else name
        with _prefix_errors("create", f"{kind.singular_name()} {key}"):
            path = self._store.path_of(kind, key).rpartition("/")[0]
            whole = {"apiVersion": kind.info.api_version, "kind": kind.kind(), **document}
            return decode(kind, msgspec.json.encode(await self._store.call("POST", path, whole)))


@contextmanager
def _prefix_errors(verb: str, what: str) -> Iterator[None]:
    """Name verb and object in the message of every error."""
    try:
        yield
    except OutliveError as error:
        error.message = f"{verb} {what}: {error.message}"
        if error.remedy == CRDS_REMEDY:
            error.remedy = "install what has this kind there"
        raise


def _delete_options(uid: str, version: str, grace_s: int | None) -> dict[str, Any]:
    conditions = {name: value for name, value in (("uid", uid), ("resourceVersion", version)) if value}
    options: dict[str, Any] = {"preconditions": conditions} if conditions else {}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    return options
