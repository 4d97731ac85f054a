"""``outlive why`` of a VM tells of its network."""

from __future__ import annotations

import pytest
from tests.support.loops import run

from outlive.base import LoopClock, Random, SeededIds
from outlive.recovery.why import link_network
from outlive.resources import (
    Condition,
    Migration,
    NetworkType,
    ObjectMeta,
    PortMove,
    VirtualMachine,
    VirtualMachinePort,
    VirtualMachinePortSpec,
    VirtualMachinePortStatus,
    VirtualMachineSpec,
    VirtualMachineStatus,
    VirtualNetwork,
    VirtualNetworkSpec,
)
from outlive.store import MemoryStore

YES = (Condition(type="Programmed", status="True"), Condition(type="Bound", status="True"))
UNBOUND = (YES[0], Condition(type="Bound", status="False", reason="not-bound", message="h1 has not bound it"))
REFUSED = (Condition(type="Programmed", status="False", reason="mac-twice", message="port b.0 has the MAC as well"),)
NO_HOST = (Condition(type="Programmed", status="False", reason="no-host-yet", message="VM web is on no host yet"),)
MOVE = Migration(id="m1", source="h1", target="h2")


def told(
    status: VirtualMachinePortStatus,
    *,
    type: NetworkType = "layer2",
    power: str = "running",
    migration: Migration | None = None,
    limits: dict[str, tuple[str, ...]] | None = None,
) -> tuple[list[str], bool]:
    """What is told of a VM with this port, and whether it is settled."""
    store = MemoryStore(LoopClock(), SeededIds(Random(1)))
    vm = VirtualMachine(
        metadata=ObjectMeta(name="web"),
        spec=VirtualMachineSpec(ports=("if-1",), power_state=power),  # type: ignore[arg-type]
        status=VirtualMachineStatus(migration=migration, network_hosts=limits or {}),
    )
    spec = VirtualMachinePortSpec(vm="web", network="green", mac="02:00:00:00:00:01")
    store.load(
        [
            vm,
            VirtualNetwork(metadata=ObjectMeta(name="green"), spec=VirtualNetworkSpec(type=type)),
            VirtualMachinePort(metadata=ObjectMeta(name="web.0"), spec=spec, status=status),
        ]
    )
    found = run(link_network(store, vm))
    assert bool(found.remedy) == (not found.settled)
    return [one.text for one in found.links], found.settled


def status(**parts: object) -> VirtualMachinePortStatus:
    return VirtualMachinePortStatus(active_on="h1", addresses=("10.1.0.7/24",), **parts)  # type: ignore[arg-type]


PORT = "port web.0 on network green"


@pytest.mark.parametrize(
    ("now", "text", "settled"),
    [
        (status(conditions=YES), f"{PORT} with 10.1.0.7 is bound on h1", True),
        (
            status(conditions=UNBOUND),
            f"{PORT} with 10.1.0.7 is programmed, but not bound on h1: h1 has not bound it",
            False,
        ),
        (status(conditions=REFUSED), f"{PORT} is not programmed: port b.0 has the MAC as well", False),
        (status(), f"{PORT}: no network controller has answered for it yet", False),
    ],
)
def test_a_port_is_bound_programmed_or_told_why_not(now: VirtualMachinePortStatus, text: str, settled: bool) -> None:
    assert told(now) == ([text], settled)


def test_a_vm_that_is_stopped_needs_no_bound_port() -> None:
    assert told(status(conditions=UNBOUND), power="stopped")[1]
    assert told(status(conditions=NO_HOST), power="stopped")[1]


def test_a_bridged_network_is_made_by_the_host() -> None:
    assert told(status(), type="bridged") == ([f"{PORT}: its host makes it, without OVN"], True)


@pytest.mark.parametrize(
    ("move", "words"),
    [
        (None, "has not answered for the move to h2"),
        (PortMove(id="m0", prepared=True), "has not answered for the move to h2"),
        (PortMove(id="m1", prepared=True), "is prepared on h2"),
        (PortMove(id="m1", reason="not-bound", message="h2 has not bound it"), "is not prepared on h2: h2 has not"),
    ],
)
def test_a_move_tells_whether_its_target_is_prepared(move: PortMove | None, words: str) -> None:
    texts, _ = told(status(conditions=YES, migration=move), migration=MOVE)
    assert words in texts[1]


def test_a_gap_that_was_too_long_and_networks_that_reach_few_hosts_are_told() -> None:
    texts, settled = told(status(conditions=YES, gap_ms=700.0), limits={"rack": ("h1", "h2"), "none": ()})
    assert settled
    assert texts[1:] == [
        "port web.0: its last switch-over took 700 ms, more than maxGapMs 500",
        "network rack reaches h1 and h2: it may run nowhere else",
        "network none reaches no host at all: it may run nowhere else",
    ]


def test_a_network_that_was_changed_while_the_vm_runs_is_told() -> None:
    kept = Condition(type="AddressesReserved", status="False", reason="network-changed", message="it stays on green")
    texts, settled = told(status(conditions=(*YES, kept)))
    assert settled
    assert texts[1:] == ["port web.0 is not all that its spec says: it stays on green"]
