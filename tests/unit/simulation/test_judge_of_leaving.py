"""The judge of hosts that are left because they get slow."""

from __future__ import annotations

from typing import Any

import msgspec

from outlive.base import as_datetime
from outlive.resources import (
    Assigned,
    Degrading,
    Hypervisor,
    HypervisorSpec,
    HypervisorStatus,
    Migration,
    ObjectMeta,
    VirtualMachine,
    VirtualMachineStatus,
)
from outlive.simulation import Author
from outlive.simulation.judges import KNOWN_S, Slow, check_degrading_move

DRAINER = Author("kvm-1/daemon", "kvm-1", ("flush", "move", "daemon"))
HERE = VirtualMachine(
    metadata=ObjectMeta(name="vm-1"),
    status=VirtualMachineStatus(phase="start", assigned=Assigned(hypervisor="kvm-1"), home="kvm-1"),
)


def host(name: str, *, slow: bool, drain: bool = False) -> Hypervisor:
    degrading = Degrading(since=as_datetime(0.0), leaving="leaves") if slow else None
    return Hypervisor(
        metadata=ObjectMeta(name=name),
        spec=HypervisorSpec(drain=drain),
        status=HypervisorStatus(degrading=degrading),
    )


class Known:
    """The truth, as far as this judge asks for it."""

    def __init__(self, *hosts: Hypervisor) -> None:
        self.store: Any = self
        self._hosts = {one.name: one for one in hosts}

    def find(self, kind: Any, name: str) -> Hypervisor | None:
        return self._hosts.get(name)


def judged(target: Hypervisor, *, mode: Any = "live", drain: bool = False, at_s: float = KNOWN_S + 1) -> str:
    slow = Slow()
    slow.note_host(target, 0.0)
    move = Migration(id="m", source="kvm-1", target="kvm-2", mode=mode)
    status = msgspec.structs.replace(HERE.status, phase="migrate-live", migration=move)
    after = msgspec.structs.replace(HERE, status=status)
    truth: Any = Known(host("kvm-1", slow=True, drain=drain), target)
    return check_degrading_move(truth, slow, HERE, after, DRAINER, at_s)


def test_live_move_to_a_host_that_does_well_is_as_promised() -> None:
    assert judged(host("kvm-2", slow=False)) == ""


def test_move_to_a_host_that_is_known_to_be_slow_breaks_the_promise() -> None:
    assert "does as well" in judged(host("kvm-2", slow=True))
    assert judged(host("kvm-2", slow=True), at_s=5.0) == ""
    assert judged(host("kvm-2", slow=True), drain=True) == ""


def test_guest_that_is_stopped_for_it_breaks_the_promise() -> None:
    assert "stops it" in judged(host("kvm-2", slow=False), mode="cold")
