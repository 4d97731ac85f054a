"""Nova's placement request as it travels, as far as we read it.

Versioned objects come wrapped and only their data counts. Unknown members are passed over, ``null`` is an empty
value everywhere, counts refuse negatives and fractions (docs/reference/placement.md#wire). Members that nobody reads
are not declared, so that a body with thousands of hosts is read in about two milliseconds.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

import msgspec

T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Wrapped(msgspec.Struct, Generic[T], frozen=True):
    """A versioned object of Nova."""

    data: T | None = msgspec.field(default=None, name="nova_object.data")


class WireFlavor(msgspec.Struct, frozen=True):
    """Flavor."""

    name: str | None = None
    memory_mb: Count | None = None
    vcpus: Count | None = None
    root_gb: Count | None = None
    ephemeral_gb: Count | None = None
    extra_specs: dict[str, str] | None = None


class WireImage(msgspec.Struct, frozen=True):
    """ImageMeta."""

    properties: Wrapped[dict[str, Any]] | None = None


class WireDestination(msgspec.Struct, frozen=True):
    """Destination; its node and forbidden aggregates have no effect."""

    host: str | None = None
    aggregates: list[str] | None = None


class WireGroup(msgspec.Struct, frozen=True):
    """InstanceGroup."""

    policy: str | None = None
    members: list[str] | None = None
    hosts: list[str] | None = None
    rules: dict[str, Any] | None = msgspec.field(default=None, name="_rules")


class WireSpec(msgspec.Struct, frozen=True):
    """RequestSpec."""

    project_id: str | None = None
    user_id: str | None = None
    instance_uuid: str | None = None
    availability_zone: str | None = None
    num_instances: Count | None = None
    scheduler_hints: dict[str, Any] | None = None
    ignore_hosts: list[str] | None = None
    force_hosts: list[str] | None = None
    image: Wrapped[WireImage] | None = None
    flavor: Wrapped[WireFlavor] | None = None
    requested_destination: Wrapped[WireDestination] | None = None
    instance_group: Wrapped[WireGroup] | None = None


class WireContext(msgspec.Struct, frozen=True):
    """Who asks; for logs."""

    request_id: str | None = None
    global_request_id: str | None = None


class WireHost(msgspec.Struct, frozen=True, gc=False):
    """A candidate. One host may appear several times."""

    host: str | None = None


class WireOptions(msgspec.Struct, frozen=True):
    """Call options."""

    read_only: bool | None = None
    assume_empty_hosts: bool | None = None
    lock_reservations: bool | None = None
    ignored_reservation_types: list[str] | None = None
    max_candidates: int | None = None
    skip_history: bool | None = None
    skip_inflight: bool | None = None
    skip_committed_resource_tracking: bool | None = None


class WireRequest(msgspec.Struct, frozen=True):
    """The whole body."""

    spec: Wrapped[WireSpec] | None = None
    context: WireContext | None = None
    hosts: list[WireHost] | None = None
    weights: dict[str, float] | None = None
    pipeline: str | None = None
    options: WireOptions | None = None


class WireAnswer(msgspec.Struct, frozen=True):
    """The answer as a client reads it; ``null`` is no host."""

    hosts: list[str] | None = None
