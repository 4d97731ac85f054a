"""A request for changes, as Limes sends it, becomes a batch; and who decides batches.

``Changes`` is what the LIQUID interface needs of whoever holds the ledger, and all that it knows of him.
"""

from __future__ import annotations

from typing import Protocol

from outlive.commitments.answers import Answered
from outlive.commitments.batch import Batch, CommitmentRequest, ProjectRequest, ResourceRequest
from outlive.commitments.decision import Refusal
from outlive.commitments.liquid import ChangeRequest, ResourceChange

__all__ = ["Changes", "Refusal", "batch_of"]


class Changes(Protocol):
    """Who decides batches, one at a time."""

    async def recall(self, request_id: str, digest: str) -> Answered | None:
        """What a request was answered before, if that is known. ``Conflict``: another one had the same name."""
        ...

    async def change(self, batch: Batch, *, request_id: str, requested_by: str, digest: str = "") -> Refusal | None:
        """Decide and commit a batch; ``None``: it is accepted, and all of it counts from now on.

        If the caller is cancelled before the commit, nothing is done; after it, the batch is carried out all the same.
        A batch that is not decided within ``settings.watch_timeout`` is refused, and the refusal says so.
        ``Unavailable``: nothing was done. ``Unknown``: nobody can say whether it was committed.
        ``digest``: of what is asked for, where the caller named the request.
        """
        ...

    async def dry_run(self, batch: Batch, *, request_id: str) -> Refusal | None:
        """Whether the batch would be accepted; nothing is done."""
        ...


def batch_of(request: ChangeRequest) -> Batch:
    """The request as a batch, which knows nothing of the wire."""
    return Batch(
        zone=request.az,
        dry_run=request.dry_run,
        projects=tuple(
            ProjectRequest(
                project=project,
                domain=change.project_metadata.domain.uuid if change.project_metadata is not None else "",
                domain_name=change.project_metadata.domain.name if change.project_metadata is not None else "",
                resources=tuple(_resource(name, one) for name, one in (change.by_resource or {}).items()),
            )
            for project, change in (request.by_project or {}).items()
        ),
    )


def _resource(name: str, change: ResourceChange) -> ResourceRequest:
    return ResourceRequest(
        name=name,
        confirmed_before=change.total_confirmed_before,
        confirmed_after=change.total_confirmed_after,
        guaranteed_before=change.total_guaranteed_before,
        guaranteed_after=change.total_guaranteed_after,
        commitments=tuple(
            CommitmentRequest(
                uuid=one.uuid,
                old_status=one.old_status,
                new_status=one.new_status,
                amount=one.amount,
                confirm_by=one.confirm_by,
                expires_at=one.expires_at,
                old_expires_at=one.old_expires_at,
            )
            for one in change.commitments or ()
        ),
    )
