"""Who may call LIQUID over HTTP: roles of tokens, tokens of Keystone, and what a server without either says."""

from __future__ import annotations

import pytest
from tests.support.api import TOKENS, api
from tests.support.liquid_calls import CAPACITY, CHANGE, INFO, OFF, QUOTA, USAGE, Limes, claimed
from tests.support.loops import run_by

from outlive.api import KeystoneAccess, Role
from outlive.base import Unavailable
from outlive.commitments import LiquidPolicy, TokenOwner

CALLS = {INFO: "GET", CAPACITY: "POST", USAGE: "POST", CHANGE: "POST", QUOTA: "PUT"}


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        (Role.ADMIN, set(CALLS)),
        (Role.LIQUID, set(CALLS)),
        (Role.OPERATOR, {INFO, CAPACITY, USAGE}),
        (Role.VIEWER, {INFO, CAPACITY, USAGE}),
        (Role.SCHEDULER, set()),
        (Role.HOST, set()),
        (Role.JOIN, set()),
    ],
)
@run_by(claimed)
async def test_each_role_may_what_it_is_for(caller: Limes, *, role: Role, allowed: set[str]) -> None:
    for path, method in CALLS.items():
        status, text, _ = await caller.call(method, path, {"az": ""}, role=role)
        assert (status not in (401, 403)) == (path in allowed), (path, text)
    assert (await caller.api.call("GET", "/apis", role=Role.LIQUID))[0] == 403


@run_by(claimed, settings=OFF)
async def test_without_a_token_nobody_learns_whether_anything_is_switched_off(caller: Limes) -> None:
    for path in CALLS:
        status, text, headers = await caller.call("DELETE", path, role=None)
        assert (status, headers["Content-Type"]) == (401, "text/plain; charset=utf-8")
        assert "a token is needed" in text


class Keystone:
    """Knows two tokens, and may be away."""

    def __init__(self) -> None:
        self.away = False

    async def validate(self, token: str) -> TokenOwner | None:
        if self.away:
            raise Unavailable("http://10.1.2.3:5000 did not answer")
        roles = {"of-limes": {"Cloud_Resource_Admin"}, "of-a-reader": {"cloud_resource_viewer", "member"}}.get(token)
        return (
            None
            if roles is None
            else TokenOwner(
                user_id="u1",
                user_name="limes",
                user_domain="default",
                project_id="p9",
                project_name="cloud_admin",
                domain_id="d9",
                domain_name="ccadmin",
                roles=frozenset(roles),
                expires_at=2e9,
            )
        )


def test_a_token_of_keystone_may_what_the_policy_says() -> None:
    keystone = Keystone()

    async def claim(caller: Limes) -> None:
        async def status_of(token: str, path: str) -> tuple[int, str]:
            headers = {"X-Auth-Token": token}
            status, text, _ = await caller.call(CALLS[path], path, {"az": ""}, role=None, headers=headers)
            return status, text

        assert [(await status_of("of-limes", path))[0] for path in CALLS] == [200, 200, 200, 400, 204]
        assert [(await status_of("of-a-reader", path))[0] for path in CALLS] == [200, 200, 200, 403, 403]
        assert await status_of("of-a-reader", QUOTA) == (
            403,
            "limes@default may not set quota: one of the roles cloud_resource_admin is needed "
            "(see docs/reference/commitments.md#access)\n",
        )
        for token in ("unknown", "x" * 20_000):
            assert (await status_of(token, INFO))[0] == 401
        keystone.away = True
        assert await status_of("of-limes", INFO) == (503, "the token cannot be checked now, please retry later\n")
        headers = {"X-Auth-Token": "of-limes"}
        assert (await caller.api.call("GET", "/apis", role=None, headers=headers))[0] == 401
        headers["Authorization"] = f"Bearer {TOKENS[Role.ADMIN]}"
        assert (await caller.call("GET", INFO, role=None, headers=headers))[0] == 200

    claimed(claim, keystone=KeystoneAccess(keystone, LiquidPolicy(projects=("p9",))))


@pytest.mark.parametrize(
    ("policy", "status"),
    [
        (LiquidPolicy(projects=("cloud_admin",), domains=("d9",)), 200),
        (LiquidPolicy(projects=("p9",), domains=("ccadmin",)), 200),
        (LiquidPolicy(projects=("cloud_admin@ccadmin",)), 200),
        (LiquidPolicy(projects=("cloud_admin@another",)), 403),
        (LiquidPolicy(projects=("cloud_admin",)), 403),
        (LiquidPolicy(projects=("another",)), 403),
        (LiquidPolicy(domains=("another",)), 403),
        (LiquidPolicy(read_roles=()), 403),
        (LiquidPolicy(read_roles=("member",)), 403),
    ],
)
def test_the_scope_of_a_token_counts(policy: LiquidPolicy, status: int) -> None:
    async def claim(caller: Limes) -> None:
        got, _, _ = await caller.call("GET", INFO, role=None, headers={"X-Auth-Token": "of-limes"})
        assert got == status

    claimed(claim, keystone=KeystoneAccess(Keystone(), policy))


@run_by(claimed)
async def test_a_server_without_keystone_says_what_to_send(caller: Limes) -> None:
    status, text, _ = await caller.call("GET", INFO, role=None, headers={"X-Auth-Token": "of-limes"})
    assert status == 401
    assert "Authorization: Bearer" in text


async def test_a_process_that_sells_nothing_says_so() -> None:
    async with api() as server:
        for path, method in CALLS.items():
            status, text, _ = await server.call(method, path, data=b"{}")
            assert (status, text) == (503, "this process sells no capacity\n")
