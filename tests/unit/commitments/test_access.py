"""Whose token of Keystone may do what: by roles, and by the scope that the policy names."""

from __future__ import annotations

import pytest

from outlive.commitments import ADMIN_ROLE, LiquidAction, LiquidPolicy, TokenOwner


def owner(**scope: object) -> TokenOwner:
    return TokenOwner(user_id="u", roles=frozenset({ADMIN_ROLE}), expires_at=0.0, **scope)  # type: ignore[arg-type]


IN_PROJECT = owner(project_id="p9", project_name="cloud_admin", domain_id="d9", domain_name="ccadmin")
ELSEWHERE = owner(project_id="p1", project_name="cloud_admin", domain_id="d1", domain_name="customers")


@pytest.mark.parametrize(
    ("policy", "caller", "may"),
    [
        (LiquidPolicy(), IN_PROJECT, False),
        (LiquidPolicy(), owner(system=True), True),
        (LiquidPolicy(projects=("p9",)), IN_PROJECT, True),
        (LiquidPolicy(projects=("cloud_admin@ccadmin",)), IN_PROJECT, True),
        (LiquidPolicy(projects=("cloud_admin@d9",)), IN_PROJECT, True),
        (LiquidPolicy(projects=("cloud_admin@ccadmin",)), ELSEWHERE, False),
        (LiquidPolicy(projects=("cloud_admin",)), ELSEWHERE, False),
        (LiquidPolicy(projects=("cloud_admin",), domains=("ccadmin",)), IN_PROJECT, True),
        (LiquidPolicy(projects=("cloud_admin",), domains=("ccadmin",)), ELSEWHERE, False),
        (LiquidPolicy(domains=("ccadmin",)), IN_PROJECT, True),
    ],
)
def test_a_role_in_a_project_of_the_same_name_in_another_domain_changes_nothing(
    policy: LiquidPolicy, caller: TokenOwner, may: bool
) -> None:
    assert (policy.explain_refusal(caller, LiquidAction.CHANGE) == "") is may
    assert (policy.explain_refusal(caller, LiquidAction.QUOTA) == "") is may


def test_any_scope_reads_as_it_comes() -> None:
    assert LiquidPolicy().explain_refusal(ELSEWHERE, LiquidAction.READ) == ""
