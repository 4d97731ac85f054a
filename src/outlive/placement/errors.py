"""Errors of placement.

::

    OutliveError
    ├── StepFailed                a filter or weigher cannot say anything about this request
    └── BadInput
        └── RunRefused            the call as a whole cannot be answered; ``code`` says why
            ├── InvalidOptions      the options contradict each other
            ├── UnknownPipeline     no such pipeline
            ├── PipelineNotReady    one of its filters could not be set up
            ├── GatheringRefused    the pipeline takes all hosts, and the request is not for them
            └── BadRequest          the body is not a placement request
"""

from __future__ import annotations

from outlive.base import BadInput, OutliveError


class StepFailed(OutliveError):
    """A filter or weigher cannot say anything about this request; its pipeline says what that means."""

    code = "step-failed"

    def __init__(self, message: str, *, code: str = "step-failed", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.code = code


class RunRefused(BadInput):
    """The call as a whole cannot be answered."""

    code = "run-refused"
    status = 500


class InvalidOptions(RunRefused):
    """The options contradict each other."""

    code = "invalid-options"


class UnknownPipeline(RunRefused):
    """There is no such pipeline."""

    code = "pipeline-unknown"


class PipelineNotReady(RunRefused):
    """The pipeline exists but one of its filters could not be set up."""

    code = "pipeline-not-ready"


class GatheringRefused(RunRefused):
    """The pipeline takes all hosts as candidates, and the request is not for them."""

    code = "gathering-failed"


class BadRequest(RunRefused):
    """The body is not a placement request."""

    code = "bad-body"
    status = 400

    def __init__(self, message: str, *, code: str = "bad-body", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.code = code
