"""Who may use LIQUID with a token of Keystone (docs/reference/commitments.md#access).

A driver says whose token it is (``ports.TokenValidator``); what its owner may do is decided here, by the names of roles
and by the scope of the token.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:  # the settings have a policy, and ports know of what is counted by the settings
    from outlive.commitments.ports import TokenOwner

ADMIN_ROLE: Final = "cloud_resource_admin"
VIEWER_ROLE: Final = "cloud_resource_viewer"
"""Roles of Limes' own policy."""


class LiquidAction(enum.StrEnum):
    """What a request needs."""

    READ = "read reports"
    QUOTA = "set quota"
    CHANGE = "change commitments"


class LiquidPolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Which owners of Keystone tokens may do what. One of the roles suffices; names of roles ignore case."""

    read_roles: tuple[str, ...] = (ADMIN_ROLE, VIEWER_ROLE)
    """Who may read the catalogue and the reports."""
    quota_roles: tuple[str, ...] = (ADMIN_ROLE,)
    """Who may set quota."""
    change_roles: tuple[str, ...] = (ADMIN_ROLE,)
    """Who may change commitments, and ask whether a change would be accepted."""
    projects: tuple[str, ...] = ()
    """Ids of the projects to which a token must be scoped, or names as ``NAME@DOMAIN`` (plain ones where ``domains`` is
    set). Empty, as ``domains``: any scope reads, and only that of the whole cloud changes commitments and quota."""
    domains: tuple[str, ...] = ()
    """Ids or names of the domains of these projects; empty: any."""

    def roles(self, action: LiquidAction) -> tuple[str, ...]:
        """The roles of which one is needed."""
        match action:
            case LiquidAction.READ:
                return self.read_roles
            case LiquidAction.QUOTA:
                return self.quota_roles
            case LiquidAction.CHANGE:
                return self.change_roles

    def refusal(self, caller: TokenOwner, action: LiquidAction) -> str:
        """Why the caller may not do this, in one line; empty if he may."""
        wanted = self.roles(action)
        if not {role.lower() for role in caller.roles} & {role.lower() for role in wanted}:
            needs = f"one of the roles {', '.join(wanted)} is needed" if wanted else "no role may"
            return f"{shown(caller)} may not {action}: {needs}"
        qualified = f"{caller.project_name}@{caller.domain_name}", f"{caller.project_name}@{caller.domain_id}"
        scopes = {caller.project_id, *qualified, *((caller.project_name,) if self.domains else ())}
        if not (self.projects or self.domains or caller.system) and action is not LiquidAction.READ:
            return f"{shown(caller)} may not {action}: commitments.liquidPolicy names no projects whose tokens may"
        if self.projects and not scopes & set(self.projects):
            return f"{shown(caller)} may not {action}: the token is scoped to {_scope(caller)}"
        if self.domains and not {caller.domain_id, caller.domain_name} & set(self.domains):
            domain = caller.domain_name or caller.domain_id or "no domain"
            return f"{shown(caller)} may not {action}: the token is scoped to {_scope(caller)} of {domain}"
        return ""


def shown(caller: TokenOwner) -> str:
    """For logs and records: ``user@domain``, the user's id where the name is missing."""
    user = caller.user_name or caller.user_id
    return f"{user}@{caller.user_domain}" if caller.user_domain else user


def _scope(caller: TokenOwner) -> str:
    if caller.system:
        return "the whole cloud"
    return caller.project_name or caller.project_id or "no project"
