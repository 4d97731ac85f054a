"""Checks a LIQUID service from outside, as Limes would use it: catalogue, dry run, round trip, batch.

Each check raises ``ProbeFailed`` with what was wrong. A refusal for want of capacity is no failure, because a full
cloud works; any other is one (docs/reference/commitments.md#probe). What is made is deleted again, also after a
failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import count
from typing import Any, Final, Protocol

import msgspec

from outlive.base import Clock, OutliveError, as_datetime
from outlive.commitments.liquid import (
    ChangeAnswer,
    ChangeRequest,
    DomainMetadata,
    LiquidCommitment,
    ProjectChange,
    ProjectMetadata,
    ReportRequest,
    ResourceChange,
    ServiceInfo,
    UsageReport,
)

PATHS: Final = "/commitments/v1"
PROBE_PROJECT: Final = "00000000-0000-0000-0000-000000000e2e"
"""The project of probes, unless another one is given."""
TOLERATED: Final = ("insufficient capacity", "insufficient CPU cores")
"""What a refusal may say that is no failure."""
SHORT_S: Final = 300.0
"""When a probe's commitment ends, if nobody deletes it …"""
BATCH_S: Final = 600.0
"""… and when one of a batch does."""
RESOURCES_LIMIT: Final = 10_000
"""Pairs of zones and resources that one run checks."""


class ProbeFailed(OutliveError):
    """The service did not answer as it must."""

    code = "probe-failed"


class Liquid(Protocol):
    """A LIQUID service."""

    async def call(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body of the answer; ``OutliveError`` where there is none."""
        ...


class ProbeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is checked, and as whom."""

    project: str = PROBE_PROJECT
    zones: tuple[str, ...]
    cleanup: bool = True
    """Whether the commitments of an accepted batch are deleted."""


class LiquidProbe:
    """See the module. ``note`` is told each step, in a few words."""

    def __init__(self, liquid: Liquid, settings: ProbeSettings, *, clock: Clock, note: Callable[[str], None]) -> None:
        self._liquid = liquid
        self._settings = settings
        self._clock = clock
        self._note = note
        self._numbers = count(1)

    async def run(self) -> None:
        """All checks, one after the other; the first that fails ends it."""
        info: ServiceInfo = _decode_answer(ServiceInfo, await self._call("GET", "/info"), "info")
        if info.version < 0:
            self._note("warning: the catalogue has no version yet")
        self._note(f"info: version {info.version}, {len(info.resources)} resources")
        sold = sorted(name for name, one in info.resources.items() if one.handles_commitments is True)
        pairs = [(zone, name) for zone in self._settings.zones for name in sold][:RESOURCES_LIMIT]
        if not pairs:
            self._note("warning: no resource handles commitments, so that nothing but the catalogue was checked")
        for zone, resource in pairs:
            await self.dry_run(info, zone, resource)
        for zone, resource in pairs:
            await self.round_trip(info, zone, resource)
        for zone, resource in pairs:
            await self.batch(info, zone, resource)

    async def dry_run(self, info: ServiceInfo, zone: str, resource: str) -> None:
        """A question is answered."""
        one = self._build_commitment("e2e-dry", "confirmed", 2, SHORT_S)
        answer = await self._change(info, zone, resource, [one], confirmed=(0, 2), dry_run=True)
        self._note(f"dry run of {resource} in {zone}: {answer or 'accepted'}")

    async def round_trip(self, info: ServiceInfo, zone: str, resource: str) -> None:
        """A commitment can be made, is in the usage report's reach, and can be deleted."""
        one = self._build_commitment("e2e", "confirmed", 2, SHORT_S)
        answer = await self._change(info, zone, resource, [one], confirmed=(0, 2))
        self._note(f"round trip of {resource} in {zone}: {answer or 'accepted'}")
        if answer:
            return
        try:
            await self._check_usage(zone, resource)
        finally:
            await self._delete(info, zone, resource, [one], before=2)

    async def batch(self, info: ServiceInfo, zone: str, resource: str) -> None:
        """Two changes count together or not at all."""
        first = self._build_commitment("e2e-batch-a", "pending", 1, BATCH_S)
        answer = await self._change(info, zone, resource, [first])
        if answer:
            raise _build_failure(f"batch of {resource} in {zone}: a pending commitment was refused: {answer}")
        confirmed = msgspec.structs.replace(first, old_status="pending", new_status="confirmed", amount=3)
        second = self._build_commitment("e2e-batch-b", "confirmed", 1, BATCH_S)
        there, total = [confirmed, second], 4  # also where nobody says whether the request counts
        try:
            answer = await self._change(info, zone, resource, [confirmed, second], confirmed=(0, 4))
            self._note(f"batch of {resource} in {zone}: {answer or 'accepted'}")
            if answer:
                there, total = [first], 0
            else:
                await self._check_usage(zone, resource)
        finally:
            if self._settings.cleanup or not total:
                await self._delete(info, zone, resource, there, before=total)

    # -- calls -----------------------------------------------------------------------------------------

    async def _delete(
        self, info: ServiceInfo, zone: str, resource: str, made: Sequence[LiquidCommitment], *, before: int
    ) -> None:
        gone = [msgspec.structs.replace(one, old_status=one.new_status, new_status=None) for one in made]
        await self._change(info, zone, resource, gone, confirmed=(before, 0), tolerated=())

    async def _change(
        self,
        info: ServiceInfo,
        zone: str,
        resource: str,
        commitments: Sequence[LiquidCommitment],
        *,
        confirmed: tuple[int, int] = (0, 0),
        dry_run: bool = False,
        tolerated: Iterable[str] = TOLERATED,
    ) -> str:
        """Why the batch is refused for want of capacity, or nothing."""
        project = self._settings.project
        asked = change_request(
            project,
            zone,
            resource,
            commitments,
            version=info.version,
            confirmed=confirmed,
            dry_run=dry_run,
        )
        raw = await self._call("POST", "/change-commitments", msgspec.json.encode(asked))
        answer: ChangeAnswer = _decode_answer(ChangeAnswer, raw, "change-commitments")
        said = answer.rejection_reason
        if not isinstance(said, str) or not said:
            return ""
        if not any(words in said for words in tolerated):
            raise _build_failure(f"{resource} in {zone} was refused: {said}")
        return " ".join(said.splitlines())

    async def _check_usage(self, zone: str, resource: str) -> None:
        body = msgspec.json.encode(ReportRequest(all_azs=(zone,)))
        raw = await self._call("POST", f"/projects/{self._settings.project}/report-usage", body)
        report: UsageReport = _decode_answer(UsageReport, raw, "report-usage")
        vms = charged = 0
        for one in report.resources.values():
            for found in one.per_az.values():
                listed = found.subresources if isinstance(found.subresources, list) else []
                vms += len(listed)
                charged += sum(vm.attributes.commitment_id is not None for vm in listed)
        mine = report.resources.get(resource)
        used = mine.per_az[zone].usage if mine is not None and zone in mine.per_az else "nothing"
        self._note(
            f"usage in {zone}: {used} of {resource}, {vms} VMs, {charged} committed, {vms - charged} paid as they go"
        )

    async def _call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        status, raw = await self._liquid.call(method, f"{PATHS}{path}", body)
        if status != 200:
            raise _build_failure(
                f"{method} {PATHS}{path} was answered {status}: {raw[:500].decode('utf-8', 'replace')}"
            )
        return raw

    def _build_commitment(self, word: str, status: str, amount: int, lasts_s: float) -> LiquidCommitment:
        """A new commitment; its uuid has the time and a number, because two may be made in one millisecond."""
        now = self._clock.now()
        uuid = f"{word}-{int(now * 1000)}-{next(self._numbers)}"
        ends: datetime = as_datetime(int(now + lasts_s))
        return LiquidCommitment(uuid=uuid, new_status=status, amount=amount, expires_at=ends)


def change_request(
    project: str,
    zone: str,
    resource: str,
    commitments: Sequence[LiquidCommitment],
    *,
    version: int,
    confirmed: tuple[int, int],
    guaranteed: tuple[int, int] = (0, 0),
    domain: str = "",
    dry_run: bool = False,
) -> ChangeRequest:
    """A batch for one resource of one project; ``confirmed`` and ``guaranteed`` are the sums before and after."""
    changed = ResourceChange(
        total_confirmed_before=confirmed[0],
        total_confirmed_after=confirmed[1],
        total_guaranteed_before=guaranteed[0],
        total_guaranteed_after=guaranteed[1],
        commitments=tuple(commitments),
    )
    metadata = ProjectMetadata(uuid=project, name=project, domain=DomainMetadata(uuid=domain, name=domain))
    return ChangeRequest(
        az=zone,
        dry_run=dry_run,
        info_version=version,
        by_project={project: ProjectChange(project_metadata=metadata, by_resource={resource: changed})},
    )


def _decode_answer(kind: Any, raw: bytes, what: str) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        raise _build_failure(f"the answer of {what} cannot be read: {error}") from None


def _build_failure(message: str) -> ProbeFailed:
    return ProbeFailed(message, remedy="see the server's log for the request")
