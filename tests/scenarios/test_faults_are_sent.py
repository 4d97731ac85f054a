"""What somebody has to be woken for is a fault at once, of a severity that is sent by default.

From a fault to the message it takes at most ``LOOK_S`` and ``GATHER_S`` of the notifier (with real receivers:
``tests/integration/test_notifications.py``), so that both together stay below five seconds. A dead server sends
nothing: its heartbeat stops, and Prometheus no longer reaches it (``test_notifier.py``, ``test_alerts.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlive.resources import Fault, Membership, RecoveryPhase, VirtualMachine
from outlive.resources.reasons import FaultCode, severity_of
from outlive.runtime import GATHER_S, TargetSettings
from outlive.runtime.notifier import LOOK_S
from outlive.simulation import World
from tests.support.watched_story import WatchedStory

HERE = Path(__file__).parent
BAR_S = 5.0


def dead_hosts(world: World) -> Iterator[str]:
    members = world.store.list_all(Membership)
    return (one.name for one in members if one.record.dead_through >= one.record.epoch)


def unproven_hosts(world: World) -> Iterator[str]:
    members = world.store.list_all(Membership)
    return (one.name for one in members if one.record.fence.phase == "unconfirmed")


def waiting_vms(world: World) -> Iterator[str]:
    for one in world.store.list_all(VirtualMachine):
        if one.status.recovery is not None and one.status.recovery.phase is RecoveryPhase.HELD:
            yield one.name


class IncidentStory(WatchedStory):
    """A story in which is noted when somebody could know of what is wrong, and since when a fault says so."""

    pause_s = 0.1

    def __init__(self, *given: Any, code: FaultCode, incidents: Callable[[World], Iterator[str]], **named: Any) -> None:
        super().__init__(*given, **named)
        self.known_s: dict[str, float] = {}
        self.raised_s: dict[str, float] = {}
        self._code, self._incidents = code, incidents

    def note(self) -> None:
        for name in self._incidents(self.world):
            self.known_s.setdefault(name, self.now_s)
        for fault in self.world.store.list_all(Fault):
            if fault.code == self._code:
                self.raised_s.setdefault(fault.subject.name, self.now_s)


@pytest.mark.parametrize(
    ("scenario", "code", "incidents"),
    [
        ("host-loses-power", FaultCode.HOST_DEAD, dead_hosts),
        ("no-room-anywhere", FaultCode.VM_HELD, waiting_vms),
        ("partitioned-host-that-nobody-can-reach-keeps-its-vms", FaultCode.FENCE_UNCONFIRMED, unproven_hosts),
    ],
    ids=["dead host", "waiting VM", "unproven fence"],
)
def test_a_fault_is_sent_within_five_seconds(
    scenario: str, code: FaultCode, incidents: Callable[[World], Iterator[str]]
) -> None:
    story = IncidentStory.played(HERE / scenario, code=code, incidents=incidents)
    assert story.known_s, "nothing of it happened"
    assert story.known_s.keys() == story.raised_s.keys()
    late = {name: story.raised_s[name] - known_s for name, known_s in story.known_s.items()}
    assert max(late.values()) + LOOK_S + GATHER_S <= BAR_S, late
    assert severity_of(code) in TargetSettings().severities
