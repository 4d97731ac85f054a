"""Watches over a real HTTP connection: where they begin, what they send, and how they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.api import VMS, Api, api, vm

from outlive.api import ApiSettings

MERGE = {"Content-Type": "application/merge-patch+json"}
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}


@asynccontextmanager
async def watching(server: Api, query: str, **options: Any) -> AsyncIterator[Any]:
    """A function that reads the next event of a watch."""
    headers = {"Authorization": "Bearer admin-token-of-the-tests", **options.get("headers", {})}
    async with server.session.get(f"{server.url}{VMS}?watch=true&{query}", headers=headers) as answer:

        async def following() -> Any:
            async with asyncio.timeout(10):
                line = await answer.content.readline()
            return json.loads(line) if line else None

        yield following


def named(event: Any) -> tuple[str, str]:
    return event["type"], event["object"]["metadata"].get("name", "")


async def test_a_watch_begins_with_what_there_is_and_goes_on_with_what_happens() -> None:
    async with api() as server:
        await server.call("POST", VMS, json=vm("a"))
        async with watching(server, "sendInitialEvents=true&allowWatchBookmarks=true") as following:
            assert named(await following()) == ("ADDED", "a")
            mark = await following()
            assert mark["type"] == "BOOKMARK"
            assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
            await server.call("POST", VMS, json=vm("b"))
            assert named(await following()) == ("ADDED", "b")
            await server.call("PATCH", f"{VMS}/b", json={"spec": {"zone": "z"}}, headers=MERGE)
            assert named(await following()) == ("MODIFIED", "b")
            await server.call("DELETE", f"{VMS}/b")
            assert named(await following()) == ("DELETED", "b")


async def test_a_watch_from_a_list_misses_nothing_in_between() -> None:
    async with api() as server:
        await server.call("POST", VMS, json=vm("a"))
        _, listed, _ = await server.call("GET", f"{VMS}?limit=500")
        await server.call("POST", VMS, json=vm("b"))
        _, made, _ = await server.call("POST", VMS, json=vm("c"))
        async with watching(server, f"resourceVersion={listed['metadata']['resourceVersion']}") as following:
            assert [named(await following()), named(await following())] == [("ADDED", "b"), ("ADDED", "c")]
        await server.call("DELETE", f"{VMS}/a")
        async with watching(server, f"resourceVersion={made['metadata']['resourceVersion']}") as following:
            assert named(await following()) == ("DELETED", "a")


async def test_a_place_that_is_too_old_is_an_error_event_of_410() -> None:
    async with api() as server, watching(server, "resourceVersion=12345") as following:
        event = await following()
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
        assert await following() is None


async def test_a_watch_of_a_selection_or_a_name_sees_only_that() -> None:
    async with api() as server:
        await server.call("POST", VMS, json=vm("a", labels={"k": "1"}))
        await server.call("POST", VMS, json=vm("b"))
        async with (
            watching(server, "labelSelector=k") as selected,
            watching(server, "fieldSelector=metadata.name%3Db") as only_b,
        ):
            assert named(await selected()) == ("ADDED", "a")
            assert named(await only_b()) == ("ADDED", "b")
            await server.call("PATCH", f"{VMS}/a", json={"metadata": {"labels": {"k": None}}}, headers=MERGE)
            await server.call("PATCH", f"{VMS}/b", json={"metadata": {"labels": {"k": "2"}}}, headers=MERGE)
            assert [named(await selected()), named(await selected())] == [("DELETED", "a"), ("ADDED", "b")]
            assert named(await only_b()) == ("MODIFIED", "b")


async def test_a_watch_ends_at_its_time_and_when_the_server_stops() -> None:
    async with api() as server:
        async with watching(server, "timeoutSeconds=1") as following:
            assert await following() is None
        async with watching(server, "timeoutSeconds=600") as following:
            server.serving.stop()
            assert await following() is None


async def test_no_more_watches_than_allowed_are_served() -> None:
    async with api(settings=ApiSettings(watches=1)) as server, watching(server, "sendInitialEvents=true") as following:
        await following()
        status, answer, headers = await server.call("GET", f"{VMS}?watch=true")
        assert (status, answer["details"]["code"], headers["Retry-After"]) == (429, "too-many", "1")


async def test_a_watch_in_table_form_has_one_row_an_event() -> None:
    async with api() as server:
        await server.call("POST", VMS, json=vm("a"))
        async with watching(server, "", headers=TABLE) as following:
            event = await following()
            assert (event["type"], event["object"]["kind"]) == ("ADDED", "Table")
            assert [row["cells"][:2] for row in event["object"]["rows"]] == [["", "a"]]


# Roles
