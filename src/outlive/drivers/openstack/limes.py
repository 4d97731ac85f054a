"""Limes: the commitments of all projects, each asked for by itself.

Requests start a short time apart, so that Limes is not hit by all of them at once, and no more than a few run together.
The first that fails ends the whole call: a list in which somebody is missing looks like commitments that are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final
from urllib.parse import quote

import msgspec
from msgspec import Meta

from outlive.base import Clock, OutliveError, Random, leaf_errors
from outlive.commitments import ListedCommitment, Project
from outlive.drivers.openstack.session import OpenStackSession, decode
from outlive.inventory import OpenStackSettings
from outlive.runtime import OrderedTaskGroup

SERVICE = "resources"
"""Limes' type of service in the catalogue."""
INTERFACE = "public"
"""Limes answers 400 under its internal names."""
ANSWER_BYTES = 16 * 2**20
"""The largest list of one project."""


UNSIGNED_LIMIT: Final = 2**63 - 1
"""The largest amount, and the latest time, that is taken over."""
Unsigned = Annotated[int, Meta(ge=0, le=UNSIGNED_LIMIT)]


class LimesCommitment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A commitment as Limes lists it for one project; members that are not known are overlooked. Times are whole
    seconds since 1970."""

    id: int = 0
    uuid: str = ""
    service_type: str = ""
    resource_name: str = ""
    availability_zone: str = ""
    amount: Unsigned
    unit: str = ""
    """Empty for what is counted."""
    duration: str = ""
    """A sum such as ``1 year, 3 months``."""
    created_at: Unsigned = 0
    confirm_by: Unsigned | None = None
    confirmed_at: Unsigned | None = None
    expires_at: Unsigned = 0
    """0: it does not end."""
    status: str | None = None

    def with_project(self, project: Project) -> ListedCommitment:
        """The same, with the project of which it was asked: Limes does not say it."""
        return ListedCommitment(
            uuid=self.uuid,
            project=project.id,
            domain=project.domain_id,
            service_type=self.service_type,
            resource_name=self.resource_name,
            zone=self.availability_zone,
            amount=self.amount,
            unit=self.unit,
            status=self.status or "",
            created_at=self.created_at,
            confirm_by=self.confirm_by,
            confirmed_at=self.confirmed_at,
            expires_at=self.expires_at,
        )


class _Listed(msgspec.Struct):
    commitments: list[LimesCommitment]


class LimesClient:
    """A ``CommitmentSource``."""

    def __init__(self, session: OpenStackSession, settings: OpenStackSettings, *, clock: Clock, random: Random) -> None:
        self._session = session
        self._settings = settings
        self._clock = clock
        self._random = random

    async def list_commitments(self, projects: Sequence[Project]) -> tuple[ListedCommitment, ...]:
        """See ``CommitmentSource``. In the order of the projects."""
        base = await self._session.get_endpoint(SERVICE, interface=INTERFACE)
        running = asyncio.Semaphore(self._settings.project_requests)
        pause = float(self._settings.project_pause)
        tasks: list[asyncio.Task[list[ListedCommitment]]] = []
        try:
            async with OrderedTaskGroup() as group:
                for number, project in enumerate(projects):
                    if number:
                        await self._clock.sleep(pause * self._random.uniform(0.5, 1.5))
                    await running.acquire()
                    task = group.create_task(self._list_of_project(base, project), name=f"commitments of {project.id}")
                    task.add_done_callback(lambda _: running.release())
                    tasks.append(task)
        except BaseExceptionGroup as errors:
            # the others were cancelled for it
            raise next((one for one in leaf_errors(errors) if isinstance(one, OutliveError)), errors) from None
        return tuple(one for task in tasks for one in task.result())

    async def _list_of_project(self, base: str, project: Project) -> list[ListedCommitment]:
        domain, name = quote(project.domain_id, safe=""), quote(project.id, safe="")
        url = f"{base}/v1/domains/{domain}/projects/{name}/commitments"
        found = decode(await self._session.get(url, limit_bytes=ANSWER_BYTES), _Listed).commitments
        return [one.with_project(project) for one in found]
