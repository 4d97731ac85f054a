"""A batch as documents of the store, none of which is too large, and the batch that documents make up.

The last document says that the batch counts; the others are created before it. A commitment of many slots is in it
several times, with some of its slots each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from outlive.base import limits
from outlive.resources import CommitmentChange, CommitmentStep, ObjectMeta, encode

DOCUMENT_BYTES: Final = limits.OBJECT_BYTES * 3 // 4
"""What one document of a change has of it, at most."""
PIECE_SLOTS: Final = 400
"""Slots of one commitment that are never divided between two documents."""


def documents_of(head: CommitmentChange) -> list[CommitmentChange]:
    """The change, whose head has all steps, in documents; its head last."""
    first, *portions = _split(head.steps)
    rest = [
        CommitmentChange(
            metadata=ObjectMeta(name=part_name(head, number), labels=head.metadata.labels),
            part_of=head.nonce,
            decided_at=head.decided_at,
            steps=tuple(steps),
        )
        for number, steps in enumerate(portions, 1)
    ]
    return [*rest, replace(head, parts=len(rest), steps=tuple(first))]


def part_name(head: CommitmentChange, number: int) -> str:
    """The name of a further document of a change, from 1 on."""
    return f"change-{head.nonce}-{number}"


def join_documents(
    head: CommitmentChange, documents: Mapping[str, CommitmentChange]
) -> tuple[CommitmentStep, ...] | None:
    """All steps of the change, from its head and further documents by name; ``None`` where one is missing."""
    steps: list[CommitmentStep] = []
    for number in range(head.parts + 1):
        document = head if number == 0 else documents.get(part_name(head, number))
        if document is None:
            return None
        for piece in document.steps:
            if steps and steps[-1].uuid == piece.uuid:
                steps[-1] = replace(piece, slots=steps[-1].slots + piece.slots)
            else:
                steps.append(piece)
    return tuple(steps)


def _split(steps: Iterable[CommitmentStep]) -> list[list[CommitmentStep]]:
    """The steps in portions that each fit into one document; at least one portion, which may be empty."""
    portions: list[list[CommitmentStep]] = [[]]
    size = 0
    for step in steps:
        for first in range(0, max(1, len(step.slots)), PIECE_SLOTS):
            piece = replace(step, slots=step.slots[first : first + PIECE_SLOTS])
            bytes_ = len(encode(piece))
            if portions[-1] and size + bytes_ > DOCUMENT_BYTES:
                portions.append([])
                size = 0
            portions[-1].append(piece)
            size += bytes_
    return portions
