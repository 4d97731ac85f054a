"""What is done to objects of a Kubernetes cluster that are not Outlive's, by the verbs that its API has for that.

Foreign objects are read through a store (``resources.foreign``) and never written whole. Every verb either is applied,
or raises one of the errors of ``outlive.base.errors``; its message names verb and object. ``Throttled`` (429): it
is forbidden for now, such as by a disruption budget. ``Conflict`` (409): the object is another one, or has changed.
``NotFound`` (404), ``Forbidden`` (403), ``Invalid`` (422). ``Unavailable``: certainly not applied. ``Unknown``: the
answer was lost, and it may have been applied. Nothing is ever sent twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec
from msgspec import UNSET

from outlive.resources import ObjectRef
from outlive.resources.foreign import ForeignResource

F = TypeVar("F", bound=ForeignResource)


class ServedResource(msgspec.Struct, frozen=True):
    """A line of the discovery of one API: ``pods/eviction`` has group and version of the document that it takes."""

    name: str
    kind: str
    group: str = ""
    version: str = ""


class PatchOperation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operation of a JSON patch (RFC 6902); a null ``value`` is one."""

    op: Literal["add", "remove", "replace", "test"]
    path: str
    value: Any = UNSET


class ClusterVerbs(Protocol):
    """See the module. ``key`` is ``name``, or ``namespace/name`` of kinds that have namespaces."""

    async def list_served(self, api_version: str) -> tuple[ServedResource, ...]:
        """What the server has of ``v1`` or of a group and version; ``NotFound``: it has no such API."""
        ...

    async def evict(self, key: str, *, uid: str = "", grace_s: int | None = None) -> None:
        """Ask for a pod to be deleted, if its disruption budgets allow it now; ``uid``: this pod and no successor."""
        ...

    async def delete(
        self, kind: type[ForeignResource], key: str, *, uid: str = "", version: str = "", grace_s: int | None = None
    ) -> None:
        """Delete an object, if uid and version match where given. ``grace_s`` 0: at once, without word of a node."""
        ...

    async def patch(
        self,
        kind: type[F],
        key: str,
        operations: Sequence[PatchOperation],
        *,
        version: str = "",
        subresource: str = "",
    ) -> F:
        """Change parts of an object; ``Conflict`` if it has another version than the one given, or a test fails."""
        ...

    async def post(
        self, kind: type[ForeignResource], key: str, subresource: str, document: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Post a document to a subresource of an object, such as ``binding``; the answer."""
        ...

    async def create(self, kind: type[F], document: Mapping[str, Any]) -> F:
        """Create an object from its document; ``AlreadyExists``. A status in it is not taken."""
        ...


class ClusterEvents(Protocol):
    """Says what happened to objects of others, for people who look there."""

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
        """Report it; returns at once. One that repeats is counted on and not written anew."""
        ...
