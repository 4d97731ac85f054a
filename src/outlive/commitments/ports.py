"""What commitments need of the outside: projects of Keystone, commitments of Limes, and who calls our LIQUID API.

``outlive.drivers.openstack`` implements these for the real world. Every call may raise ``Unavailable``; none gives part
of an answer: it is whole, or it fails (docs/reference/commitments.md#sync).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Protocol, TypeVar

import msgspec
from msgspec import Meta

from outlive.commitments.state import ListedCommitment
from outlive.resources import CommitmentStep


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """A project of Keystone; other members of its record are overlooked."""

    id: Annotated[str, Meta(min_length=1, max_length=255)]
    name: str = ""
    domain_id: Annotated[str, Meta(min_length=1, max_length=255)]
    parent_id: str | None = None


class KeystoneDomain(msgspec.Struct, frozen=True, kw_only=True):
    """A domain of Keystone; other members of its record are overlooked."""

    id: Annotated[str, Meta(min_length=1, max_length=255)]
    name: str = ""


class DomainSource(Protocol):
    """Keystone's domains, and the projects in them."""

    async def list_domains(self) -> tuple[KeystoneDomain, ...]:
        """All domains, by id."""
        ...

    async def list_projects(self) -> tuple[Project, ...]:
        """All projects, by id."""
        ...


class ProjectSource(Protocol):
    """Keystone's projects."""

    async def list_projects(self) -> tuple[Project, ...]:
        """All of them, by id."""
        ...


class CommitmentSource(Protocol):
    """Limes' commitments."""

    async def list_commitments(self, projects: Sequence[Project]) -> tuple[ListedCommitment, ...]:
        """What it lists for these projects, each with its project and domain; superseded and expired ones are not
        listed. The first project that cannot be asked fails the whole call."""
        ...


T = TypeVar("T")


class Offload(Protocol):
    """Where a computation of more than a moment runs, so that the event loop stays free: a thread. What it works on is
    not touched meanwhile."""

    async def __call__(self, work: Callable[[], T], /) -> T:
        """What the work returns."""
        ...


async def run_inline(work: Callable[[], T], /) -> T:
    """Works on the spot: for simulation, where everything is one thread."""
    return work()


StepWriter = Callable[[CommitmentStep], Awaitable[None]]
"""Carries out one step that the syncer planned, under the lock of all changes.

The step's ``before`` must still be the spec of the commitment, and a commitment whose slots go as orphans must still
not exist; else it raises ``Conflict`` and writes nothing. Other errors are those of the store."""


class TokenOwner(msgspec.Struct, frozen=True, kw_only=True):
    """Who a token of Keystone belongs to."""

    user_id: str
    user_name: str = ""
    user_domain: str = ""
    """Name of the user's domain."""
    project_id: str = ""
    """Of the token's scope; empty where it has another one."""
    project_name: str = ""
    domain_id: str = ""
    """Of the project, or the domain that is the token's scope."""
    domain_name: str = ""
    system: bool = False
    """Whether its scope is the whole cloud."""
    roles: frozenset[str] = frozenset()
    """Names, in the token's scope."""
    expires_at: float
    """Seconds since 1970."""


class TokenValidator(Protocol):
    """Who says whether a token of a caller is good."""

    async def validate(self, token: str) -> TokenOwner | None:
        """Whose it is; ``None`` for one that is unknown, revoked or over. ``Unavailable`` where nobody can say."""
        ...
