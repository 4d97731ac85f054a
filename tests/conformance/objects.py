"""The objects that the conformance suite writes."""

from __future__ import annotations

import msgspec

from outlive.resources import (
    Amounts,
    Election,
    ElectionRecord,
    Flavor,
    FlavorSpec,
    ObjectMeta,
    Reservation,
    ReservationSpec,
    ReservationStatus,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
)

change = msgspec.structs.replace


def vm(name: str = "vm-1", *, project: str = "p", phase: str = "", **meta: object) -> VirtualMachine:
    return VirtualMachine(
        metadata=ObjectMeta(name=name, **meta),  # type: ignore[arg-type]
        spec=VirtualMachineSpec(project=project, resources=Amounts(cpu=1500, memory=2**31)),
        status=VirtualMachineStatus(phase=phase),
    )


def with_project(obj: VirtualMachine, project: str) -> VirtualMachine:
    return change(obj, spec=change(obj.spec, project=project))


def with_phase(obj: VirtualMachine, phase: str) -> VirtualMachine:
    return change(obj, status=change(obj.status, phase=phase))


def with_meta(obj: VirtualMachine, **meta: object) -> VirtualMachine:
    return change(obj, metadata=change(obj.metadata, **meta))


def election(name: str = "failover", holder: str = "a") -> Election:
    return Election(metadata=ObjectMeta(name=name), record=ElectionRecord(holder=holder, term=1))


def flavor(name: str = "m1") -> Flavor:
    return Flavor(metadata=ObjectMeta(name=name), spec=FlavorSpec(flavor_name="m1.small"))


def slot(name: str = "slot-1", **meta: object) -> Reservation:
    return Reservation(
        metadata=ObjectMeta(name=name, **meta),  # type: ignore[arg-type]
        spec=ReservationSpec(type="FailoverReservation", resources=Amounts(cpu=1000, memory=2**30)),
        status=ReservationStatus(host="h1"),
    )
