"""Limes, as far as the syncer sees it: the commitments of a project, by the public contract of its API.

``GET /v1/domains/<domain>/projects/<project>/commitments`` with a token of Keystone; superseded and expired ones are
not listed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from aiohttp import web

from tests.support.http_service import HttpService

PATH = re.compile(r"/v1/domains/(?P<domain>[^/]+)/projects/(?P<project>[^/]+)/commitments")
CREATED = 1_780_000_000
LASTS_S = 50 * 365 * 86_400


def commitment(uuid: str, **members: Any) -> dict[str, Any]:
    """An entry as Limes writes it; ``None`` leaves a member out."""
    entry: dict[str, Any] = {
        "id": 1,
        "uuid": uuid,
        "service_type": "compute",
        "resource_name": "hw_version_s4_ram",
        "availability_zone": "zone-a",
        "amount": 10,
        "unit": "GiB",
        "duration": "50 years",
        "created_at": CREATED,
        "confirmed_at": CREATED + 60,
        "expires_at": CREATED + LASTS_S,
        "transferable": False,
        "notify_on_confirm": False,
        "status": "confirmed",
        "can_be_deleted": True,
        "creator_uuid": "8d8b9bd3a1f24d3cb6a1d0f0a6a5f7c1",
        "creator_name": "alice@Default",
        **members,
    }
    return {key: value for key, value in entry.items() if value is not None}


class Limes(HttpService):
    """``commitments``: domain and project → entries. ``is_token``: whether a token is good."""

    def __init__(self, is_token: Callable[[str], bool] = bool) -> None:
        super().__init__()
        self.commitments: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self.is_token = is_token

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """The list of a project."""
        if not self.is_token(request.headers.get("X-Auth-Token", "")):
            return web.Response(status=401, text="Unauthorized")
        found = PATH.fullmatch(request.path)
        if found is None or request.method != "GET":
            return web.Response(status=404, text="not found")
        listed = self.commitments.get((found["domain"], found["project"]))
        if listed is None:
            return web.Response(status=404, text="no such project (if it was just created, try to POST …/sync)")
        return web.json_response(
            {"commitments": [one for one in listed if one.get("status") not in ("superseded", "expired")]}
        )
