"""The check as a decision: plain JSON in, a verdict out."""

from __future__ import annotations

from typing import Any

import msgspec

from outlive.failover.verify.checking import Verdict, Wishes, check
from outlive.failover.verify.document import CertifiedState
from outlive.resources.state import read_facts


class VerifyInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A state and a certificate."""

    objects: tuple[dict[str, Any], ...]
    """The state's objects as JSON, as in a state file."""
    certificate: CertifiedState
    wishes: Wishes = Wishes()


def decide(given: VerifyInput) -> Verdict:
    """The verdict; ``BadInput`` names the object that is none."""
    wire = {"takenAt": "1970-01-01T00:00:00Z", "objects": given.objects}
    return check(read_facts(msgspec.json.encode(wire), "input"), given.certificate, given.wishes)
