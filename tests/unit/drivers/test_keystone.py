"""Keystone's answers where a real one does not give them: pages, and a proxy that answers instead of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from aiohttp import web
from tests.support.http_service import HttpService
from tests.support.openstack import session

from outlive.base import NotFound, SystemClock, Unavailable
from outlive.drivers.openstack import KeystoneProjects, KeystoneTokens

pytestmark = pytest.mark.real_loop

Links = Callable[[str], Mapping[str, Any]]


class Keystone(HttpService):
    """Lists two projects, one on each page. ``link``: the address of the second page, as Keystone writes it."""

    def __init__(self, link: str) -> None:
        super().__init__()
        self.link = link

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One page, or what is said of a token."""
        if not request.path.startswith("/v3/projects"):
            return web.json_response({"error": {"code": 404, "title": "Not Found"}}, status=404)
        marker = request.query.get("marker")
        project = {"id": "p1" if marker is None else "p2", "domain_id": "d1"}
        link = self.link if marker is None else None
        return web.json_response({"projects": [project], "links": {"next": link}})


@pytest.mark.parametrize(
    "link",
    [
        "http://behind-a-proxy.invalid/v3/projects?limit=1&marker=p1",
        "/v3/projects?marker=p1",
        "https://user:word@127.0.0.1:1/?marker=p1",
        "http://[/?marker=p1",
    ],
)
async def test_the_next_page_is_asked_for_where_the_first_was_whatever_host_the_link_names(link: str) -> None:
    keystone = Keystone(link)
    async with keystone.serving() as url, session({"identity": f"{url}/v3"}) as opened:
        found = await KeystoneProjects(opened).list_projects()
    assert [one.id for one in found] == ["p1", "p2"]


@pytest.mark.parametrize("link", ["http://keystone.invalid/v3/projects", "?", "/v3/projects?limit=1"])
async def test_pages_without_an_end_are_no_list(link: str) -> None:
    keystone = Keystone(link)
    async with keystone.serving() as url, session({"identity": f"{url}/v3"}) as opened:
        with pytest.raises(Unavailable, match="without an end"):
            await KeystoneProjects(opened).list_projects()
    assert len(keystone.requests) < 4


async def test_only_keystone_itself_says_that_a_token_is_unknown() -> None:
    async def proxy(_: web.Request) -> web.StreamResponse:
        return web.Response(status=404, text="<html>no such backend</html>", content_type="text/html")

    keystone = Keystone("")
    async with keystone.serving() as url, session({"identity": f"{url}/v3"}) as opened:
        assert await KeystoneTokens(opened, SystemClock()).validate("unknown") is None
        keystone.fault = proxy
        with pytest.raises(NotFound, match="no such backend"):
            await KeystoneTokens(opened, SystemClock()).validate("unknown")
