"""By which call pods are evicted from an API server: it is asked once, and only a clear answer is kept.

The agent never goes on to the next method after a 404: a pod that is gone answers that too, and the last method,
deleting, asks no disruption budget.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from outlive.runtime.decisions import Decision

EvictMethod = Literal["policy/v1", "policy/v1beta1", "delete"]
SUBRESOURCE: Final = "pods/eviction"
_METHODS: Final[dict[str, EvictMethod]] = {"v1": "policy/v1", "v1beta1": "policy/v1beta1"}
"""By version of the resource."""


class DiscoveredResource(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One resource of the group version ``v1``, as an API server lists it."""

    name: str = ""
    kind: str = ""
    group: str = ""
    version: str = ""


class DiscoveryAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What an API server says it has, or why it did not say."""

    resources: tuple[DiscoveredResource | None, ...] = ()
    error: Any = None


class EvictMethodInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is known before an eviction."""

    known: EvictMethod | None = None
    """What an earlier call of this process has answered."""
    discovery: DiscoveryAnswer | None = None
    """Absent: the API server has not been asked for this eviction."""


class EvictMethodAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How to evict."""

    ask: bool = False
    """Whether the API server is to be asked first."""
    method: EvictMethod | None = None
    """``None``: nothing may be sent now."""
    known: EvictMethod | None = None
    """For the next eviction."""


def choose_evict_method(given: EvictMethodInput) -> EvictMethodAnswer:
    """The method by the version of ``pods/eviction``; deleting where the server has no such resource."""
    if given.known is not None:
        return EvictMethodAnswer(method=given.known, known=given.known)
    if given.discovery is None:
        return EvictMethodAnswer(ask=True)
    error, resources = given.discovery.error, given.discovery.resources
    if error is not None and (error != "" or not resources):
        return EvictMethodAnswer()
    versions = [one.version for one in resources if one is not None and one.name == SUBRESOURCE]
    method = _METHODS.get(versions[0], "delete") if versions else "delete"
    return EvictMethodAnswer(method=method, known=method)


EVICT_METHOD: Final = Decision(
    "storage.evict_method",
    choose_evict_method,
    EvictMethodInput,
    EvictMethodAnswer,
    "By which call pods are evicted from this API server",
    nulls_are_absent=True,
)
