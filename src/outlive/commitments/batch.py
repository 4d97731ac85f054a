"""What a batch of changes asks for: whether it needs confirmation, its steps, and why it is refused.

A batch is numbers and names here, from any sender and in any form. The rules are in
docs/reference/commitments.md#confirmation, #steps, #dry-run and #refusals. Nothing here acts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from outlive.base import BadInput, format_duration
from outlive.commitments.names import RESERVED_ZONES, parse_resource
from outlive.commitments.settings import CommitmentSettings
from outlive.commitments.state import STATES, check_cores, from_change, spec_of
from outlive.commitments.units import GroupUnit, unit_of
from outlive.resources import (
    CommitmentStep,
    CommittedResource,
    CommittedResourceSpec,
    CommittedType,
    FlavorGroupSpec,
)

AMOUNT_LIMIT: Final = 2**64 - 1
"""The largest number of LIQUID."""
NOT_READY_TEXT: Final = "caches not ready, please retry later"


class CommitmentRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a batch does with one commitment."""

    uuid: str
    old_status: str | None = None
    """Absent: it does not exist before."""
    new_status: str | None = None
    """Absent: it does not exist afterwards."""
    amount: int = 0
    """In units of the resource."""
    confirm_by: datetime | None = None
    expires_at: datetime | None = None
    old_expires_at: datetime | None = None
    """Present if the end changes."""


class ResourceRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a batch does with one resource of a project; the totals are those of the project before and after."""

    name: str
    confirmed_before: int = 0
    confirmed_after: int = 0
    guaranteed_before: int = 0
    guaranteed_after: int = 0
    commitments: tuple[CommitmentRequest, ...] = ()

    @property
    def growth(self) -> int:
        """By how much what is promised grows."""
        return self.confirmed_after + self.guaranteed_after - self.confirmed_before - self.guaranteed_before


class ProjectRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a batch does with one project."""

    project: str
    domain: str = ""
    domain_name: str = ""
    """As Limes knows it; empty: it did not say."""
    resources: tuple[ResourceRequest, ...] = ()


class Batch(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Changes of one zone that count together or not at all."""

    zone: str
    dry_run: bool = False
    projects: tuple[ProjectRequest, ...] = ()


class BatchPlan(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a batch does, or why it does nothing."""

    confirmation: bool = False
    """Whether the caller waits for capacity to be found; else it is looked for afterwards."""
    steps: tuple[CommitmentStep, ...] = ()
    refusal: str = ""
    """Empty: it is not refused."""


class PlacementNeed(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a dry run asks placement for."""

    group: str
    type: CommittedType
    amount: int
    """In units of the resource."""
    total: int
    """Bytes of memory, or cores."""
    project: str
    domain: str = ""


class DryRunPlan(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a dry run asks for, or why it is refused; nothing to ask for: it is accepted."""

    needs: tuple[PlacementNeed, ...] = ()
    refusal: str = ""


def needs_confirmation(batch: Batch) -> bool:
    """Whether the caller must wait for our answer: something is promised that was not before, or the sums of what was
    promised do not explain themselves by what the commitments say."""
    for resource in (resource for project in batch.projects for resource in project.resources):
        confirmed_lost = guaranteed_lost = confirmed_gained = 0
        for one in resource.commitments:
            if one.new_status in ("confirmed", "guaranteed") and one.old_expires_at is not None:
                return True
            match one.old_status, one.new_status:
                case "confirmed", ("expired" | None):
                    confirmed_lost += one.amount
                case "guaranteed", ("expired" | None):
                    guaranteed_lost += one.amount
                case "guaranteed", "confirmed":
                    guaranteed_lost += one.amount
                    confirmed_gained += one.amount
        before = (resource.confirmed_before, resource.guaranteed_before)
        after = (resource.confirmed_after, resource.guaranteed_after)
        expected = (resource.confirmed_after + confirmed_lost, resource.guaranteed_after + guaranteed_lost)
        found = (resource.confirmed_before + confirmed_gained, resource.guaranteed_before)
        if before != after and found != expected:
            return True
    return False


def steps_of(
    batch: Batch,
    groups: Mapping[str, FlavorGroupSpec],
    settings: CommitmentSettings,
    before: Mapping[str, CommittedResource],
    now: float,
) -> BatchPlan:
    """The batch as one step for each commitment, or its refusal, which is the first that is found.

    ``before``: the commitments that exist, by uuid. Deletions come first, then the others in order of projects,
    resources and commitments. A commitment that is deleted in one place and created in another is one step. Deleting
    one that does not exist is none.
    """
    confirmation = needs_confirmation(batch)
    steps: list[CommitmentStep] = []
    seen: dict[str, list[_Mention]] = {}
    try:
        for place in _list_places(batch, groups, settings):
            for one in place.resource.commitments:
                _check_request(one, place, seen.setdefault(one.uuid, []))
                if one.new_status is not None:
                    old = before.get(one.uuid)
                    spec = _build_spec(one, place, batch.zone, old, now)
                    spec = msgspec.structs.replace(spec, allow_rejection=confirmation)
                    steps.append(
                        CommitmentStep(uuid=one.uuid, before=old.spec if old is not None else None, after=spec)
                    )
    except BadInput as error:
        return BatchPlan(confirmation=confirmation, refusal=str(error))
    wanted = {step.uuid for step in steps}
    gone = [uuid for uuid in seen if uuid not in wanted and uuid in before]
    deletions = (CommitmentStep(uuid=uuid, before=before[uuid].spec) for uuid in gone)
    return BatchPlan(confirmation=confirmation, steps=(*deletions, *steps))


def dry_run_needs(batch: Batch, groups: Mapping[str, FlavorGroupSpec], settings: CommitmentSettings) -> DryRunPlan:
    """What would have to be found if the batch were meant: the growth of each resource over all projects, where there
    is some. A resource takes part if its group handles both commitments and dry runs of it."""
    if batch.zone in RESERVED_ZONES:
        return DryRunPlan(refusal=f"dry run: {_no_zone(batch.zone)}")
    growth: dict[str, int] = {}
    askers: dict[str, ProjectRequest] = {}
    for project, resource in _sort_requests(batch):
        growth[resource.name] = growth.get(resource.name, 0) + resource.growth
        if resource.growth > 0:
            askers.setdefault(resource.name, project)
    needs: list[PlacementNeed] = []
    for name in sorted(name for name, amount in growth.items() if amount > 0):
        try:
            group, kind = parse_resource(name)
            if group not in groups:
                return DryRunPlan(refusal=f"dry run: flavor group not found: {group}")
            configured = settings.group_settings(group).committed_resource(kind)
            if not (configured.handles_commitments and configured.handles_dry_run):
                continue
            unit = unit_of(groups[group], settings)
            total = unit.to_bytes(growth[name]) if kind == "memory" else check_cores(growth[name])
        except BadInput as error:
            return DryRunPlan(refusal=f"dry run: {error}")
        asker = askers[name]
        need = PlacementNeed(
            group=group, type=kind, amount=growth[name], total=total, project=asker.project, domain=asker.domain
        )
        needs.append(need)
    return DryRunPlan(needs=tuple(sorted(needs, key=lambda need: (need.group, need.type))))


def failed_text(refused: Sequence[tuple[str, str]]) -> str:
    """Why a batch is refused: what each commitment says, by uuid, in the order of the request."""
    lines = "".join(f"\n- commitment {uuid}: {message}" for uuid, message in refused)
    return f"{len(refused)} commitment(s) failed to apply:{lines}"


def timeout_text(seconds: float, waiting: int) -> str:
    """Why a batch is refused that took too long."""
    return f"timeout reached while processing commitment changes: {_format_timeout(seconds, waiting)}"


def dry_run_failed_text(refused: Sequence[tuple[str, str]]) -> str:
    """Why a dry run says no: what each probe says, by name."""
    lines = "".join(f"\n- {name}: {message}" for name, message in refused)
    return f"dry run: {len(refused)} probe(s) rejected:{lines}"


def dry_run_timeout_text(seconds: float, waiting: int) -> str:
    """Why a dry run says no that took too long."""
    return f"dry run: timeout: {_format_timeout(seconds, waiting)}"


def version_text(requested: int, current: int) -> str:
    """Why a batch is not looked at whose sender knows another version of the resources."""
    return f"Version mismatch: request version {requested}, current version {current}. Please refresh and retry."


def _format_timeout(seconds: float, waiting: int) -> str:
    return f"timeout after {format_duration(seconds)} waiting for {waiting} CommittedResource CRD(s)"


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where in a batch a commitment stands, and how it is counted there."""

    project: ProjectRequest
    resource: ResourceRequest
    group: str
    kind: CommittedType
    unit: GroupUnit


class _Mention(msgspec.Struct, frozen=True):
    """One place in which a batch speaks of a commitment."""

    project: str
    resource: str
    deletion: bool


def _sort_requests(batch: Batch) -> Iterator[tuple[ProjectRequest, ResourceRequest]]:
    for project in sorted(batch.projects, key=lambda p: p.project):
        for resource in sorted(project.resources, key=lambda r: r.name):
            yield project, resource


def _list_places(batch: Batch, groups: Mapping[str, FlavorGroupSpec], settings: CommitmentSettings) -> Iterator[_Place]:
    """What the batch speaks of, in order; ``BadInput`` for what nobody can commit to."""
    if batch.zone in RESERVED_ZONES:
        raise _no_zone(batch.zone)
    for project, resource in _sort_requests(batch):
        try:
            group, kind = parse_resource(resource.name)
        except BadInput as error:
            raise BadInput(f"project with unknown resource name {project.project}: {error}") from None
        if group not in groups:
            raise BadInput(f"flavor group not found: {group}")
        if not settings.group_settings(group).committed_resource(kind).handles_commitments:
            raise BadInput(f'flavor group "{group}" is not configured to handle {kind} commitments')
        yield _Place(project=project, resource=resource, group=group, kind=kind, unit=unit_of(groups[group], settings))


def _no_zone(zone: str) -> BadInput:
    return BadInput(f'"{zone}" is not an availability zone', remedy="name the zone of the commitments")


def _check_request(one: CommitmentRequest, place: _Place, mentions: list[_Mention]) -> None:
    """``BadInput`` for what contradicts itself or the rest of the batch."""
    if one.old_status is not None and one.old_status not in STATES:
        raise BadInput(f'commitment {one.uuid}: unknown status "{one.old_status[:80]}"')
    if not 0 <= one.amount <= AMOUNT_LIMIT:
        raise BadInput(f"commitment {one.uuid}: an amount of {one.amount} is out of range (0 to 2^64-1)")
    mention = _Mention(place.project.project, place.resource.name, one.new_status is None)
    mentions.append(mention)
    if len(mentions) == 1:
        return
    first = mentions[0]
    same_place = (first.project, first.resource) == (mention.project, mention.resource)
    if len(mentions) > 2 or same_place or first.deletion == mention.deletion:
        raise BadInput(
            f"commitment {one.uuid}: the batch says different things of it, for {first.resource} of project "
            f"{first.project} and for {mention.resource} of project {mention.project}"
        )


def _build_spec(
    one: CommitmentRequest, place: _Place, zone: str, old: CommittedResource | None, now: float
) -> CommittedResourceSpec:
    """The commitment as the batch wants it; a domain that it leaves open stays."""
    project = place.project.project
    domain = place.project.domain
    if not domain and old is not None and old.spec.project_id == project:
        domain = old.spec.domain_id
    try:
        return spec_of(
            from_change(
                uuid=one.uuid,
                status=one.new_status or "",
                amount=one.amount,
                confirm_by=one.confirm_by,
                expires_at=one.expires_at,
                project=project,
                domain=domain,
                group=place.group,
                kind=place.kind,
                zone=zone,
                unit=place.unit,
                now=now,
            )
        )
    except BadInput as error:
        raise BadInput(f"commitment {one.uuid}: {error}") from None
