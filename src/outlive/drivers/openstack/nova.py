"""Nova's lists by its API, at one microversion: servers, flavors, hypervisors, aggregates, services, server groups; and
live moves of servers.

A list is whole or the call fails. What no list can be trusted with is the absence of a server: a Nova that cannot reach
one of its cells leaves that cell's servers out and says 200. So ``find_deleted`` asks for each one by itself, and only
a 404 means that it is gone (docs/how-to/openstack.md#gone).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import parse_qs, quote

import msgspec

from outlive.base import Clock, Forbidden, LimitExceeded, OutliveError, Refused, Unavailable, get_logger, limits
from outlive.drivers.openstack.inventory import COMPUTE
from outlive.drivers.openstack.session import OpenStackSession, Response, decode, refusal_of
from outlive.inventory import OpenStackSettings

MICROVERSION: Final = "2.61"
"""The first at which flavors come with their extra specs, and a server with its flavor's sizes."""
HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {"OpenStack-API-Version": f"compute {MICROVERSION}", "X-OpenStack-Nova-API-Version": MICROVERSION}
)
PAGES_LIMIT: Final = 10_000
RECORDS_LIMIT: Final = 2_000_000
GONE_CHECKS: Final = 100
"""Servers that are asked about one by one at a time; the rest waits for the next round."""
DELETED: Final = "DELETED"
NOT_FOUND: Final = "itemNotFound"
"""What Nova calls the error of a 404."""

Record = dict[str, Any]
_log = get_logger("nova")


class NovaClient:
    """See the module."""

    def __init__(self, session: OpenStackSession, settings: OpenStackSettings, clock: Clock) -> None:
        self._session = session
        self._settings = settings
        self._clock = clock

    async def list_servers(self, since: float | None = None) -> tuple[list[Record], float]:
        """All servers of all projects, and as of when, in seconds since 1970 by Nova's own clock.

        With ``since`` those that changed after it, deleted ones (status ``DELETED``) among them.
        """
        params = {"all_tenants": "1"}
        if since is not None:
            params["changes-since"] = datetime.fromtimestamp(int(since), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return await self._list_pages("servers/detail", "servers", params)

    async def find_server(self, server_id: str) -> Record | None:
        """One server; ``None`` where Nova itself says that it knows none of that id: a proxy may say 404 as well."""
        return await self._get_one(f"servers/{quote(server_id, safe='')}", "server")

    async def find_deleted(self, server_ids: Iterable[str]) -> frozenset[str]:
        """Those of which Nova says that there are none; at most ``GONE_CHECKS`` are asked about. One that cannot be
        asked about is not gone."""
        gone: set[str] = set()
        for server_id, _ in zip(server_ids, range(GONE_CHECKS), strict=False):
            try:
                if await self.find_server(server_id) is None:
                    gone.add(server_id)
            except OutliveError as error:
                _log.warning("openstack.server-unknown", server=server_id, error=str(error))
                break
        return frozenset(gone)

    async def list_flavors(self) -> list[Record]:
        """All flavors, private ones among them, with their extra specs."""
        return (await self._list_pages("flavors/detail", "flavors", {"is_public": "None"}))[0]

    async def list_hypervisors(self) -> list[Record]:
        """All hypervisors."""
        return (await self._list_pages("os-hypervisors/detail", "hypervisors", {}))[0]

    async def find_hypervisor(self, hypervisor_id: str) -> Record | None:
        """One hypervisor; ``None`` where Nova knows none of that id."""
        return await self._get_one(f"os-hypervisors/{quote(hypervisor_id, safe='')}", "hypervisor")

    async def list_aggregates(self) -> list[Record]:
        """All host aggregates."""
        return await self._list("os-aggregates", "aggregates", {})

    async def list_services(self) -> list[Record]:
        """All compute services."""
        return await self._list("os-services", "services", {"binary": COMPUTE})

    async def list_server_groups(self) -> list[Record] | None:
        """The groups of all projects; ``None`` where our user may not list them."""
        try:
            return await self._list("os-server-groups", "server_groups", {"all_projects": "True"})
        except Forbidden:
            return None

    async def list_migrations(self, server_id: str) -> list[Record]:
        """The migrations of a server, in any order."""
        return (await self._list_pages("os-migrations", "migrations", {"instance_uuid": server_id}))[0]

    async def migrate_live(self, server_id: str) -> None:
        """Have a server moved live to whatever host Nova finds, without copying its disks; Nova says yes before it
        moves. ``Refused`` where it says no."""
        path = f"servers/{quote(server_id, safe='')}/action"
        asked = {"os-migrateLive": {"host": None, "block_migration": False}}
        base = await self._session.get_endpoint("compute", version="2.1")
        answer = await self._session.post(f"{base}/{path}", asked, headers=HEADERS)
        if answer.status in (400, 409):
            said = answer.body[: limits.ERROR_BODY_BYTES].decode(errors="replace").strip()
            raise Refused(f"answers {answer.status}: {said or 'nothing'}", place=answer.url, remedy="see Nova's log")
        if answer.status != 202:
            raise refusal_of(answer)

    async def _get_one(self, path: str, key: str) -> Record | None:
        answer = await self._get(path, {})
        if answer.status == 404 and _is_item_not_found(answer):
            return None
        found = decode(answer, dict[str, Any]).get(key)
        if not isinstance(found, dict):
            raise _bad_answer(answer, f"no {key}")
        return found

    async def _list(self, path: str, key: str, params: Mapping[str, str]) -> list[Record]:
        """A list that has no pages."""
        answer = await self._get(path, params)
        return _get_records(answer, decode(answer, dict[str, Any]), key)

    async def _list_pages(self, path: str, key: str, params: Mapping[str, str]) -> tuple[list[Record], float]:
        """All pages of a list, and when the first was made."""
        found: list[Record] = []
        markers: set[str] = set()
        as_of: float = self._clock.now()
        marker = ""
        for page in range(PAGES_LIMIT):
            limited = {**params, "limit": str(self._settings.page_size), **({"marker": marker} if marker else {})}
            answer = await self._get(path, limited)
            if page == 0:
                as_of = _parse_date(answer) or as_of
            document = decode(answer, dict[str, Any])
            found += _get_records(answer, document, key)
            if len(found) > RECORDS_LIMIT:
                raise LimitExceeded(f"has more than {RECORDS_LIMIT} {key}", place=answer.url, remedy="ask for fewer")
            marker = _next_marker(answer, document.get(f"{key}_links") or [])
            if not marker:
                return found, as_of
            if marker in markers:
                raise _bad_answer(answer, f"page {marker} twice")
            markers.add(marker)
        raise LimitExceeded(f"{key} have more than {PAGES_LIMIT} pages", place=path, remedy="raise openstack.pageSize")

    async def _get(self, path: str, params: Mapping[str, str]) -> Response:
        base = await self._session.get_endpoint("compute", version="2.1")
        answer = await self._session.get(f"{base}/{path}", params=params, headers=HEADERS)
        if answer.status == 406:
            raise Unavailable(
                f"has no microversion {MICROVERSION}", place=answer.url, remedy="Nova of the release Queens or later"
            )
        return answer


def _is_item_not_found(answer: Response) -> bool:
    try:
        return NOT_FOUND in msgspec.json.decode(answer.body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _get_records(answer: Response, document: Record, key: str) -> list[Record]:
    """The objects under ``key``; ``Unavailable`` where any of them is none."""
    found = document.get(key)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise _bad_answer(answer, f"no list of {key}")
    return found


def _next_marker(answer: Response, links: object) -> str:
    """The marker of the next page. Only that is taken of the link: its host may be one that only Nova can reach."""
    if not isinstance(links, list):
        raise _bad_answer(answer, "links that are no list")
    for link in links:
        if isinstance(link, dict) and link.get("rel") == "next":
            marker = parse_qs(str(link.get("href")).partition("?")[2]).get("marker")
            if not marker:
                raise _bad_answer(answer, "a next page without a marker")
            return marker[0]
    return ""


def _parse_date(answer: Response) -> float:
    """When it was made; 0 where it does not say so."""
    said = {name.lower(): value for name, value in answer.headers.items()}.get("date", "")
    try:
        return parsedate_to_datetime(said).timestamp()
    except (TypeError, ValueError):
        return 0.0


def _bad_answer(answer: Response, what: str) -> Unavailable:
    return Unavailable(f"answers with {what}", place=answer.url, remedy="see its log, and what stands between us")
