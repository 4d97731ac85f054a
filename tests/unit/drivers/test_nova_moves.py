"""Servers that Nova is asked to move: what it is asked, where they are, and what became of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.loops import run_by, run_real
from tests.support.nova import VERSION, Nova
from tests.support.openstack import session, settings

from outlive.base import Forbidden, NotFound, Refused, SystemClock
from outlive.drivers.openstack import NovaClient, NovaMoves
from outlive.placement import CompletedMove, VmLocation

NOBODY = "11111111-0000-4000-8000-000000000000"


def told(story: Callable[[Nova, NovaMoves, str], Awaitable[None]]) -> None:
    async def telling() -> None:
        nova = Nova()
        async with nova.serving() as url, session({"compute": f"{url}{VERSION}"}) as opened:
            client = NovaClient(opened, settings(), SystemClock())
            await story(nova, NovaMoves(client), nova.server("db-1")["id"])

    run_real(telling())


def migration(number: int, server: str, source: str, target: str, status: str) -> dict[str, Any]:
    return {
        "id": number, "uuid": f"m-{number}", "instance_uuid": server, "source_compute": source, "dest_compute": target,
        "status": status, "migration_type": "live-migration", "created_at": f"2026-01-0{number}T00:00:00.000000",
    }  # fmt: skip


@run_by(told)
async def test_a_server_is_moved_live_without_its_disks_to_whatever_host_nova_finds(
    nova: Nova, moves: NovaMoves, server: str
) -> None:
    assert await moves.locate(server, "r") == VmLocation(host="h2", state="ACTIVE")
    await moves.migrate(server, "r")
    assert nova.asked == [(server, {"os-migrateLive": {"host": None, "block_migration": False}})]
    nova.server("db-1")["OS-EXT-STS:task_state"] = "migrating"
    assert await moves.locate(server, "r") == VmLocation(host="h2", state="MIGRATING")
    nova.server("db-1").update({"OS-EXT-STS:task_state": None, "OS-EXT-SRV-ATTR:host": "h3"})
    assert await moves.locate(server, "r") == VmLocation(host="h3", state="ACTIVE")
    assert await moves.locate(NOBODY, "r") is None


@run_by(told)
async def test_what_nova_does_not_do_is_said_by_its_answer(nova: Nova, moves: NovaMoves, server: str) -> None:
    nova.says_no = "it is locked"
    with pytest.raises(Refused, match="it is locked"):
        await moves.migrate(server, "r")
    with pytest.raises(NotFound):
        await moves.migrate(NOBODY, "r")
    nova.forbidden.add(f"servers/{server}/action")
    with pytest.raises(Forbidden) as error:
        await moves.migrate(server, "r")
    assert "openstack.md#rights" in error.value.remedy


@run_by(told)
async def test_a_move_that_is_asked_for_again_under_its_name_is_not_asked_for_twice(
    nova: Nova, moves: NovaMoves, server: str
) -> None:
    await moves.migrate(server, "r")
    await moves.migrate(server, "r")
    assert len(nova.asked) == 1


@run_by(told)
async def test_a_move_whose_answer_is_lost_may_have_begun_and_is_not_asked_for_again(
    nova: Nova, moves: NovaMoves, server: str
) -> None:
    nova.loses_answers = True
    await moves.migrate(server, "r")
    nova.loses_answers = False
    await moves.migrate(server, "r")
    assert len(nova.asked) == 1
    nova.lists["migrations"] = [migration(1, server, "h2", "h1", "error")]
    failed = await moves.locate(server, "r")
    assert failed is not None
    assert failed.refusal == "Nova's migration m-1 to h1: error"


@run_by(told)
async def test_a_move_that_fails_after_nova_said_yes_is_known_by_its_migration(
    nova: Nova, moves: NovaMoves, server: str
) -> None:
    nova.lists["migrations"] = [migration(1, server, "h2", "h3", "error")]
    await moves.migrate(server, "r")
    found = await moves.locate(server, "r")
    assert found is not None
    assert found.refusal == ""  # the one that failed is an older one
    nova.lists["migrations"].insert(0, migration(2, server, "h2", "h1", "running"))
    assert await moves.locate(server, "r") == VmLocation(host="h2", state="MIGRATING")
    nova.lists["migrations"][0]["status"] = "error"
    failed = await moves.locate(server, "r")
    assert failed is not None
    assert failed.refusal == "Nova's migration m-2 to h1: error"
    assert await moves.locate(server, "another") == found


@pytest.mark.parametrize("request_name", ["r", "of-another-process"])
@run_by(told)
async def test_a_move_is_over_only_once_its_own_migration_says_so(
    nova: Nova, moves: NovaMoves, server: str, *, request_name: str
) -> None:
    await moves.migrate(server, "r")
    nova.server("db-1")["OS-EXT-SRV-ATTR:host"] = "h3"
    nova.lists["migrations"] = [
        migration(1, server, "h1", "h2", "error"),
        migration(2, server, "h2", "h3", "running"),
    ]
    for status in ("running", "post-migrating"):
        nova.lists["migrations"][1]["status"] = status
        assert await moves.locate(server, request_name) == VmLocation(host="h3", state="MIGRATING")
        assert await moves.list_moves(server) == []
    nova.lists["migrations"][1]["status"] = "completed"
    assert await moves.locate(server, request_name) == VmLocation(host="h3", state="ACTIVE")
    assert await moves.list_moves(server) == [CompletedMove("h2", "h3")]


@run_by(told)
async def test_moves_that_were_made_are_listed_from_the_oldest_on(nova: Nova, moves: NovaMoves, server: str) -> None:
    nova.page_limit = 1
    nova.lists["migrations"] = [
        migration(3, server, "h3", "h2", "completed"),
        migration(2, server, "h1", "h2", "error"),
        migration(1, server, "h1", "h3", "done"),
        migration(4, NOBODY, "h1", "h3", "completed"),
    ]
    assert await moves.list_moves(server) == [CompletedMove("h1", "h3"), CompletedMove("h3", "h2")]
