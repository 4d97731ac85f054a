"""Hosts, reservations and requests for tests of placement: short to write, or drawn at random."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from outlive.base import Random
from outlive.placement import (
    SILENT,
    Destination,
    Fleet,
    InstanceGroup,
    Intent,
    PlacementOptions,
    PlacementRequest,
    PlacementSettings,
)
from outlive.resources import COMMITTED, FAILOVER, IN_FLIGHT, Hypervisor, Reservation, convert

GIB = 2**30
API = {"apiVersion": "outlive.dev/v1alpha1"}


def host(
    name: str = "h1", *, zone: str | None = "z1", labels: dict[str, str] | None = None, **fields: Any
) -> Hypervisor:
    """A ready KVM host of 16 cores and 64 GiB with nothing on it; ``fields`` go to spec or status by name."""
    status: dict[str, Any] = {
        "capacity": {"cpu": "16", "memory": "64Gi"},
        "effectiveCapacity": {"cpu": "16", "memory": "64Gi"},
        "allocation": {"cpu": "0", "memory": "0"},
        "domainCapabilities": {"hypervisorType": "kvm"},
        "capabilities": {"cpuArch": "x86_64"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    spec: dict[str, Any] = {}
    for key, value in fields.items():
        target = spec if key in ("customTraits", "allowedProjects", "highAvailability", "maintenance") else status
        if value is None:
            target.pop(key, None)
        else:
            target[key] = value
    zones = {} if zone is None else {"topology.kubernetes.io/zone": zone}
    metadata = {"name": name, "labels": {**zones, **(labels or {})}}
    made: Hypervisor = convert(
        Hypervisor, {**API, "kind": "Hypervisor", "metadata": metadata, "spec": spec, "status": status}
    )
    return made


def instances(*ids: str) -> list[dict[str, str]]:
    """VMs on a host, for ``host(instances=…)``."""
    return [{"id": one} for one in ids]


def slot(
    name: str,
    on: str = "h1",
    *,
    target: str | None = None,
    cpu: str = "4",
    memory: str = "16Gi",
    members: tuple[str, ...] = (),
    group: str = "",
    ready: str | None = "True",
) -> Reservation:
    """A failover slot."""
    return _reservation(
        name,
        FAILOVER,
        {"resources": {"cpu": cpu, "memory": memory}, "failoverReservation": {"resourceGroup": group}},
        {"failoverReservation": {"allocations": dict.fromkeys(members, "somewhere")}},
        on,
        target,
        ready,
    )


def commitment(
    name: str,
    on: str = "h1",
    *,
    target: str | None = None,
    cpu: str = "4",
    memory: str = "16Gi",
    project: str = "p",
    group: str = "g",
    zone: str = "z1",
    meant: dict[str, tuple[str, str]] | None = None,
    seen: tuple[str, ...] = (),
    ready: str | None = "True",
) -> Reservation:
    """A commitment slot; ``meant`` maps a VM to (cpu, memory), ``seen`` are those confirmed."""
    allocations = {vm: {"resources": {"cpu": c, "memory": m}} for vm, (c, m) in (meant or {}).items()}
    details = {"projectID": project, "resourceGroup": group, "allocations": allocations}
    return _reservation(
        name,
        COMMITTED,
        {
            "availabilityZone": zone,
            "resources": {"cpu": cpu, "memory": memory},
            "committedResourceReservation": details,
        },
        {"committedResourceReservation": {"allocations": dict.fromkeys(seen, on)}},
        on,
        target,
        ready,
    )


def in_flight(name: str, on: str = "h1", *, vm: str, cpu: str = "4", memory: str = "16Gi") -> Reservation:
    """Room for a VM that is on its way."""
    spec = {"resources": {"cpu": cpu, "memory": memory}, "inFlightReservation": {"vmID": vm}}
    return _reservation(name, IN_FLIGHT, spec, {}, "", on, None)


def _reservation(
    name: str, kind: str, spec: dict[str, Any], status: dict[str, Any], on: str, target: str | None, ready: str | None
) -> Reservation:
    conditions = [] if ready is None else [{"type": "Ready", "status": ready}]
    made: Reservation = convert(
        Reservation,
        {
            **API,
            "kind": "Reservation",
            "metadata": {"name": name},
            "spec": {"type": kind, "targetHost": on if target is None else target, **spec},
            "status": {"host": on, "conditions": conditions, **status},
        },
    )
    return made


def request(**fields: Any) -> PlacementRequest:
    """One VM of 4 cores and 16 GiB through the general pipeline; ``fields`` in wire form."""
    document: dict[str, Any] = {
        "resourceId": "vm-1",
        "project": "p",
        "need": {"cpu": "4", "memory": "16Gi"},
        "flavorName": "m",
        "extraSpecs": {"capabilities:hypervisor_type": "QEMU"},
        "pipeline": "kvm-general-purpose-load-balancing",
        **fields,
    }
    made: PlacementRequest = convert(PlacementRequest, document)
    return made


def fleet_of(*objects: Hypervisor | Reservation, settings: PlacementSettings | None = None) -> Fleet:
    """A fleet of these."""
    fleet = Fleet(settings)
    for one in objects:
        if isinstance(one, Hypervisor):
            fleet.upsert_host(one)
        else:
            fleet.upsert_reservation(one)
    return fleet


# -- at random ---------------------------------------------------------------------------------------------

HOSTS = tuple(f"h{number}" for number in range(9))
VMS = tuple(f"vm-{number}" for number in range(8))
TRAITS = ("A", "B", "COMPUTE_ACCELERATORS", "CUSTOM_EXTERNAL_CUSTOMER_EXCLUSIVE", "COMPUTE_NET_VIRTIO_PACKED")
PROJECTS = ("p", "q", "r")


def _some(random: Random, values: tuple[str, ...], most: int = 3) -> list[str]:
    return random.sample(values, random.randint(0, min(most, len(values))))


def random_host(random: Random, name: str) -> Hypervisor:
    """A host with any mixture of oddities."""
    cpu, memory = random.choice([8, 16, 32]), random.choice([32, 64, 128])
    capacity: dict[str, str] = {"cpu": str(cpu), "memory": f"{memory}Gi"}
    if random.random() < 0.2:
        capacity["gpu"] = "4"
    if random.random() < 0.1:
        del capacity[random.choice(["cpu", "memory"])]
    allocation = {"cpu": str(random.randint(0, cpu + 2)), "memory": f"{random.randint(0, memory + 8)}Gi"}
    if random.random() < 0.1:
        allocation = {"memory": "1Gi"}
    conditions = [
        {"type": kind, "status": random.choice(["True", "True", "True", "False", "Unknown"])}
        for kind in _some(random, ("Ready", "Tainted"))
    ] + [{"type": kind, "status": "False"} for kind in _some(random, ("HypervisorDisabled", "Terminating"), 2)]
    aggregates = [
        {"name": uuid, "uuid": uuid, "metadata": {"filter_tenant_id": random.choice(["p", " p , q", "r,", "", " , "])}}
        for uuid in _some(random, ("a1", "a2", "a3"))
    ]
    return host(
        name,
        zone=random.choice(["z1", "z1", "z2", None]),
        capacity=capacity if random.random() < 0.95 else None,
        effectiveCapacity=capacity if random.random() < 0.7 else None,
        allocation=allocation if random.random() < 0.95 else None,
        traits=_some(random, TRAITS),
        customTraits=_some(random, TRAITS, 1),
        allowedProjects=_some(random, PROJECTS, 2) if random.random() < 0.3 else [],
        highAvailability=random.choice([None, True, False]),
        maintenance=random.choice(["", "", "manual", "auto", "termination"]),
        instances=instances(*_some(random, VMS, 4)),
        aggregates=aggregates,
        conditions=conditions,
        domainCapabilities={
            "hypervisorType": random.choice(["kvm", "kvm", "ch", "xen", ""]),
            "supportedCpuModes": _some(random, ("m1", "m2")),
            "supportedFeatures": _some(random, ("f1", "f2")),
        },
        capabilities={"cpuArch": random.choice(["x86_64", "x86_64", "aarch64"])},
    )


def random_reservation(random: Random, name: str) -> Reservation:
    """A reservation of any kind and state."""
    on, target = random.choice((*HOSTS, "")), random.choice((None, None, *HOSTS, ""))
    ready = random.choice(["True", "True", "False", None])
    size = {"cpu": str(random.randint(0, 6)), "memory": f"{random.randint(0, 24)}Gi"}
    kind = random.randint(0, 2)
    if kind == 0:
        members = tuple(_some(random, VMS))
        return slot(name, on, target=target, members=members, group=random.choice(["", "g", "g2"]), ready=ready, **size)
    if kind == 1:
        meant = {vm: (str(random.randint(0, 4)), f"{random.randint(0, 16)}Gi") for vm in _some(random, VMS)}
        return commitment(
            name,
            on,
            target=target,
            project=random.choice(PROJECTS),
            group=random.choice(["g", "g2", ""]),
            zone=random.choice(["z1", "z2"]),
            meant=meant,
            seen=tuple(_some(random, VMS, 6)),
            ready=ready,
            **size,
        )
    return in_flight(name, on, vm=random.choice(VMS), **size)


def random_fleet(random: Random, settings: PlacementSettings | None = None) -> Fleet:
    """Up to nine hosts and up to twenty reservations, some of them on hosts that nobody knows."""
    fleet = Fleet(settings)
    for name in random.sample(HOSTS, random.randint(0, len(HOSTS))):
        fleet.upsert_host(random_host(random, name))
    for number in range(random.randint(0, 20)):
        fleet.upsert_reservation(random_reservation(random, f"r{number}"))
    return fleet


def random_request(random: Random, *, pipeline: str, intent: Intent | None = None) -> PlacementRequest:
    """Any request."""
    specs = {"capabilities:hypervisor_type": random.choice(["QEMU", "QEMU", "QEMU", "CH", "<or> QEMU <or> CH"])}
    if random.random() < 0.2:
        specs["capabilities:cpu_arch"] = random.choice(["x86_64", "s== aarch64", "riscv"])
    for trait in _some(random, TRAITS, 1):
        specs[f"trait:{trait}"] = random.choice(["required", "forbidden", "whatever"])
    for key in _some(random, ("accel:device_profile", "hw:virtio_packed_ring"), 1):
        specs[key] = ""
    if random.random() < 0.6:
        specs["quota:hw_version"] = random.choice(["g", "g2"])
    hints = {"source_host": random.choice(HOSTS)} if random.random() < 0.5 else {}
    if random.random() < 0.3:
        hints["domain_name"] = random.choice(["iaas-one", "internal"])
    if random.random() < 0.4:
        hints["_cortex_resource_group"] = random.choice(["g", "g2", ""])
    hosts = tuple(random.choices((*HOSTS, "stranger", "other"), k=8)) if random.random() < 0.6 else None
    named = tuple(dict.fromkeys(hosts)) if hosts is not None else None
    need = {"cpu": random.choice(["0", "1", "2", "500m"]), "memory": random.choice(["0", "1Gi", "8Gi"])}
    if random.random() < 0.1:
        need["gpu"] = "1"
    if random.random() < 0.8:
        need.update(cpu="2", memory="4Gi")
    made = request(
        resourceId=random.choice(VMS),
        project=random.choice((*PROJECTS, "")),
        zone=random.choice(["", "z1", "z2"]),
        numInstances=random.choice([0, 1, 1, 3]),
        need=need,
        extraSpecs=specs,
        hints=hints,
        ignoreHosts=_some(random, HOSTS, 2),
        imageProperties=random.choice([{}, {"img_hv_type": "KVM"}, {"img_hv_type": "vmware"}, {"hypervisor_type": 3}]),
        pipeline=pipeline,
    )
    changes: dict[str, Any] = {
        "intent": intent if intent is not None else random.choice(list(Intent)),
        "hosts": named,
        "weights": tuple(random.uniform(-3, 3) for _ in named) if named and random.random() < 0.5 else (),
        "options": random.choice(
            [
                PlacementOptions(),
                SILENT,
                PlacementOptions(assume_empty_hosts=True),
                PlacementOptions(lock_reservations=True),
                PlacementOptions(ignored_reservation_types=(FAILOVER, IN_FLIGHT)),
                PlacementOptions(max_candidates=2),
                PlacementOptions(
                    read_only=True, skip_history=True, skip_inflight=True, skip_committed_resource_tracking=True
                ),
                PlacementOptions(read_only=True),
            ]
        ),
    }
    if random.random() < 0.4:
        changes["force_hosts"] = tuple(_some(random, (*HOSTS, "stranger"), 5))
    if random.random() < 0.5:
        changes["destination"] = Destination(
            host=random.choice(["", "h1", "stranger"]), aggregates=tuple(_some(random, ("a1", "a1,a2", "a3"), 2))
        )
    if random.random() < 0.7:
        policy = random.choice(["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"])
        changes["group"] = InstanceGroup(
            policy=policy,
            members=tuple(_some(random, VMS)),
            hosts=tuple(_some(random, HOSTS)),
            max_server_per_host=random.randint(1, 2),
        )
    return replace(made, **changes)


def wrapped(data: Any) -> dict[str, Any]:
    """An object as Nova sends it."""
    return {
        "nova_object.name": "X",
        "nova_object.version": "1.0",
        "nova_object.data": data,
        "nova_object.changes": ["a"],
    }


def nova_body(**changes: Any) -> dict[str, Any]:
    """What Nova sends to have hosts ranked for a VM."""
    spec = {
        "instance_uuid": "vm-1",
        "project_id": "p",
        "num_instances": 1,
        "scheduler_hints": {"_nova_check_type": ["evacuate"], "domain_name": ["acme"], "odd": 3},
        "ignore_hosts": ["h9"],
        "force_hosts": None,
        "flavor": wrapped(
            {"name": "m", "vcpus": 4, "memory_mb": 16384, "extra_specs": {"capabilities:hypervisor_type": "QEMU"}}
        ),
        "image": wrapped({"properties": wrapped({"img_hv_type": "kvm", "size": 3})}),
        "instance_group": wrapped(
            {"policy": "anti-affinity", "members": ["m"], "_rules": {"max_server_per_host": "2"}}
        ),
        "requested_destination": None,
        "numa_topology": wrapped({"cells": [wrapped({})]}),
        "something_new": {"x": 1},
    }
    spec.update(changes.pop("spec", {}))
    return {
        "spec": wrapped(spec),
        "context": {"request_id": "req-1", "global_request_id": None, "roles": None},
        "hosts": [
            {"host": "h1", "hypervisor_hostname": "h1"},
            {"host": "h2"},
            {"host": "h1", "hypervisor_hostname": "n2"},
        ],
        "weights": {"h1": 1.5, "h2": -3},
        **changes,
    }
