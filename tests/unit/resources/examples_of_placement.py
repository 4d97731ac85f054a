"""One object of every kind of placement and commitments, with every field set."""

from __future__ import annotations

from tests.unit.resources.example_parts import (
    AMOUNTS,
    BIG,
    COMMITTED,
    META,
    MOMENT,
    PLACED,
    READY,
    STEP,
)

from outlive import resources as r

PLACEMENT: tuple[r.Resource, ...] = (
    r.CommitmentChange(
        metadata=META,
        nonce="n1",
        part_of="n1",
        parts=1,
        phase="applied",
        availability_zone="z",
        request_id="r",
        request_digest="d1",
        requested_by="u",
        decided_at=MOMENT,
        applied_at=MOMENT,
        steps=(
            r.CommitmentStep(
                uuid="abc123",
                before=COMMITTED,
                after=COMMITTED,
                accepted=True,
                slots=(
                    r.SlotChange(
                        name="s",
                        deleted=True,
                        host="h1",
                        flavor="f",
                        memory_bytes=2**30,
                        cpu_milli=1000,
                        vm="vm-1",
                        kept=True,
                    ),
                ),
            ),
        ),
    ),
    r.CommittedResource(
        metadata=META,
        spec=COMMITTED,
        status=r.CommittedResourceStatus(
            accepted_spec=COMMITTED,
            accepted_at=MOMENT,
            assigned_instances=("vm-1",),
            used_resources=AMOUNTS,
            last_usage_reconcile_at=MOMENT,
            usage_observed_generation=2,
            conditions=(READY,),
            status_summary="Accepted",
        ),
    ),
    r.Descheduling(
        metadata=META,
        spec=r.DeschedulingSpec(
            ref="vm-1", ref_type="virtualMachine", prev_host="h1", prev_host_type="hypervisor", reason="slow"
        ),
        status=r.DeschedulingStatus(new_host="h2", new_host_type="hypervisor", conditions=(READY,)),
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
    r.FlavorGroupCapacity(
        metadata=META,
        spec=r.FlavorGroupCapacitySpec(flavor_group="g", availability_zone="z"),
        status=r.FlavorGroupCapacityStatus(
            flavors=(
                r.FlavorCapacity(
                    flavor_name="f",
                    placeable_hosts=1,
                    placeable_vms=2,
                    total_capacity_hosts=3,
                    total_capacity_vm_slots=4,
                    running_vms=5,
                ),
            ),
            committed_capacity=1,
            committed_capacity_bytes=2**30,
            smallest_flavor_name="f",
            total_capacity=AMOUNTS,
            free_capacity=AMOUNTS,
            exclusively_free_capacity=AMOUNTS,
            exclusively_free_slots=3,
            running_instances=2,
            running_resources=AMOUNTS,
            last_reconcile_at=MOMENT,
            conditions=(READY,),
        ),
    ),
    r.Knowledge(
        metadata=META,
        spec=r.KnowledgeSpec(scheduling_domain="other", description="load"),
        status=r.KnowledgeStatus(
            raw=r.KnowledgeRaw(features=({"computeHost": "h1", "vcpusUsed": 0.5},)),
            raw_length=1,
            digest="d",
            last_content_change=MOMENT,
            last_extracted=MOMENT,
            conditions=(READY,),
        ),
    ),
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
    r.PlacementHistory(
        metadata=META,
        spec=r.PlacementHistorySpec(scheduling_domain="other", resource_id="vm-1", availability_zone="z"),
        status=r.PlacementHistoryStatus(current=PLACED, history=(PLACED,), conditions=(READY,)),
    ),
    r.ProjectQuota(
        metadata=META,
        spec=r.ProjectQuotaSpec(
            project_id="p",
            project_name="n",
            domain_id="d",
            domain_name="dn",
            availability_zone="z",
            quota={"hw_version_g_ram": 10},
        ),
        status=r.ProjectQuotaStatus(
            observed_generation=2,
            total_usage={"hw_version_g_ram": 4},
            payg_usage={"hw_version_g_ram": 2},
            total_usage_summary="g: c=1 i=1 r=4",
            payg_usage_summary="g: c=1 i=1 r=2",
            limes_usage_summary="g: c=1 i=1 r=4",
            limes_quota_summary="g: c=0 i=0 r=10",
            last_reconcile_at=MOMENT,
            last_full_reconcile_at=MOMENT,
            conditions=(READY,),
        ),
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
            in_flight_reservation=r.InFlightSpec(
                vm_id="v", user_id="u", project_id="p", intent="create_server", resource_group="g", instances=2
            ),
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
    r.UsageHistory(
        metadata=META,
        project_id="p",
        month="2026-11",
        commitments={
            "abc123": r.CommitmentCoverage(
                resource_type="cores", covered_seconds=60, covered_since=90, vms={"v": (0, 60, 90)}
            )
        },
        left_out=1,
    ),
)
