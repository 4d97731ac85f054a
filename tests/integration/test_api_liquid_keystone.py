"""LIQUID with tokens of a real Keystone: who may, also when it locks a user out or is away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support import keystone
from tests.support.api import Api, api
from tests.support.keystone import Keystone
from tests.support.liquid import fixed_group, liquid
from tests.support.loops import run_real
from tests.support.openstack import settings

from outlive.api import KeystoneAccess
from outlive.base import SystemClock
from outlive.commitments import ADMIN_ROLE, VIEWER_ROLE, LiquidPolicy
from outlive.drivers.openstack import KeystoneTokens, OpenStackSession

pytestmark = pytest.mark.component("keystone")
INFO, QUOTA = "/commitments/v1/info", "/commitments/v1/projects/p1/quota"
SERVICE, SECRET = "outlive", "pa55word-of-the-service"


@pytest.fixture(scope="module")
def cloud() -> Iterator[Keystone]:
    with keystone.running() as server:
        project = server.create("projects", name="cloud_admin", domain_id="default")
        for role in (ADMIN_ROLE, VIEWER_ROLE):
            server.create("roles", name=role)
        server.add_user(SERVICE, SECRET, project, "admin")
        server.add_user("limes", "pa55word-of-limes", project, ADMIN_ROLE)
        server.add_user("reader", "pa55word-of-a-reader", project, VIEWER_ROLE)
        server.add_user("stranger", "pa55word-of-a-stranger", project, "member")
        yield server


@asynccontextmanager
async def served(cloud: Keystone, folder: Path, policy: LiquidPolicy | None = None) -> AsyncIterator[Api]:
    path = cloud.clouds(folder / "clouds.yaml", user=SERVICE, password=SECRET, project="cloud_admin")
    session = OpenStackSession(settings(clouds_file=str(path), request_limit=20.0))
    access = KeystoneAccess(
        KeystoneTokens(session, SystemClock()), policy or LiquidPolicy(projects=("cloud_admin@Default",))
    )
    try:
        async with (
            liquid(fixed_group()) as world,
            api(world.store, commitments=world.service, keystone=access) as server,
        ):
            yield server
    finally:
        await session.close()


async def statuses(server: Api, token: str) -> tuple[int, int]:
    """Of reading the catalogue, and of setting quota."""
    headers: dict[str, Any] = {"X-Auth-Token": token}
    read, _, _ = await server.call("GET", INFO, role=None, headers=headers)
    written, _, _ = await server.call("PUT", QUOTA, role=None, headers=headers, data=b"{}")
    return read, written


async def test_roles_of_keystone_decide(cloud: Keystone, tmp_path: Path) -> None:
    async with served(cloud, tmp_path) as server:
        for user, expected in (("limes", (200, 204)), ("reader", (200, 403)), ("stranger", (403, 403))):
            password = f"pa55word-of-{'' if user == 'limes' else 'a-'}{user}"
            assert await statuses(server, cloud.login(user, password, "cloud_admin")) == expected, user
        assert await statuses(server, "no-token-of-this-keystone") == (401, 401)
    async with served(cloud, tmp_path, LiquidPolicy(projects=("elsewhere",))) as server:
        assert await statuses(server, cloud.login("limes", "pa55word-of-limes", "cloud_admin")) == (403, 403)


def test_a_token_of_a_user_who_was_locked_out_is_refused(cloud: Keystone, tmp_path: Path) -> None:
    project = cloud.id_of("projects", "cloud_admin")
    user = cloud.add_user("leaver", "pa55word-of-a-leaver", project, ADMIN_ROLE)
    token = cloud.login("leaver", "pa55word-of-a-leaver", "cloud_admin")

    async def claim(expected: tuple[int, int]) -> None:
        async with served(cloud, tmp_path) as server:
            assert await statuses(server, token) == expected

    run_real(claim((200, 204)))
    assert cloud.call("PATCH", f"/users/{user}", {"user": {"enabled": False}})[0] == 200
    run_real(claim((401, 401)))


async def test_a_keystone_that_is_away_refuses_nobody(cloud: Keystone, tmp_path: Path) -> None:
    token = cloud.login("reader", "pa55word-of-a-reader", "cloud_admin")
    async with served(cloud, tmp_path) as server:
        assert await statuses(server, token) == (200, 403)
        cloud.stop()
        try:
            assert await statuses(server, token) == (200, 403), "an answer is kept for a short time"
            headers = {"X-Auth-Token": "a-token-that-was-never-asked-about"}
            status, text, _ = await server.call("GET", INFO, role=None, headers=headers)
            assert (status, text) == (503, "the token cannot be checked now, please retry later\n")
        finally:
            cloud.start()
