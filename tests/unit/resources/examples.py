"""One object of every kind with every field set, and one with as few as can be."""

from __future__ import annotations

from datetime import UTC, datetime

from outlive import resources as r

MOMENT = datetime(2026, 11, 21, 17, 0, 0, tzinfo=UTC)
META = r.ObjectMeta(
    name="one",
    uid="6f9619ff-8b86-4011-b42d-00cf4fc964ff",
    resource_version="7",
    generation=2,
    creation_timestamp=MOMENT,
    finalizers=("outlive.dev/x",),
    labels={"outlive.dev/host": "h1"},
    annotations={"note": "any text, also ünïcode"},
)
AMOUNTS = r.Amounts({"cpu": 7500, "memory": 480 * 2**30, "gpu": 2})
REF = r.ObjectRef(kind="VirtualMachine", name="vm-1", uid="u", cluster="c", namespace="n")
READY = r.Condition(
    type="Ready",
    status="True",
    reason="Fine",
    message="all is fine",
    last_transition_time=MOMENT,
    observed_generation=2,
)
BIG = r.GroupFlavor(name="l", vcpus=4, memory_mb=4096, disk_gb=1, ephemeral_gb=1, extra_specs={"a": "b"})
STEP = r.Step(
    name="filter_capabilities",
    params=(
        r.Parameter(key="a", string_value="x"),
        r.Parameter(key="b", bool_value=False),
        r.Parameter(key="c", int_value=0),
        r.Parameter(key="d", float_value=0.5),
        r.Parameter(key="e", string_list_value=("x", "y")),
        r.Parameter(key="f", float_map_value={"x": 1.0}),
    ),
    description="a step",
    multiplier=-2.0,
    on_error="reject",
)

FULL: tuple[r.Resource, ...] = (
    r.Cluster(
        metadata=META,
        spec=r.ClusterSpec(description="ours", maintenance=True),
        status=r.ClusterStatus(store_incarnation="i", schema_version=1),
    ),
    r.Coverage(
        metadata=META,
        status=r.CoverageStatus(
            required=2,
            slots=("s1", "s2"),
            covered=False,
            reason="no-host",
            message="m",
            remedy="add a host",
            host="h1",
            also_needs=r.Amounts(gpu=1),
            changed_at=MOMENT,
        ),
    ),
    r.Election(metadata=META, record=r.ElectionRecord(holder="a", term=3, renewals=9, nonce="n")),
    r.Event(
        metadata=META,
        regarding=REF,
        type="Warning",
        reason="Uncovered",
        action="plan",
        note="no host",
        source="failover",
        request_id="r",
        count=3,
        first_seen=MOMENT,
        last_seen=MOMENT,
    ),
    r.Flavor(
        metadata=META,
        spec=r.FlavorSpec(
            flavor_name="M1 Small",
            resources=AMOUNTS,
            disk_gib=10,
            ephemeral_gib=1,
            extra_specs={"hw:cpu_policy": "shared"},
        ),
    ),
    r.FlavorGroup(
        metadata=META,
        spec=r.FlavorGroupSpec(
            group_name="g",
            flavors=(BIG,),
            largest_flavor=BIG,
            smallest_flavor=BIG,
            ram_core_ratio=1024,
            ram_core_ratio_min=512,
            ram_core_ratio_max=2048,
        ),
    ),
    r.Hypervisor(
        metadata=META,
        spec=r.HypervisorSpec(
            management="node",
            mode="coordinator",
            custom_traits=("T",),
            allowed_projects=("p",),
            groups=("g",),
            overcommit={"cpu": 2.0},
            high_availability=False,
            maintenance="ha",
        ),
        status=r.HypervisorStatus(
            capacity=AMOUNTS,
            effective_capacity=AMOUNTS,
            allocation=r.Amounts(),
            instances=(r.Instance(id="vm-1", name="n", active=False),),
            num_instances=1,
            aggregates=(r.Aggregate(name="a", uuid="u", metadata={"k": "v"}),),
            traits=("T",),
            capabilities=r.Capabilities(cpu_arch="x86_64"),
            domain_capabilities=r.DomainCapabilities(
                hypervisor_type="kvm",
                supported_cpu_modes=("host",),
                supported_features=("f",),
                supported_devices=("d",),
            ),
            conditions=(READY,),
            evicted=True,
            source="import",
            observed_at=MOMENT,
        ),
    ),
    r.HypervisorUsage(metadata=META, usage=r.HostUsage(sampled_at=MOMENT, used=AMOUNTS, load=0.5, running=3)),
    r.Pipeline(
        metadata=META,
        spec=r.PipelineSpec(
            scheduling_domain="nova",
            description="d",
            ignore_preselection=True,
            type="detector",
            filters=(STEP,),
            weighers=(STEP,),
            detectors=(STEP,),
            create_history=False,
        ),
        status=r.PipelineStatus(conditions=(READY,)),
    ),
    r.Reservation(
        metadata=META,
        spec=r.ReservationSpec(
            type=r.COMMITTED,
            scheduling_domain="nova",
            availability_zone="z",
            resources=AMOUNTS,
            start_time=MOMENT,
            end_time=MOMENT,
            target_host="h1",
            failover_reservation=r.FailoverSpec(resource_group="g"),
            committed_resource_reservation=r.CommittedSpec(
                resource_name="instances",
                commitment_uuid="c",
                resource_group="g",
                project_id="p",
                domain_id="d",
                creator="me",
                parent_generation=1,
                allocations={"vm-1": r.SpecAllocation(creation_timestamp=MOMENT, resources=AMOUNTS)},
            ),
            in_flight_reservation=r.InFlightSpec(vm_id="v", user_id="u", project_id="p", intent="create_server"),
        ),
        status=r.ReservationStatus(
            host="h1",
            conditions=(READY,),
            failover_reservation=r.FailoverStatus(
                allocations={"vm-1": "h2"}, last_changed=MOMENT, acknowledged_at=MOMENT
            ),
            committed_resource_reservation=r.CommittedStatus(observed_parent_generation=1, allocations={"vm-1": "h2"}),
            consumer=r.Consumer(vm="vm-1", fence="f"),
        ),
    ),
    r.VirtualMachine(
        metadata=META,
        spec=r.VirtualMachineSpec(
            display_name="n",
            project="p",
            flavor="f",
            resources=AMOUNTS,
            disk_gib=10,
            extra_specs={"a": "b"},
            os_type="linux",
            zone="z",
            server_group="sg",
            server_group_policy="anti-affinity",
            protection="critical",
            restart_priority=7,
            power_state="stopped",
        ),
        status=r.VirtualMachineStatus(
            phase="ACTIVE",
            reason="r",
            assigned=r.Assigned(hypervisor="h1", slot=REF, fence="f"),
            home="h1",
            holders=(r.Holder(hypervisor="h1", member_uid="m", epoch=1, run_id="r", role="primary"),),
            source="import",
            observed_at=MOMENT,
        ),
    ),
)

_FLAVOR = r.GroupFlavor(name="f", vcpus=1)
SMALL: tuple[r.Resource, ...] = (
    r.Cluster(),
    r.Coverage(status=r.CoverageStatus(required=1, covered=True)),
    r.Election(),
    r.Event(regarding=r.ObjectRef(kind="K", name="n"), reason="R", first_seen=MOMENT, last_seen=MOMENT),
    r.Flavor(spec=r.FlavorSpec(flavor_name="f")),
    r.FlavorGroup(spec=r.FlavorGroupSpec(group_name="g", largest_flavor=_FLAVOR, smallest_flavor=_FLAVOR)),
    r.Hypervisor(),
    r.HypervisorUsage(usage=r.HostUsage()),
    r.Pipeline(spec=r.PipelineSpec()),
    r.Reservation(spec=r.ReservationSpec(type=r.FAILOVER)),
    r.VirtualMachine(),
)
