"""The steps of a tick, and how it ends when one of them fails."""

from __future__ import annotations

import enum

from outlive.base.errors import OutliveError, Unavailable


class Step(enum.StrEnum):
    """What a tick was doing when it could not go on: the label of the counter of aborted cycles."""

    HYPERVISORS = "hypervisors"
    VMS = "vms"
    SLOTS = "slots"
    DECIDE = "decide"


class Aborted(Unavailable):
    """A tick that could not go on, and during which step. If it could not read, nothing was written."""

    code = "cycle-aborted"

    def __init__(self, step: Step, error: OutliveError) -> None:
        super().__init__(f"cycle aborted at step {step.value}: {error}")
        self.step = step
