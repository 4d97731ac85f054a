"""Whether a recovered VM is where it was being moved to when its host died."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from outlive.resources import Recovery, RecoveryStep

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("steps", "moved"),
    [
        ((), False),
        (("fenced", "claimed", "assigned", "running"), False),
        (("fenced", "kept", "assigned", "running"), True),
        (("fenced", "kept", "assigned", "rejected", "claimed", "assigned"), False),
        (("fenced", "kept", "assigned", "rejected", "assigned", "running"), False),
    ],
)
def test_vm_is_where_it_was_moved_to_unless_it_was_sent_on(steps: tuple[str, ...], *, moved: bool) -> None:
    taken = tuple(RecoveryStep(at=AT, what=what) for what in steps)
    assert Recovery(fence="f", steps=taken).moved_there is moved
