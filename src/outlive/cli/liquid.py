"""Commands that speak LIQUID to the server, as Limes does: ``outlive commitments request|delete|e2e``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from outlive.base import BadInput, ExitCode, NotFound, OutliveError, Refused, Unavailable, Usage
from outlive.cli.access import Access, WriteAccess, require_server
from outlive.cli.arguments import Yes
from outlive.cli.commitments_ask import (
    Amount,
    Group,
    Project,
    Uuid,
    Zone,
    amount_of,
    check_asked,
    check_zone,
    commitment_of,
)
from outlive.cli.output import Report, write
from outlive.cli.questions import ask

if TYPE_CHECKING:
    from outlive.commitments import GroupUnit, LiquidCommitment, ServiceInfo
    from outlive.resources import CommittedResource, CommittedType
    from outlive.store import HttpStore, Store

LASTS_DAYS = 365
"""How long a commitment lasts, unless ``--days`` says otherwise."""
DAYS_LIMIT = 36_500
DAY_S = 86_400
STATUSES = ("confirmed", "guaranteed", "pending", "planned")


class LiquidCalls:
    """The LIQUID service of a server."""

    def __init__(self, store: HttpStore) -> None:
        self._store = store

    async def call(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body of the answer."""
        return await self._store.exchange(method, path, body)


@asynccontextmanager
async def open_liquid(access: Access) -> AsyncIterator[tuple[Store, LiquidCalls]]:
    """The server's objects, and its LIQUID service; ``Usage`` where no server runs."""
    async with access.open(write=True) as store:
        yield store, LiquidCalls(require_server(store, "a server makes commitments"))


async def request(
    access: WriteAccess,
    output: Report,
    project: Project = "",
    flavor_group: Group = "",
    zone: Zone = "",
    amount: Amount = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only ask whether it would be accepted.")] = False,
    days: Annotated[int, typer.Option("--days", min=1, max=DAYS_LIMIT, help="How long it lasts.")] = LASTS_DAYS,
    status: Annotated[
        str, typer.Option("--status", metavar="STATUS", help="confirmed, guaranteed, pending or planned.")
    ] = "confirmed",
    uuid: Annotated[str, typer.Option("--uuid", metavar="UUID", help="Of the commitment; else a new one.")] = "",
    domain: Annotated[
        str, typer.Option("--project-domain", metavar="DOMAIN", help="Keystone's domain of the project.")
    ] = "",
) -> ExitCode | None:
    """Commit to capacity, as Limes would ask for it; exit code 1 if it is refused.

    If Outlive reads commitments from Limes, one that Limes does not list is reported as a disagreement.
    """
    from outlive.base import SystemIds, as_datetime
    from outlive.commitments import LiquidCommitment, check_uuid, resource_name

    check_asked(project, flavor_group, zone, amount)
    if status not in STATUSES:
        raise Usage(f"{status[:80]!r} is no status of a new commitment", remedy=f"one of {', '.join(STATUSES)}")
    uuid = uuid or SystemIds().new_uuid()
    check_uuid(uuid)
    ends = as_datetime(int(access.clock.now() + days * DAY_S))
    async with open_liquid(access) as (store, liquid):
        info = await read_catalogue(liquid)
        unit = _find_unit(info, flavor_group)
        check_zone(zone, await _list_zones(store))
        kind, number = amount_of(amount, unit)
        resource = resource_name(flavor_group, "ram" if kind == "memory" else "cores")
        one = LiquidCommitment(uuid=uuid, old_status=None, new_status=status, amount=number, expires_at=ends)
        sums = await _sum_by_status(store, project, flavor_group, zone, kind, unit)
        after = {**sums, status: sums.get(status, 0) + number}
        why, retry_at = await change(
            liquid, info, project, zone, resource, [one], (sums, after), domain=domain, dry_run=dry_run
        )
    what = f"{number} x {unit.text}" if kind == "memory" else f"{number} cores"
    document = {
        "accepted": not why,
        "dryRun": dry_run,
        "uuid": "" if dry_run else uuid,
        "resource": resource,
        "amount": number,
        "unit": unit.text if kind == "memory" else "cores",
        "reason": why,
        "retryAt": retry_at,
    }

    def render_lines() -> list[str]:
        if why:
            ask = f"--project {project} --group {flavor_group} --zone {zone} --amount {amount}"
            return [*why.splitlines(), f"`outlive commitments explain {ask}` says what would help"]
        if dry_run:
            return [f"{what} of {flavor_group} in {zone} would be accepted for {project}"]
        return [f"commitment {uuid} is accepted: {what} of {flavor_group} in {zone} for {project}"]

    output.show(document, render_lines)
    return ExitCode.NO if why else None


async def delete(
    access: WriteAccess,
    output: Report,
    uuid: Uuid,
    yes: Yes = False,
) -> ExitCode | None:
    """Delete a commitment with its slots, as Limes would, and ask before; exit code 1 if that is refused."""
    from outlive.commitments import LiquidCommitment, from_spec, resource_name

    async with open_liquid(access) as (store, liquid):
        found = await commitment_of(store, uuid)
        uuid = found.spec.commitment_uuid
        info = await read_catalogue(liquid)
        spec = found.spec
        unit = _find_unit(info, spec.flavor_group_name)
        amount = _count_units(found, unit)
        ask(f"Delete the {spec.state} commitment {uuid} of {spec.project_id}? Its slots are no longer kept.", yes)
        kind = from_spec(spec).type
        resource = resource_name(spec.flavor_group_name, "ram" if kind == "memory" else "cores")
        one = LiquidCommitment(uuid=uuid, old_status=spec.state, new_status=None, amount=amount)
        sums = await _sum_by_status(store, spec.project_id, spec.flavor_group_name, spec.availability_zone, kind, unit)
        after = {**sums, spec.state: max(0, sums.get(spec.state, 0) - amount)}
        why, _ = await change(liquid, info, spec.project_id, spec.availability_zone, resource, [one], (sums, after))
    output.show({"deleted": not why, "uuid": uuid, "reason": why}, lambda: [why or f"commitment {uuid} is deleted"])
    return ExitCode.NO if why else None


# -- calls ------------------------------------------------------------------------------------------------------


async def read_catalogue(liquid: LiquidCalls) -> ServiceInfo:
    """The catalogue of the server; ``Unavailable``, ``Refused``."""
    from outlive.commitments import PATHS, ServiceInfo

    found: ServiceInfo = _answer(ServiceInfo, *await liquid.call("GET", f"{PATHS}/info"))
    return found


async def change(
    liquid: LiquidCalls,
    info: ServiceInfo,
    project: str,
    zone: str,
    resource: str,
    commitments: list[LiquidCommitment],
    sums: tuple[dict[str, int], dict[str, int]],
    *,
    domain: str = "",
    dry_run: bool = False,
) -> tuple[str, Any]:
    """Why a batch is refused, or nothing, and when it may be accepted. The one place that sends changes."""
    from outlive.commitments import PATHS, ChangeAnswer, change_request

    before, after = sums
    body = change_request(
        project,
        zone,
        resource,
        commitments,
        version=info.version,
        confirmed=(before.get("confirmed", 0), after.get("confirmed", 0)),
        guaranteed=(before.get("guaranteed", 0), after.get("guaranteed", 0)),
        domain=domain,
        dry_run=dry_run,
    )
    raw = await liquid.call("POST", f"{PATHS}/change-commitments", msgspec.json.encode(body))
    found: ChangeAnswer = _answer(ChangeAnswer, *raw)
    why = found.rejection_reason if isinstance(found.rejection_reason, str) else ""
    return why, None if found.retry_at is msgspec.UNSET else found.retry_at


def _answer(kind: Any, status: int, raw: bytes) -> Any:
    """The decoded answer; the server's own line as an error where it is none."""
    text = " ".join(raw[:500].decode("utf-8", "replace").split())
    if status == 503:
        raise Unavailable(text, remedy="see outlive status, and the settings under commitments")
    if status in (401, 403):
        raise Refused(f"the token is not enough: {text}", remedy="use a token of the role admin or liquid")
    if status != 200:
        raise Refused(f"the server answered {status}: {text}", remedy="see its log")
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        raise Refused(f"the answer is not LIQUID: {error}", remedy="is that address an Outlive server?") from None


def _find_unit(info: ServiceInfo, group: str) -> GroupUnit:
    """The unit in which the server counts a group's memory; ``NotFound``."""
    from outlive.commitments import MIB_PER_GIB, GroupUnit, parse_unit, resource_name

    found = info.resources.get(resource_name(group, "ram"))
    if found is None:
        names = (name for name in info.resources if name.endswith("_ram"))
        known = sorted(name.removeprefix("hw_version_").removesuffix("_ram") for name in names)
        remedy = f"known are: {', '.join(known) or 'none'}"
        raise NotFound(f"the server offers no flavor group {group[:80]!r}", place="--group", remedy=remedy)
    return GroupUnit(group=group, mib=max(1, parse_unit(found.unit).size // 2**20) if found.unit else MIB_PER_GIB)


async def _sum_by_status(
    store: Store, project: str, group: str, zone: str, kind: CommittedType, unit: GroupUnit
) -> dict[str, int]:
    """Status → what the project has of it now, in units."""
    from outlive.resources import CommittedResource
    from outlive.store import list_all

    found: dict[str, int] = {}
    async for one in list_all(store, CommittedResource):
        spec = one.spec
        mine = (spec.project_id, spec.flavor_group_name, spec.availability_zone, spec.resource_type)
        if mine == (project, group, zone, kind):
            found[spec.state] = found.get(spec.state, 0) + _count_units(one, unit)
    return found


def _count_units(one: CommittedResource, unit: GroupUnit) -> int:
    return unit.from_bytes(one.spec.total) if one.spec.resource_type == "memory" else one.spec.total


# -- the probe --------------------------------------------------------------------------------------------------


class _RoundTrip(msgspec.Struct, frozen=True, kw_only=True):
    """Older names of the same settings."""

    az: str = ""
    test_project_id: str = msgspec.field(default="", name="testProjectID")


class E2eSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the JSON of ``e2e`` may say."""

    base_url: str = msgspec.field(default="", name="baseURL")
    project_id: str = msgspec.field(default="", name="projectID")
    azs: tuple[str, ...] = ()
    request_timeout: str = msgspec.field(default="30s", name="requestTimeout")
    no_cleanup: bool = msgspec.field(default=False, name="noCleanup")
    round_trip_check: _RoundTrip = msgspec.field(default_factory=_RoundTrip, name="roundTripCheck")


async def run_e2e(
    access: WriteAccess,
    config: Annotated[
        str, typer.Argument(metavar="[JSON]", help='Such as {"azs": ["zone-a"]}; keys are in the reference.')
    ] = "{}",
) -> None:
    """Check the server's LIQUID service as Limes uses it, with small commitments; exit code 1 if anything is wrong.

    Catalogue, dry run, round trip and batch, for every zone and resource with commitments. What is made is deleted.
    """
    from dataclasses import replace

    from outlive.base import parse_duration
    from outlive.commitments import PROBE_PROJECT, LiquidProbe, ProbeFailed, ProbeSettings

    try:
        given = msgspec.json.decode(config, type=E2eSettings)
    except msgspec.MsgspecError as error:
        raise BadInput(f"{error}", place="JSON", remedy="see docs/reference/commitments.md#probe") from None
    if given.base_url:
        access = replace(access, server=given.base_url)
    limit_s = parse_duration(given.request_timeout)
    old = given.round_trip_check
    async with open_liquid(access) as (store, liquid):
        try:
            probe = LiquidProbe(
                _LimitedCalls(liquid, limit_s),
                ProbeSettings(
                    project=given.project_id or old.test_project_id or PROBE_PROJECT,
                    zones=given.azs or ((old.az,) if old.az else await _list_zones(store)),
                    cleanup=not given.no_cleanup,
                ),
                clock=access.clock,
                note=lambda text: write(f"{text}\n"),
            )
            await probe.run()
        except OutliveError as error:  # whatever is wrong with the service, the answer is no
            raise ProbeFailed(error.message, place=error.place, remedy=error.remedy) from error
    write("everything works\n")


class _LimitedCalls:
    """Calls that may take so long each."""

    def __init__(self, liquid: LiquidCalls, limit_s: float) -> None:
        self._liquid = liquid
        self._limit_s = limit_s

    async def call(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        from outlive.base import deadline
        from outlive.commitments import ProbeFailed

        try:
            with deadline(self._limit_s):
                return await self._liquid.call(method, path, body)
        except TimeoutError:
            raise ProbeFailed(
                f"{method} {path} was not answered within {self._limit_s:g} s", remedy="see the server's log"
            ) from None


async def _list_zones(store: Store) -> tuple[str, ...]:
    """The zones of all hosts."""
    from outlive.resources import ZONE_LABEL, Hypervisor
    from outlive.store import list_all

    found = {one.metadata.labels.get(ZONE_LABEL, "") async for one in list_all(store, Hypervisor)}
    return tuple(sorted(found - {""}))
