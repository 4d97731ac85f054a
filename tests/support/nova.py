"""Nova's lists, from answers that were recorded of a real one (nova_answers.json), served over HTTP.

Pages, markers, ``changes-since``, deleted servers and the errors are as Nova has them at microversion 2.61.
"""

from __future__ import annotations

import copy
import json
from datetime import datetime
from email.utils import formatdate
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.support.http_service import HttpService

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "nova_answers.json").read_text())
PAGED = {
    "servers/detail": "servers",
    "flavors/detail": "flavors",
    "os-hypervisors/detail": "hypervisors",
    "os-migrations": "migrations",
}
PLAIN = {"os-aggregates": "aggregates", "os-services": "services", "os-server-groups": "server_groups"}
VERSION = "/v2.1"
NO_PAGE = 1000


class Nova(HttpService):
    """``lists``: plural → records, to be changed by tests. ``deleted``: records with status ``DELETED``."""

    def __init__(self) -> None:
        super().__init__()
        self.lists: dict[str, list[dict[str, Any]]] = {"migrations": [], **copy.deepcopy(RECORDED["before"])}
        self.deleted: list[dict[str, Any]] = []
        self.page_limit = NO_PAGE
        self.hidden: set[str] = set()
        """Servers of a cell that cannot be reached: no list has them, and nobody can say anything of them."""
        self.forbidden: set[str] = set()
        """Paths that our user may not ask."""
        self.asked: list[tuple[str, Any]] = []
        """Server → what was asked of it."""
        self.says_no = ""
        self.loses_answers = False
        """Actions are taken, and a proxy before it answers that it heard nothing."""
        """Why nothing that is asked of a server is done."""

    def change(self) -> None:
        """What happened in the recording: one server started, one moved, one was made and one deleted."""
        self.lists = copy.deepcopy(RECORDED["after"])
        self.deleted = [copy.deepcopy(one) for one in RECORDED["changes"] if one["status"] == "DELETED"]

    def server(self, name: str) -> dict[str, Any]:
        """A server by its name."""
        return next(one for one in self.lists["servers"] if one["name"] == name)

    def delete(self, name: str, *, at: str) -> None:
        """Delete a server."""
        found = self.server(name)
        self.lists["servers"].remove(found)
        self.deleted.append({**found, "status": "DELETED", "updated": at, "OS-EXT-STS:vm_state": "deleted"})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One answer of Nova."""
        if not request.headers.get("X-Auth-Token"):
            return web.Response(status=401)
        if request.path.rstrip("/") in ("", VERSION):
            return self._versions()
        path = request.path.removeprefix(f"{VERSION}/")
        assert request.headers["OpenStack-API-Version"] == "compute 2.61"
        if path in self.forbidden:
            return _json(request, 403, {"forbidden": {"code": 403, "message": "Policy doesn't allow it."}})
        if path in PAGED:
            return self._page(request, path, PAGED[path])
        if path in PLAIN:
            return _json(request, 200, {PLAIN[path]: self.lists[PLAIN[path]]})
        if request.method == "POST":
            return await self._act(request, path.removeprefix("servers/").removesuffix("/action"))
        for plural in ("servers", "os-hypervisors"):
            if path.startswith(f"{plural}/"):
                return self._one(request, plural.removeprefix("os-"), path.removeprefix(f"{plural}/"))
        return _json(request, 404, {"itemNotFound": {"code": 404, "message": "nothing there"}})

    async def _act(self, request: web.Request, server: str) -> web.Response:
        if not any(one["id"] == server for one in self.lists["servers"]):
            return _json(request, RECORDED["gone"]["status"], RECORDED["gone"]["body"])
        if self.says_no:
            return _json(request, 409, {"conflictingRequest": {"code": 409, "message": self.says_no}})
        self.asked.append((server, await request.json()))
        return web.Response(status=504 if self.loses_answers else 202)

    def _versions(self) -> web.Response:
        links = [{"rel": "self", "href": f"{self.url}{VERSION}/"}]
        version = {"id": "v2.1", "status": "CURRENT", "version": "2.100", "min_version": "2.1", "links": links}
        return web.json_response({"version": version, "versions": [version]})

    def _page(self, request: web.Request, path: str, key: str) -> web.Response:
        query = request.query
        records = [one for one in self.lists[key] if one.get("id") not in self.hidden]
        if key == "servers":
            assert query["all_tenants"] == "1"
            if since := query.get("changes-since"):
                assert datetime.fromisoformat(since).tzinfo is not None
                records = [one for one in (*records, *self.deleted) if one["updated"] >= since]
        if key == "migrations":
            records = [one for one in records if one["instance_uuid"] == query["instance_uuid"]]
        if key == "flavors":
            assert query["is_public"] == "None"
        marker, name = query.get("marker"), "uuid" if key == "migrations" else "id"
        if marker is not None:
            ids = [one[name] for one in records]
            if marker not in ids:
                return _json(request, RECORDED["marker"]["status"], RECORDED["marker"]["body"])
            records = records[ids.index(marker) + 1 :]
        limit = min(int(query.get("limit", NO_PAGE)), self.page_limit)
        shown, document = records[:limit], {}
        if len(records) > limit:
            href = f"http://behind-a-proxy.invalid{VERSION}/{path}?limit={limit}&marker={shown[-1][name]}"
            document[f"{key}_links"] = [{"rel": "next", "href": href}]
        return _json(request, 200, {key: shown, **document})

    def _one(self, request: web.Request, plural: str, name: str) -> web.Response:
        if name in self.hidden:
            return _json(request, 503, {"serviceUnavailable": {"code": 503, "message": "its cell is away"}})
        found = next((one for one in self.lists[plural] if one["id"] == name), None)
        if found is None:
            return _json(request, RECORDED["gone"]["status"], RECORDED["gone"]["body"])
        return _json(request, 200, {plural.removesuffix("s"): found})


def _json(request: web.Request, status: int, document: Any) -> web.Response:
    recorded = datetime.fromisoformat(RECORDED["since"].replace("Z", "+00:00")).timestamp()
    date = request.headers.get("X-Test-Date") or formatdate(recorded, usegmt=True)
    return web.json_response(document, status=status, headers={"Date": date})
