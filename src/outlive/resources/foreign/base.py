"""Objects of others: what is used of them as typed fields, beside the document as it was read.

Foreign kinds are read, listed and followed as ours are. They are never written whole, since nobody here knows all of
their fields: they change by JSON patch, and by the verbs that their API has (docs/reference/store.md#foreign).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from outlive.resources.meta import KindInfo, Resource, Writers

RAW: Final = "(raw)"
"""The name that the document has among the decoded fields; no document has a field of that name."""


class ForeignResource(Resource, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=False, tag=False):
    """An object of a kind that is not Outlive's. Absent fields of a subclass are ``UNSET``, null ones ``None``.

    Listings of the kinds of Kubernetes itself name neither ``kind`` nor ``apiVersion`` in their items, so that the
    class says which kind it is.
    """

    raw: bytes = msgspec.field(default=b"", name=RAW)
    """The document as it was read, as JSON."""

    @property
    def document(self) -> dict[str, Any]:
        """The document as it was read; a copy each time."""
        found: dict[str, Any] = msgspec.json.decode(self.raw)
        return found


class ForeignPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A piece of a foreign object: what is used of it; everything else is overlooked."""


def foreign_kind(api_version: str, kind: str, plural: str, *, namespaced: bool = False) -> KindInfo:
    """How a foreign kind is named, such as ``("apps/v1", "Deployment", "deployments")``."""
    group, _, version = api_version.rpartition("/")
    return KindInfo(plural=plural, kind=kind, group=group, version=version, namespaced=namespaced, writers=_ANYBODY)


_ANYBODY: Final = Writers(fields={}, labels="any")
"""Their own API says who may write what."""
