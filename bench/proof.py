"""Certificates: making one of a large fleet, and checking it from the two files alone.

The fleet is planned once; its state file and certificate are all that the checker gets. It runs in a child process,
so that nothing of the planner is in memory.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bench.failover_cloud import ZONE, Cloud
from bench.figures import Figure
from outlive.failover import CertifyInput, SlotView, certify, encode_certificate, without_room
from outlive.placement import VmView
from outlive.resources import (
    FAILOVER,
    HOST_LABEL,
    RESERVATION_TYPE_LABEL,
    Amounts,
    Assigned,
    Condition,
    FailoverSpec,
    FailoverStatus,
    Instance,
    ObjectMeta,
    Reservation,
    ReservationSpec,
    ReservationStatus,
    Resource,
    State,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
    encode_state,
    state_digest,
)

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
STATE, CERTIFICATE = "state.json", "certificate.json"
RUNS = 3


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        made_s, note = write_files(Path(directory))
        child = subprocess.run(
            [sys.executable, "-c", f"from bench.proof import child; child({directory!r})"],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=600,
        )
    found = msgspec.json.decode(child.stdout)
    return [
        Figure("check a certificate of 100,000 VMs on 5,000 hosts, k=2", found["seconds"], "s", 3.0, note=note),
        Figure("the same in processor time", found["cpu"], "s", note="no bar; what a loaded machine does not blur"),
        Figure("peak resident memory of that check", found["mib"], "MiB", note="no bar"),
        Figure("check it by every single failure as well", found["enumerated"], "s", note="no bar"),
        Figure("make that certificate from what was gathered", made_s, "s", note="no bar"),
    ]


def write_files(directory: Path) -> tuple[float, str]:
    """Plan the fleet, write its state and its certificate; seconds that the certificate took."""
    cloud = Cloud(100_000, 5_000, 2, (1, 2, 4, 8), even=False)
    slots = cloud.plan().slots
    objects = state_objects(cloud, slots)
    raw = encode_state(State(taken_at=AT, objects=tuple(objects)))
    (directory / STATE).write_bytes(raw)
    start = time.perf_counter()
    hosts = [host for host in map(cloud.fleet.find_host, cloud.names) if host is not None]
    reservations = [item for item in objects if isinstance(item, Reservation)]
    given = CertifyInput(
        state_digest=state_digest(objects),
        hosts=cloud.names,
        vms=cloud.vms,
        required=cloud.required,
        slots=tuple(msgspec.structs.replace(slot, name=f"slot-{at:06}") for at, slot in enumerate(slots)),
        without_room=without_room(hosts, reservations, cloud.vms),
    )
    made = certify(given).certificate
    assert made is not None
    certificate = encode_certificate(made)
    seconds = time.perf_counter() - start
    (directory / CERTIFICATE).write_bytes(certificate)
    return seconds, f"{len(slots)} slots; files of {len(raw) / 1e6:.0f} and {len(certificate) / 1e6:.0f} MB"


def state_objects(cloud: Cloud, slots: tuple[SlotView, ...]) -> list[Resource]:
    """The fleet and these slots as the objects of a state file."""
    running: dict[str, list[Instance]] = {}
    for vm in cloud.vms:
        running.setdefault(vm.host, []).append(Instance(id=vm.id, name=vm.id))
    objects: list[Resource] = []
    for host in map(cloud.fleet.find_host, cloud.names):
        assert host is not None
        there = tuple(running.get(host.name, ()))
        status = msgspec.structs.replace(host.status, instances=there, num_instances=len(there), observed_at=AT)
        meta = msgspec.structs.replace(host.metadata, creation_timestamp=AT, resource_version="1")
        objects.append(msgspec.structs.replace(host, metadata=meta, status=status))
    objects += [vm_object(vm) for vm in cloud.vms]
    objects += [slot_object(f"slot-{at:06}", slot) for at, slot in enumerate(slots)]
    return objects


def vm_object(vm: VmView) -> VirtualMachine:
    size = Amounts(cpu=vm.cpu_milli, memory=vm.memory_bytes)
    return VirtualMachine(
        metadata=ObjectMeta(
            name=vm.id, uid=vm.id, resource_version="1", creation_timestamp=AT, labels={HOST_LABEL: vm.host}
        ),
        spec=VirtualMachineSpec(display_name=vm.id[:8], project="p", flavor=vm.flavor, resources=size, zone=ZONE),
        status=VirtualMachineStatus(
            phase="ACTIVE", assigned=Assigned(hypervisor=vm.host), home=vm.host, source="import", observed_at=AT
        ),
    )


def slot_object(name: str, slot: SlotView) -> Reservation:
    ready = Condition(type="Ready", status="True", reason="ReservationActive", last_transition_time=AT)
    members = FailoverStatus(allocations=dict(slot.members), last_changed=AT, acknowledged_at=AT)
    return Reservation(
        metadata=ObjectMeta(
            name=name,
            uid=name,
            resource_version="1",
            creation_timestamp=AT,
            labels={RESERVATION_TYPE_LABEL: "failover"},
        ),
        spec=ReservationSpec(
            type=FAILOVER,
            availability_zone=ZONE,
            resources=Amounts(cpu=slot.cpu_milli, memory=slot.memory_bytes),
            target_host=slot.host,
            failover_reservation=FailoverSpec(resource_group=slot.group),
        ),
        status=ReservationStatus(host=slot.host, conditions=(ready,), failover_reservation=members),
    )


def child(directory: str) -> None:
    """Check the files and print what it took."""
    from outlive.failover.verify import VerifyOptions, verify

    walls, cpus = [], []
    for _ in range(RUNS):
        start, cpu = time.perf_counter(), time.process_time()
        state, certificate = (Path(directory, name).read_bytes() for name in (STATE, CERTIFICATE))
        assert verify(state, certificate).accepted
        walls.append(time.perf_counter() - start)
        cpus.append(time.process_time() - cpu)
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start = time.perf_counter()
    assert verify(state, certificate, VerifyOptions(failures=1)).accepted
    enumerated = time.perf_counter() - start
    found = {
        "seconds": statistics.median(walls),
        "cpu": statistics.median(cpus),
        "mib": mib,
        "enumerated": enumerated,
    }
    print(msgspec.json.encode(found).decode())
