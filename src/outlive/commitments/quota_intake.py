"""Quota that Limes pushes: read, and written into one ``ProjectQuota`` for each zone.

A push says everything about a project: zones that it does not name have no quota any more. The rules are in
docs/reference/commitments.md#quota-push.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from outlive.base import BadInput, Clock, NotFound, OutliveError, Unavailable, Unknown, deadline, get_logger
from outlive.commitments.liquid import ZONES_LIMIT, ProjectMetadata, QuotaRequest
from outlive.commitments.names import quota_name, resource_name
from outlive.commitments.records import InformedRecords
from outlive.commitments.reports import Offer
from outlive.commitments.units import MIB_PER_GIB
from outlive.resources import ObjectMeta, ProjectQuota, ProjectQuotaSpec
from outlive.store import CALL_S, Store, compare_and_swap

QUOTA_LARGEST: Final = 2**63 - 1
_log = get_logger("commitments")


def pushed_quota(request: QuotaRequest, offers: Iterable[Offer], served: Sequence[str]) -> dict[str, dict[str, int]]:
    """Zone → resource → quota as it is kept: memory in GiB, everything else as it comes.

    Only what is said of zones counts. Zones outside ``served``, where that names any, are left out. ``BadInput`` for a
    number beyond 63 bits, for a zone without a name, and for too many of them.
    """
    units = {resource_name(offer.name, "ram"): offer.unit for offer in offers}
    zones: dict[str, dict[str, int]] = {}
    for resource, quota in sorted((request.resources or {}).items()):
        for zone, one in sorted((quota.per_az or {}).items()):
            if not zone:
                raise BadInput(f'Quota value for resource "{resource}" is for an availability zone without a name')
            unit = units.get(resource)  # a part of a GiB counts as a whole one
            kept = one.quota if unit is None else -(-one.quota * unit.mib // MIB_PER_GIB)
            if max(one.quota, kept) > QUOTA_LARGEST:
                raise BadInput(f'Quota value for resource "{resource}" in AZ "{zone}" exceeds int64 max')
            if not served or zone in served:
                zones.setdefault(zone, {})[resource] = kept
    if len(zones) > ZONES_LIMIT:
        raise BadInput(f"Invalid request body: quota for {len(zones)} availability zones, at most {ZONES_LIMIT}")
    return dict(sorted(zones.items()))


def set_quota(
    found: ProjectQuota | None, project: str, zone: str, quota: Mapping[str, int], metadata: ProjectMetadata
) -> ProjectQuota:
    """The object of a project in a zone with this quota; names stay where the push does not say them."""
    old = found.spec if found is not None else ProjectQuotaSpec(project_id=project, availability_zone=zone)
    spec = msgspec.structs.replace(
        old,
        quota=dict(sorted(quota.items())),
        project_name=metadata.name or old.project_name,
        domain_id=metadata.domain.uuid or old.domain_id,
        domain_name=metadata.domain.name or old.domain_name,
    )
    if found is None:
        return ProjectQuota(metadata=ObjectMeta(name=quota_name(project, zone)), spec=spec)
    return msgspec.structs.replace(found, spec=spec)


class QuotaPush(msgspec.Struct):
    """What a push has done: the zones whose objects were created or changed, and those whose objects were deleted, with
    the quota that they had."""

    changed: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    deleted: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)


class QuotaIntake:
    """Writes pushes. One push at a time: the caller sees to that."""

    def __init__(self, store: Store, records: InformedRecords, *, clock: Clock) -> None:
        self._store = store
        self._records = records
        self._clock = clock

    async def write(
        self, project: str, zones: Mapping[str, Mapping[str, int]], metadata: ProjectMetadata, push: QuotaPush
    ) -> None:
        """Write zone by zone, then delete what the push does not name; ``push`` says how far it came.

        ``Unavailable`` before anything is written. ``OutliveError`` for the first zone that cannot be written; those
        before it stay written, and the same push repeated completes it. A deletion that fails is logged, and the next
        push tries it again.
        """
        others = [one for one in self._records.quotas_of(project) if one.spec.availability_zone not in zones]
        for zone, quota in zones.items():
            before = await self._write_zone(project, zone, quota, metadata)
            if before is not None:
                push.changed[zone] = before
        for one in others:
            if await self._delete(one):
                push.deleted[one.spec.availability_zone] = one.spec.quota

    async def _write_zone(
        self, project: str, zone: str, quota: Mapping[str, int], metadata: ProjectMetadata
    ) -> dict[str, int] | None:
        """What was there before, if the push changed it."""
        before: ProjectQuota | None = None

        def change(found: ProjectQuota | None) -> ProjectQuota:
            nonlocal before
            before = found
            return set_quota(found, project, zone, quota, metadata)

        try:
            written = await compare_and_swap(
                self._store, ProjectQuota, quota_name(project, zone), change, clock=self._clock, half="spec"
            )
        except OutliveError as error:
            _log.error("quota.not_written", project=project, zone=zone, code=error.code, error=str(error))
            raise OutliveError(f"Failed to persist quota for AZ {zone}: {public_cause(error)}") from None
        assert written is not None
        self._records.note(written)
        if before is None:
            return {}
        return before.spec.quota if before.spec != written.spec else None

    async def _delete(self, quota: ProjectQuota) -> bool:
        try:
            with deadline(CALL_S):
                await self._store.delete(quota.ref, uid=quota.metadata.uid)
        except NotFound:
            pass
        except (OutliveError, TimeoutError) as error:
            _log.warning(
                "quota.not_deleted",
                project=quota.spec.project_id,
                zone=quota.spec.availability_zone,
                error=str(error) or "the store did not answer",
            )
            return False
        self._records.note_deleted(quota.ref)
        return True


def public_cause(error: OutliveError) -> str:
    """What a caller is told of an error behind the service; the log has the rest."""
    match error:
        case Unavailable():
            return "what is needed is not available now, retry later"
        case Unknown():
            return "the outcome of a write is not known, retry"
        case _:
            return f"internal error ({error.code})"
