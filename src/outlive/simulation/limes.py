"""A simulated Limes: it sells commitments, and asks whichever controller leads about each batch.

Like the real one it knows what it was answered, and nothing else: a batch counts once it is accepted. Of what nobody
answered it does not know what became, and goes on as if it had been refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta

from outlive.base import OutliveError, join_parts
from outlive.commitments import Batch, BatchRefusal, CommitmentRequest, ProjectRequest, ResourceRequest, resource_name
from outlive.resources import Amounts
from outlive.simulation.process import go
from outlive.simulation.spec import FromFile, Some

if TYPE_CHECKING:
    from outlive.simulation.world import World

GIB: Final = 2**30
ANSWER_S: Final = 60.0
"""How long it waits for an answer."""
WAITING_LIMIT: Final = 64
"""Batches that wait for one at the same time."""


class WantedCommitment(FromFile, frozen=True, kw_only=True):
    """What a batch makes of one commitment. What is left out stays as Limes knows it."""

    uuid: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9-]{6,40}$")]
    project: str = ""
    group: str = ""
    resource: Literal["", "memory", "cores"] = ""
    amount: Some | None = None
    """Of a new one, in units of the resource: the smallest flavor of a group with one ratio of memory to cores, or
    cores."""
    status: Literal["planned", "pending", "guaranteed", "confirmed", "deleted"] = "confirmed"

    def __str__(self) -> str:
        return f"{self.uuid} {self.status}"


class Sold(FromFile, frozen=True, kw_only=True):
    """A commitment, as Limes knows it."""

    project: str
    group: str
    resource: Literal["memory", "cores"]
    amount: int
    status: str


class SimLimes:
    """See the module. ``send`` returns at once; the answer becomes an event."""

    def __init__(self, world: World) -> None:
        self.sold: dict[str, Sold] = {}
        self.answers: dict[str, int] = {"accepted": 0, "refused": 0, "unanswered": 0}
        self._world = world
        self._sent = 0
        self._waiting: dict[str, asyncio.Task[None]] = {}

    def send(self, zone: str, wanted: Iterable[WantedCommitment]) -> None:
        """A batch; what is so already, or cannot be, is left out of it."""
        after: dict[str, Sold | None] = {}
        for one in wanted:
            known = self.sold.get(one.uuid)
            new: Sold | None = None
            if one.status != "deleted":
                new = Sold(
                    project=one.project or (known.project if known is not None else ""),
                    group=one.group or (known.group if known is not None else ""),
                    resource=one.resource or (known.resource if known is not None else "memory"),
                    amount=known.amount if known is not None else one.amount or 0,
                    status=one.status,
                )
                new = new if new.project and new.group and new.amount else known
            if new != known:
                after[one.uuid] = new
        batch = self._build_batch(zone, after)
        if not batch.projects or len(self._waiting) >= WAITING_LIMIT:
            why = f"waits for {WAITING_LIMIT} answers already" if batch.projects else "has nothing to ask for"
            self._say("", why)
            return
        self._sent += 1
        request = f"batch-{self._sent}"
        self._waiting[request] = go(self._ask(request, batch, after), name=f"limes waits for {request}")

    def _build_batch(self, zone: str, after: dict[str, Sold | None]) -> Batch:
        """Everything that changes, by project and resource, with the sums of what is promised before and afterwards."""
        places: dict[tuple[str, str], list[CommitmentRequest]] = {}
        for uuid, new in after.items():
            old = self.sold.get(uuid)
            for place in dict.fromkeys(_find_place(one) for one in (old, new) if one is not None):
                was = old if old is not None and _find_place(old) == place else None
                comes = new if new is not None and _find_place(new) == place else None
                amount = (comes or was or Sold(project="", group="", resource="memory", amount=0, status="")).amount
                request = CommitmentRequest(
                    uuid=uuid,
                    old_status=was.status if was is not None else None,
                    new_status=comes.status if comes is not None else None,
                    amount=amount,
                )
                places.setdefault(place, []).append(request)
        book = {**self.sold, **after}
        projects: dict[str, list[ResourceRequest]] = {}
        for (project, name), requests in places.items():
            found = ResourceRequest(
                name=name,
                confirmed_before=_sum_amounts(self.sold.values(), (project, name), "confirmed"),
                confirmed_after=_sum_amounts(book.values(), (project, name), "confirmed"),
                guaranteed_before=_sum_amounts(self.sold.values(), (project, name), "guaranteed"),
                guaranteed_after=_sum_amounts(book.values(), (project, name), "guaranteed"),
                commitments=tuple(requests),
            )
            projects.setdefault(project, []).append(found)
        made = tuple(ProjectRequest(project=name, resources=tuple(found)) for name, found in projects.items())
        return Batch(zone=zone, projects=made)

    async def _ask(self, request: str, batch: Batch, after: dict[str, Sold | None]) -> None:
        try:
            found, why = await self._answer(request, batch)
        finally:
            del self._waiting[request]
        self.answers[found] += 1
        if found == "accepted":
            self.sold |= {uuid: new for uuid, new in after.items() if new is not None}
            for uuid in [uuid for uuid, new in after.items() if new is None]:
                self.sold.pop(uuid, None)
        self._say(request, f"{found}{f': {why}' if why else ''}")
        if found != "unanswered":
            wanted = {uuid: self._summarise_sold(new) if new is not None else None for uuid, new in after.items()}
            self._world.judge.judge_answer(request, found == "accepted", wanted)

    async def _answer(self, request: str, batch: Batch) -> tuple[str, str]:
        """``accepted``, ``refused`` or ``unanswered``, and why."""
        service = self._world.leading_service()
        if service is None:
            return "unanswered", "no controller leads"
        changes = [
            f"{one.uuid} of {project.project} {one.old_status or 'new'}→{one.new_status or 'deleted'} {one.amount}"
            for project in batch.projects
            for resource in project.resources
            for one in resource.commitments
        ]
        self._say(request, f"is sent to {service.name}: {join_parts(sorted(changes))}")
        try:
            refusal: BatchRefusal | None = await service.ask(
                lambda role: role.role.commitments.changes.change(batch, request_id=request, requested_by="limes"),  # type: ignore[attr-defined]
                name=request,
                limit_s=ANSWER_S,
            )
        except OutliveError as error:
            return "unanswered", error.message
        return ("refused", refusal.reason) if refusal is not None else ("accepted", "")

    def _summarise_sold(self, sold: Sold) -> tuple[str, str, str, int]:
        """Project, status, type, and bytes or cores; a commitment that is only planned holds none yet."""
        unit = 1 if sold.status != "planned" else 0
        if sold.resource == "memory" and unit:
            sizes = [Amounts.parse({"cpu": one.cpu, "memory": one.memory}) for one in self._world.spec.flavors]
            fixed = len({one.memory_bytes // one.cpu_milli for one in sizes}) == 1
            unit = min(one.memory_bytes for one in sizes) if fixed else GIB
        return sold.project, sold.status, sold.resource, sold.amount * unit

    def _say(self, request: str, text: str) -> None:
        self._world.history.add("limes", request or "limes", f"{request or 'Limes'} {text}", loud=True)


def _find_place(sold: Sold) -> tuple[str, str]:
    """Project, and resource of LIQUID."""
    return sold.project, resource_name(sold.group, "ram" if sold.resource == "memory" else "cores")


def _sum_amounts(sold: Iterable[Sold | None], place: tuple[str, str], status: str) -> int:
    return sum(one.amount for one in sold if one is not None and one.status == status and _find_place(one) == place)
