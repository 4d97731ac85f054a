"""What tests of judges plant: documents, domains and writes, and what is judged of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from outlive.node.ports import DomainState
from outlive.resources import (
    Amounts,
    Assigned,
    Consumer,
    Coverage,
    CoverageStatus,
    FailoverStatus,
    Holder,
    Hypervisor,
    HypervisorStatus,
    Instance,
    MemberRecord,
    Membership,
    ObjectMeta,
    Proof,
    Reservation,
    ReservationSpec,
    ReservationStatus,
    VirtualMachine,
)
from outlive.simulation import Author, MakeStore, WorldStore, domain_of
from outlive.simulation.stores import _author
from tests.support.loops import run, run_by
from tests.support.virtual_hosts import GIB, Bench, author, small_vm

_replace = msgspec.structs.replace
DEAD = Proof(kind="power", evidence="off, twice", epoch=1)


def make_holder(host: str, run_id: str = "r1", epoch: int = 1) -> Holder:
    return Holder(hypervisor=host, member_uid=f"uid-{host}", epoch=epoch, run_id=run_id)


def make_member(host: str, **changes: Any) -> Membership:
    record = MemberRecord(machine_id="m", boot_id="b", **changes)
    return Membership(metadata=ObjectMeta(name=host, uid=f"uid-{host}"), record=record)


def make_vm(*holders: Holder, **status: Any) -> VirtualMachine:
    vm = small_vm()
    return _replace(
        vm, status=_replace(vm.status, holders=holders, phase="start", assigned=Assigned(hypervisor="h1"), **status)
    )


async def write_as(
    bench: Bench, by: Author, change: Any, *, kind: type[Any] = VirtualMachine, name: str = "vm-1"
) -> None:
    token = _author.set(by)
    try:
        found = await bench.store.get(kind, name)
        changed = change(found)
        await (bench.store.replace_status(changed) if kind.has_status() else bench.store.replace(changed))
    finally:
        _author.reset(token)


def without_holders(vm: VirtualMachine) -> VirtualMachine:
    return _replace(vm, status=_replace(vm.status, holders=()))


def put_domain(bench: Bench, host: str, run_id: str = "r1", epoch: int = 1, vm: VirtualMachine | None = None) -> None:
    hypervisor = bench.hypervisors[host]
    made = vm or small_vm()
    hypervisor.domains[made.name] = domain_of(made, run_id, epoch, DomainState.RUNNING)
    bench._changed(host, made.name, "running")


def judged(story: Any, make_store: MakeStore = WorldStore) -> list[str]:
    async def reported() -> list[str]:
        bench = Bench(make_store=make_store)
        bench.boot()
        await story(bench)
        return bench.broken()

    return run(reported())


def finds(*codes: str, by: Callable[[Any], list[str]] = judged) -> Callable[[Any], Callable[..., None]]:
    """Make a test of a story on a bench: the judges find just this."""

    def check(story: Any) -> None:
        assert by(story) == list(codes)

    return run_by(check)


def make_host(name: str, *instances: str, used: int = 0) -> Hypervisor:
    return Hypervisor(
        metadata=ObjectMeta(name=name),
        status=HypervisorStatus(
            capacity=Amounts(cpu=4000, memory=4 * GIB),
            allocation=Amounts(cpu=used * 1000, memory=used * GIB),
            instances=tuple(Instance(id=one) for one in instances),
        ),
    )


def make_slot(name: str, host: str, members: dict[str, str], size: int = 1, consumer: str = "") -> Reservation:
    return Reservation(
        metadata=ObjectMeta(name=name),
        spec=ReservationSpec(
            type="FailoverReservation", resources=Amounts(cpu=size * 1000, memory=size * GIB), target_host=host
        ),
        status=ReservationStatus(
            host=host,
            failover_reservation=FailoverStatus(allocations=members),
            consumer=Consumer(vm=consumer, fence="f") if consumer else None,
        ),
    )


def make_coverage(*slots: str) -> Coverage:
    return Coverage(metadata=ObjectMeta(name="vm-1"), status=CoverageStatus(covered=True, required=1, slots=slots))


def judged_at_rest(*objects: Any) -> list[str]:
    async def story(bench: Bench) -> None:
        bench.store.load(objects)
        bench.judge.judge_rest()

    return judged(story)


def make_condemned(host: str) -> Membership:
    """A host that is condemned, and not proven dead."""
    member = make_registered(host)
    return _replace(member, record=_replace(member.record, state="Revoked"))


def make_registered(host: str, incarnation: str = "") -> Membership:
    """A host that lives; by default it registered in this very store."""
    member = make_member(host)
    wanted = incarnation or Bench().store.incarnation
    return _replace(member, record=_replace(member.record, state="Held", incarnation=wanted))


async def join_slot(bench: Bench, joined: dict[str, str], second: int) -> None:
    at = datetime.fromtimestamp(second, UTC)
    status = ReservationStatus(host="h2", failover_reservation=FailoverStatus(allocations=joined, acknowledged_at=at))
    await write_as(
        bench, author("ctl", "failover"), lambda one: _replace(one, status=status), kind=Reservation, name="slot"
    )


def with_home(host: str) -> Any:
    return lambda vm: _replace(vm, status=_replace(vm.status, home=host))
