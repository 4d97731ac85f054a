"""Nova's external scheduler call, both sides: reading requests and writing answers, and the other way round.

Status codes, members and the ``code`` of an error are fixed, the wording of messages is not
(docs/reference/placement.md#errors). A step that refuses everybody is an answer with no hosts, never an error.
Versioned objects come wrapped and only their data counts. Unknown members are passed over, ``null`` is an empty value
everywhere, counts refuse negatives and fractions (docs/reference/placement.md#wire).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Annotated, Any, Final, Generic, NoReturn, TypeVar, cast

import msgspec

from outlive.base import OutliveError, Unavailable, limits
from outlive.placement import shipped
from outlive.placement.errors import BadRequest, RunRefused
from outlive.placement.ranking import Ranking
from outlive.placement.request import (
    CHECK_TYPE_HINT,
    HANA_SPEC,
    HYPERVISOR_TYPE,
    Destination,
    InstanceGroup,
    PlacementOptions,
    PlacementRequest,
    hint_word,
    intent_of,
    readable_hints,
)
from outlive.placement.settings import MIB
from outlive.resources import CPU, MEMORY, Amounts, ReservationType, object_name

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
    """Who asks; for logs, and for whose commitments are used."""

    project_id: str | None = None
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
    hosts: msgspec.Raw = msgspec.Raw(b"null")
    """A list of ``WireHost``."""
    weights: dict[str, float] | None = None
    pipeline: str | None = None
    options: WireOptions | None = None


class WireAnswer(msgspec.Struct, frozen=True):
    """The answer as a client reads it; ``null`` is no host."""

    hosts: list[str] | None = None


_TYPES: Final[tuple[ReservationType, ...]] = (
    "CommittedResourceReservation",
    "FailoverReservation",
    "InFlightReservation",
)
_KVM: Final = frozenset({"qemu", "ch"})
_VMWARE: Final = "vmware vcenter server"
_host_name: Final = attrgetter("host")
_request_decoder: Final = msgspec.json.Decoder(WireRequest)
_hosts_decoder: Final = msgspec.json.Decoder(list[WireHost] | None)
_answer_decoder: Final = msgspec.json.Decoder(WireAnswer)


LISTS_KEPT: Final = 4
"""Lists of hosts that are remembered."""
LIST_BYTES: Final = 1024 * 1024
"""The largest of them."""


class NamedHosts(msgspec.Struct, frozen=True):
    """Hosts by the names that Nova has for them, and by those of their objects."""

    nova: tuple[str, ...]
    objects: tuple[str, ...]
    """Aligned with them; the very same tuple where all names are equal."""
    renamed: dict[str, str]
    """Object → Nova's name, where they differ."""


def source_names(request: PlacementRequest, hosts: Iterable[str]) -> tuple[str, ...]:
    """The names that the source of these hosts has for them, which is ``host_names`` backwards."""
    return tuple(request.renamed_hosts.get(host, host) for host in hosts)


def host_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names of the objects of hosts that Nova names so (docs/reference/cli.md#import)."""
    return tuple([object_name(name, "host") if name else name for name in names])


class HostLists:
    """The lists of hosts that calls named lately: call after call names the same hosts, and reading thousands of names
    takes longer than ranking them. A list that is known byte by byte gives the very same tuple again.
    """

    def __init__(self) -> None:
        self._known: deque[tuple[bytes, NamedHosts]] = deque(maxlen=LISTS_KEPT)

    def decode_names(self, raw: bytes) -> NamedHosts:
        """The distinct hosts of a list in order; errors of the decoder."""
        for known, hosts in self._known:
            if known == raw:
                return hosts
        found: dict[str | None, None] = dict.fromkeys(map(_host_name, _hosts_decoder.decode(raw) or ()))
        names = (
            tuple(dict.fromkeys(name or "" for name in found))
            if None in found
            else cast("tuple[str, ...]", tuple(found))
        )
        objects = host_names(names)
        renamed = {ours: theirs for ours, theirs in zip(objects, names, strict=True) if ours != theirs}
        hosts = NamedHosts(names, objects if renamed else names, renamed)
        if len(raw) <= LIST_BYTES:
            self._known.appendleft((raw, hosts))
        return hosts


class ExternalAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What goes back over HTTP; ``code`` is empty for a success."""

    status: int
    body: bytes
    code: str = ""
    content_type: str = "application/json"


# -- reading a request -------------------------------------------------------------------------------------


def decode_request(body: bytes, lists: HostLists | None = None) -> PlacementRequest:
    """The request of a body; ``BadRequest`` says what is wrong with it.

    Weights must name exactly the hosts. Without a pipeline the flavor decides. ``lists`` remembers what was read.
    """
    try:
        message = _request_decoder.decode(body)
        names = (lists or HostLists()).decode_names(bytes(message.hosts))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(
            f"failed to decode request body: {error}", remedy="see docs/reference/placement.md#wire"
        ) from None
    spec = _unwrap(message.spec) or WireSpec()
    flavor = _unwrap(spec.flavor) or WireFlavor()
    extra_specs = flavor.extra_specs or {}
    weights = _align_weights(names.nova, message.weights or {})
    hints = readable_hints(spec.scheduler_hints)
    context = message.context or WireContext()
    return PlacementRequest(
        resource_id=spec.instance_uuid or "",
        project=spec.project_id or "",
        user=spec.user_id or "",
        caller_project=context.project_id if context.project_id and context.project_id != spec.project_id else "",
        zone=spec.availability_zone or "",
        num_instances=spec.num_instances or 0,
        need=Amounts({CPU: (flavor.vcpus or 0) * 1000, MEMORY: (flavor.memory_mb or 0) * MIB}),
        flavor_name=flavor.name or "",
        extra_specs=extra_specs,
        intent=intent_of(hints),
        hints=hints,
        ignore_hosts=host_names(spec.ignore_hosts or ()),
        force_hosts=None if spec.force_hosts is None else host_names(spec.force_hosts),
        destination=_to_destination(_unwrap(spec.requested_destination)),
        group=_to_group(_unwrap(spec.instance_group)),
        image_properties=_image_properties(_unwrap(spec.image)),
        hosts=names.objects,
        renamed_hosts=names.renamed,
        weights=weights,
        pipeline=message.pipeline or infer_pipeline(extra_specs),
        options=_to_options(message.options or WireOptions()),
        request_id=context.request_id or "",
        global_request_id=context.global_request_id or "",
    )


def infer_pipeline(extra_specs: Mapping[str, str]) -> str:
    """The pipeline for a flavor, by its hypervisor type and whether it wants exclusive hosts."""
    kind = extra_specs.get(HYPERVISOR_TYPE, "").lower()
    if kind not in _KVM and kind != _VMWARE:
        raise BadRequest(
            f"failed to determine hypervisor type from request data: {HYPERVISOR_TYPE} is {kind or 'absent'!r}",
            code="no-hypervisor-type",
            remedy="name a pipeline, or give the flavor that extra spec",
        )
    exclusive = extra_specs.get(HANA_SPEC, "forbidden").lower()
    if exclusive not in ("forbidden", "required"):
        raise BadRequest(
            f"failed to determine flavor type from request data: {HANA_SPEC} is {exclusive!r}",
            code="no-flavor-type",
            remedy="name a pipeline, or make it required or forbidden",
        )
    if exclusive == "required":
        return shipped.HANA if kind in _KVM else shipped.VMWARE_HANA
    return shipped.GENERAL_PURPOSE if kind in _KVM else shipped.VMWARE_GENERAL_PURPOSE


def _unwrap(wrapped: Wrapped[T] | None) -> T | None:
    return wrapped.data if wrapped is not None else None


def _align_weights(hosts: tuple[str, ...], weights: Mapping[str, float]) -> tuple[float, ...]:
    """The weights of the hosts, by Nova's names; none when all are zero."""
    if hosts == tuple(weights):
        aligned = tuple(weights.values())  # as Nova sends it
    else:
        try:
            aligned = tuple([weights[host] for host in hosts])
        except KeyError as error:
            raise BadRequest(f"missing weight for host {error.args[0]!r}", code="missing-weight") from None
    if len(weights) != len(hosts):
        stranger = sorted(set(weights).difference(hosts))[0]
        raise BadRequest(f"weight assigned to unknown host {stranger!r}", code="unknown-weight")
    if not any(aligned):
        return ()
    if not math.isfinite(sum(aligned)):
        raise BadRequest("failed to decode request body: a weight is too large")
    return aligned


def _to_destination(data: WireDestination | None) -> Destination | None:
    if data is None:
        return None
    return Destination(host=host_names((data.host or "",))[0], aggregates=tuple(data.aggregates or ()))


def _to_group(data: WireGroup | None) -> InstanceGroup | None:
    if data is None:
        return None
    return InstanceGroup(
        policy=data.policy or "",
        members=tuple(data.members or ()),
        hosts=host_names(data.hosts or ()),
        max_server_per_host=_parse_limit((data.rules or {}).get("max_server_per_host")),
    )


def _parse_limit(value: Any) -> int:
    """A positive whole number, however it was written; anything else is one."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return 1
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return 1
    return int(number) if number.is_integer() and number >= 1 else 1


def _image_properties(image: WireImage | None) -> dict[str, Any]:
    properties = _unwrap(image.properties) if image is not None else None
    return properties or {}


def _to_options(options: WireOptions) -> PlacementOptions:
    return PlacementOptions(
        read_only=bool(options.read_only),
        assume_empty_hosts=bool(options.assume_empty_hosts),
        lock_reservations=bool(options.lock_reservations),
        ignored_reservation_types=tuple(kind for kind in _TYPES if kind in (options.ignored_reservation_types or ())),
        max_candidates=max(0, options.max_candidates or 0),
        skip_history=bool(options.skip_history),
        skip_inflight=bool(options.skip_inflight),
        skip_committed_resource_tracking=bool(options.skip_committed_resource_tracking),
    )


# -- writing an answer -------------------------------------------------------------------------------------


def answer(ranking: Ranking, hosts: bytes) -> ExternalAnswer:
    """The hosts as a JSON list, best first. Where a failed step refused everybody, the answer gives the reason."""
    refusal = ranking.refusal
    if refusal is None:
        return ExternalAnswer(status=200, body=b'{"hosts":' + hosts + b"}")
    return ExternalAnswer(status=200, body=msgspec.json.encode({"hosts": [], "reason": refusal}))


def render_refusal(error: OutliveError) -> ExternalAnswer:
    """The answer to a call that could not be carried out."""
    status = error.status if isinstance(error, RunRefused) else 500
    message = error.message if status != 500 else f"failed to process scheduling decision: {error.message}"
    document = {"code": error.code, "message": message}
    if error.remedy:
        document["remedy"] = error.remedy
    return ExternalAnswer(status=status, body=msgspec.json.encode(document), code=error.code)


# -- our own client ----------------------------------------------------------------------------------------


def encode_request(request: PlacementRequest, candidates: tuple[str, ...] | None = None) -> bytes:
    """The body of a call to another scheduler; empty members are left out. Hosts go by the names that their source has
    for them (``renamed_hosts``).

    ``candidates`` are needed where the request itself means all hosts. ``BadInput`` for options that
    contradict each other.
    """
    request.options.check()
    hosts = source_names(request, request.hosts if request.hosts is not None else candidates or ())
    weights = request.weights or (0.0,) * len(hosts)
    document: dict[str, Any] = {
        "spec": {"nova_object.data": _spec_document(request)},
        "context": _drop_empty(
            {
                "project_id": request.caller_project or request.project,
                "request_id": request.request_id,
                "global_request_id": request.global_request_id,
            }
        ),
        "hosts": [{"host": host, "hypervisor_hostname": ""} for host in hosts],
        "weights": {
            host: int(weight) if weight.is_integer() else weight for host, weight in zip(hosts, weights, strict=True)
        },
        "pipeline": request.pipeline,
        "options": request.options,
    }
    return msgspec.json.encode(document)


def _spec_document(request: PlacementRequest) -> dict[str, Any]:
    word = hint_word(request.intent)
    hints = {**({CHECK_TYPE_HINT: word} if word is not None else {}), **request.hints}
    spec = _drop_empty(
        {
            "instance_uuid": request.resource_id,
            "project_id": request.project,
            "user_id": request.user,
            "availability_zone": request.zone,
        }
    )
    spec["num_instances"] = request.num_instances
    if request.ignore_hosts:
        spec["ignore_hosts"] = source_names(request, request.ignore_hosts)
    if request.force_hosts is not None:
        spec["force_hosts"] = source_names(request, request.force_hosts)
    spec["scheduler_hints"] = hints
    flavor = {
        "name": request.flavor_name,
        "memory_mb": -(-request.need.memory_bytes // MIB),
        "vcpus": -(-request.need.cpu_milli // 1000),
        "extra_specs": request.extra_specs,
    }
    spec["flavor"] = {"nova_object.data": flavor}
    if request.image_properties:
        spec["image"] = {"nova_object.data": {"properties": {"nova_object.data": request.image_properties}}}
    if request.destination is not None:
        (host,) = source_names(request, [request.destination.host])
        where = {"host": host, "aggregates": request.destination.aggregates}
        spec["requested_destination"] = {"nova_object.data": _drop_empty(where)}
    if request.group is not None:
        group = request.group
        hosts = source_names(request, group.hosts)
        members = {"policy": group.policy, "members": group.members, "hosts": hosts}
        rules = {"_rules": {"max_server_per_host": group.max_server_per_host}}
        spec["instance_group"] = {"nova_object.data": {**_drop_empty(members), **rules}}
    return spec


def _drop_empty(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value}


def decode_answer(status: int, body: bytes) -> tuple[str, ...]:
    """The hosts of another scheduler's answer, by the names of their objects; ``Unavailable`` carries what it said
    instead."""
    if status != 200:
        _raise_unanswered(
            f"the scheduler answered {status}: {body[: limits.ERROR_BODY_BYTES].decode(errors='replace')}"
        )
    try:
        return host_names(_answer_decoder.decode(body).hosts or ())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _raise_unanswered(f"the scheduler's answer cannot be read: {error}")


def _raise_unanswered(message: str) -> NoReturn:
    raise Unavailable(message, remedy="see the scheduler's log under the request id")
