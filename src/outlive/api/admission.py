"""What is looked at before an object is written, beyond its schema: whether a pipeline can be built at all, and whether
a VM's protection is one that settings could name.

A step that this version does not know is a warning, never an error, so that a roll-out may name steps of a newer one
(docs/reference/placement.md). Deletions and status writes always pass.
"""

from __future__ import annotations

import msgspec

from outlive.api.wire import Answer
from outlive.base.errors import Invalid
from outlive.failover.protection import check_wishes
from outlive.placement.pipelines import admit
from outlive.resources import Pipeline, Resource, VirtualMachine

WARNING = b"warning"


def admitted(obj: Resource) -> tuple[str, ...]:
    """Warnings for whoever writes it; ``Invalid`` with all errors where it cannot be used."""
    if isinstance(obj, VirtualMachine):
        check_wishes(obj.name, obj.spec.protection, obj.spec.restart_priority)
    if not isinstance(obj, Pipeline):
        return ()
    admission = admit(obj)
    if admission.errors:
        errors = "; ".join(str(error) for error in admission.errors)
        raise Invalid(f"pipeline {obj.name}: {errors}", place="spec", remedy="see docs/reference/placement.md")
    return admission.warnings


def warned(answer: Answer, warnings: tuple[str, ...]) -> Answer:
    """The answer with each warning in a header, where kubectl shows it."""
    if not warnings:
        return answer
    quoted = [text.replace("\\", "\\\\").replace('"', '\\"') for text in warnings]
    headers = tuple((WARNING, f'299 outlive "{text}"'.encode("latin-1", "replace")) for text in quoted)
    return msgspec.structs.replace(answer, headers=(*answer.headers, *headers))
