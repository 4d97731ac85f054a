"""Limes asked for the commitments of many projects: all of them, or none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from tests.support import http_service
from tests.support.http_service import Answerer
from tests.support.limes import Limes, commitment
from tests.support.loops import run
from tests.support.openstack import session, settings

from outlive.base import LoopClock, NotFound, OutliveError, Random, SystemClock
from outlive.commitments import Project
from outlive.drivers.openstack import LimesClient

pytestmark = pytest.mark.real_loop

PROJECTS = [Project(id=f"p{number}", domain_id="d1") for number in range(5)]


@asynccontextmanager
async def client(limes: Limes, **given: Any) -> AsyncIterator[LimesClient]:
    limes.commitments = {(one.domain_id, one.id): [commitment(f"uuid-{one.id}")] for one in PROJECTS}
    async with limes.serving() as url, session({"resources": url}, **given) as opened:
        yield LimesClient(opened, settings(**given), clock=SystemClock(), random=Random(1))


async def test_every_project_is_asked_and_its_commitments_know_whose_they_are() -> None:
    async with client(Limes()) as limes:
        found = await limes.list_commitments(PROJECTS)
        assert [(one.uuid, one.project, one.domain) for one in found] == [
            (f"uuid-{one.id}", one.id, one.domain_id) for one in PROJECTS
        ]
        assert await limes.list_commitments([]) == ()


FAULTS: dict[str, Answerer] = {
    "is down": http_service.status(503, "maintenance"),
    "does not know the project": http_service.status(404),
    "refuses us": http_service.status(403),
    "wants to be asked elsewhere": http_service.status(301),
    "says nothing": http_service.body(b""),
    "says something else": http_service.body(b"<html></html>"),
    "has no list": http_service.body(b"{}"),
    "has null for a list": http_service.body(b'{"commitments": null}'),
    "has an entry without an amount": http_service.body(b'{"commitments": [{"uuid": "uuid-1"}]}'),
    "has a negative amount": http_service.body(b'{"commitments": [{"uuid": "uuid-1", "amount": -1}]}'),
    "has an amount that overflows": http_service.body(b'{"commitments": [{"uuid": "u", "amount": 1e30}]}'),
    "is cut off": http_service.body(b'{"commitments": [{"uuid": "uuid-1", "amou'),
    "does not answer": http_service.never,
    "drips": http_service.drips,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_one_project_that_cannot_be_read_fails_the_whole_list(fault: Answerer) -> None:
    limes = Limes()

    async def answer(request: Any) -> Any:
        return await (fault if "/p3/" in request.path else limes.answer)(request)

    limes.fault = answer
    async with client(limes, request_limit=0.5) as asked:
        with pytest.raises(OutliveError) as error:
            await asked.list_commitments(PROJECTS)
    assert "/projects/p3/" in str(error.value)


async def test_the_first_that_fails_ends_the_requests_of_the_others() -> None:
    limes = Limes()

    async def answer(request: Any) -> Any:
        return await (http_service.status(500) if "/p4/" in request.path else http_service.never)(request)

    limes.fault = answer
    async with client(limes, request_limit=50.0) as asked:
        with pytest.raises(OutliveError):
            await asked.list_commitments(PROJECTS)


async def test_limes_is_asked_by_a_few_at_a_time() -> None:
    limes = Limes()
    async with client(limes, project_requests=3) as asked:
        await asked.list_commitments(PROJECTS * 10)
    assert len(limes.requests) == 50
    assert 1 <= limes.most_running <= 3


async def test_a_cloud_without_limes_is_told_so() -> None:
    async with session({}) as opened:
        limes = LimesClient(opened, settings(), clock=SystemClock(), random=Random(1))
        with pytest.raises(NotFound, match="resources"):
            await limes.list_commitments(PROJECTS)


def test_requests_start_a_short_and_uneven_time_apart() -> None:
    clock, started = LoopClock(), []

    class Starts(LimesClient):
        async def _list_of_project(self, base: str, project: Project) -> list[Any]:
            started.append(clock.monotonic())
            return []

    async def ask() -> None:
        async with session({"resources": "http://limes.invalid"}, project_pause=0.05) as opened:
            await Starts(opened, settings(project_pause=0.05), clock=clock, random=Random(1)).list_commitments(PROJECTS)

    run(ask())
    gaps = [after - before for before, after in pairwise(started)]
    assert len(set(gaps)) == len(gaps) == 4
    assert all(0.025 <= gap <= 0.0751 for gap in gaps)
