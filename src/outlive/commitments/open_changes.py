"""Changes that count and are not applied yet: in every process the ledger holds their slots as they will be.

A batch counts from the creation of its ``CommitmentChange`` on, and its commitments and slots are written after it
(docs/reference/commitments.md#batches). The process that decided it may be gone by then. So what is held does not rest
on who decided, but on the changes that the store has, from the moment on in which this process sees them.
"""

from __future__ import annotations

from collections.abc import Iterator

from outlive.commitments.application import ChangeApplier
from outlive.commitments.decision import BATCH
from outlive.commitments.documents import join_documents
from outlive.resources import OPEN_LABEL, CommitmentChange, CommitmentStep
from outlive.runtime import Informer
from outlive.store import Selector

OPEN: Selector = Selector.from_labels({OPEN_LABEL: "true"})
"""What the informer of changes selects."""


class OpenChanges:
    """See the module. ``informer`` has the documents that ``OPEN`` selects."""

    def __init__(self, informer: Informer[CommitmentChange], applier: ChangeApplier) -> None:
        self._informer = informer
        self._applier = applier
        self._steps: dict[str, tuple[CommitmentStep, ...]] = {}
        """Change → all its steps, which the ledger holds."""
        informer.subscribe(self._on_document)

    def iterate_steps(self) -> Iterator[CommitmentStep]:
        """What all of them do, the oldest first."""
        for name in sorted(self._steps):
            yield from self._steps[name]

    def _on_document(self, _old: CommitmentChange | None, _new: CommitmentChange | None) -> None:
        documents = {one.name: one for one in self._informer.items()}
        heads = {one.name: one for one in documents.values() if not one.part_of and one.phase == "decided"}
        for name in self._steps.keys() - heads.keys():
            del self._steps[name]
            self._applier.settle(name)
        for name in sorted(heads.keys() - self._steps.keys()):
            if (steps := join_documents(heads[name], documents)) is not None:
                self._steps[name] = steps
                self._applier.hold(steps, name, instead_of=BATCH)
