"""The pipelines that come with the product, as the objects that an operator would write.

Their names are known to callers: Nova's configuration, failover's two generations of calls, capacity reports
(docs/reference/placement.md#shipped-pipelines). They are created when missing and never overwritten.
"""

from __future__ import annotations

from typing import Final

from outlive.resources import COMMITTED, FAILOVER, ObjectMeta, Parameter, Pipeline, PipelineSpec, Step

GENERAL_PURPOSE: Final = "kvm-general-purpose-load-balancing"
HANA: Final = "kvm-hana-bin-packing"
NEW_SLOT: Final = "kvm-new-failover-reservation"
REUSE_SLOT: Final = "kvm-valid-host-reuse-failover-reservation"
ACKNOWLEDGE_SLOT: Final = "kvm-acknowledge-failover-reservation"
REPORT_CAPACITY: Final = "kvm-report-capacity"
VMWARE_GENERAL_PURPOSE: Final = "vmware-general-purpose-load-balancing"
VMWARE_HANA: Final = "vmware-hana-bin-packing"


def shipped_pipelines() -> tuple[Pipeline, ...]:
    """All of them, by name."""
    made = (
        *_for_vms(),
        *_for_slots(),
        _pipeline(
            REPORT_CAPACITY,
            "Hosts that could ever take a flavor, for capacity reports.",
            filters=(
                Step(name="filter_status_conditions"),
                Step(name="filter_correct_az"),
                Step(
                    name="filter_has_enough_capacity",
                    params=(
                        Parameter(key="ignoreAllocations", bool_value=True),
                        Parameter(key="ignoredReservationTypes", string_list_value=(COMMITTED, FAILOVER)),
                    ),
                ),
                Step(name="filter_has_requested_traits"),
                Step(name="filter_capabilities"),
            ),
        ),
        _pipeline(
            "kvm-descheduler",
            "Finds VMs that should leave their host.",
            detectors=(
                Step(
                    name="avoid_high_steal_pct",
                    params=(Parameter(key="maxStealPctOverObservedTimeSpan", float_value=20.0),),
                ),
            ),
        ),
        *_for_vmware(),
    )
    return tuple(sorted(made, key=lambda pipeline: pipeline.name))


def _for_vms() -> tuple[Pipeline, ...]:
    unlocked = (Parameter(key="lockReserved", bool_value=False),)
    balance, pack = "spread by load", "packed tightly"
    return (
        _pipeline(GENERAL_PURPOSE, f"Ordinary VMs, {balance}.", _vm_filters(()), _vm_weighers(-1.0)),
        _pipeline(HANA, f"In-memory databases, {pack}.", _vm_filters(()), _vm_weighers(1.0)),
        _pipeline(
            f"{GENERAL_PURPOSE}-no-history", f"Ordinary VMs, {balance}.", _vm_filters(unlocked), _vm_weighers(-1.0)
        ),
        _pipeline(f"{HANA}-no-history", f"In-memory databases, {pack}.", _vm_filters(unlocked), _vm_weighers(1.0)),
    )


def _vm_filters(capacity: tuple[Parameter, ...]) -> tuple[Step, ...]:
    return (
        Step(name="filter_status_conditions"),
        Step(name="filter_correct_az"),
        Step(name="filter_host_instructions"),
        Step(name="filter_image_properties"),
        Step(name="filter_capabilities"),
        Step(name="filter_has_requested_traits"),
        _external_customer(),
        Step(name="filter_has_accelerators"),
        Step(name="filter_instance_group_affinity"),
        Step(name="filter_instance_group_anti_affinity"),
        Step(name="filter_has_enough_capacity", params=capacity),
        Step(name="filter_allowed_projects"),
        Step(name="filter_aggregate_metadata"),
        Step(name="filter_live_migratable"),
        Step(name="filter_requested_destination"),
        Step(name="filter_quota_enforcement"),
    )


def _vm_weighers(bin_packing: float) -> tuple[Step, ...]:
    return (
        *_size_weighers(bin_packing),
        Step(name="kvm_failover_evacuation"),
        Step(name="kvm_committed_resource_reservation"),
    )


def _size_weighers(bin_packing: float) -> tuple[Step, ...]:
    return (
        Step(name="kvm_prefer_smaller_hosts", params=_memory_only()),
        Step(name="kvm_instance_group_soft_affinity"),
        Step(name="kvm_binpack", params=_memory_only(), multiplier=bin_packing),
    )


def _for_slots() -> tuple[Pipeline, ...]:
    locked = (Parameter(key="lockReserved", bool_value=True),)
    return (
        _pipeline(
            NEW_SLOT,
            "A host for a new failover slot.",
            filters=(
                Step(name="filter_status_conditions"),
                Step(name="filter_host_instructions"),
                Step(name="filter_correct_az"),
                Step(name="filter_has_enough_capacity", params=locked),
                Step(name="filter_has_requested_traits"),
                Step(name="filter_has_accelerators"),
                Step(name="filter_allowed_projects"),
                Step(name="filter_capabilities"),
                Step(name="filter_instance_group_affinity"),
                Step(name="filter_instance_group_anti_affinity"),
                Step(name="filter_live_migratable"),
                Step(name="filter_requested_destination"),
            ),
            weighers=_size_weighers(-1.0),
        ),
        _pipeline(
            REUSE_SLOT,
            "Hosts whose slots a VM may share. The slot holds the space, so capacity is not asked.",
            filters=(
                Step(name="filter_status_conditions"),
                Step(name="filter_host_instructions"),
                Step(name="filter_correct_az"),
                Step(name="filter_has_requested_traits"),
                Step(name="filter_has_accelerators"),
                _external_customer(),
                Step(name="filter_allowed_projects"),
                Step(name="filter_capabilities"),
            ),
            gathers=False,
        ),
        _pipeline(
            ACKNOWLEDGE_SLOT,
            "Whether a VM could be evacuated into its slot now.",
            filters=(
                Step(name="filter_status_conditions"),
                Step(name="filter_host_instructions"),
                Step(name="filter_correct_az"),
                Step(name="filter_has_enough_capacity"),
                Step(name="filter_has_requested_traits"),
                Step(name="filter_has_accelerators"),
                _external_customer(),
                Step(name="filter_allowed_projects"),
                Step(name="filter_capabilities"),
            ),
            weighers=(Step(name="kvm_failover_evacuation"),),
            gathers=False,
        ),
    )


def _for_vmware() -> tuple[Pipeline, ...]:
    return (
        _pipeline(
            VMWARE_GENERAL_PURPOSE,
            "VMware: re-weighs what Nova's own filters left.",
            weighers=(
                Step(name="vmware_binpack", params=_memory_only(), multiplier=-1.0),
                Step(name="vmware_avoid_long_term_contended_hosts", params=_contention()),
                Step(name="vmware_avoid_short_term_contended_hosts", params=_contention()),
            ),
            gathers=False,
        ),
        _pipeline(VMWARE_HANA, "VMware: keeps Nova's order.", gathers=False),
    )


def _pipeline(
    name: str,
    description: str,
    filters: tuple[Step, ...] = (),
    weighers: tuple[Step, ...] = (),
    *,
    detectors: tuple[Step, ...] = (),
    gathers: bool = True,
) -> Pipeline:
    return Pipeline(
        metadata=ObjectMeta(name=name),
        spec=PipelineSpec(
            description=description,
            type="detector" if detectors else "filter-weigher",
            ignore_preselection=gathers and not detectors,
            filters=filters,
            weighers=weighers,
            detectors=detectors,
        ),
    )


def _memory_only() -> tuple[Parameter, ...]:
    return (Parameter(key="resourceWeights", float_map_value={"memory": 1.0}),)


def _external_customer() -> Step:
    return Step(
        name="filter_external_customer", params=(Parameter(key="domainNamePrefixes", string_list_value=("iaas-",)),)
    )


def _contention() -> tuple[Parameter, ...]:
    """Bounds of average and maximum CPU contention, and what they are scaled to."""
    bounds = {"avg": -0.75, "max": -0.25}
    return tuple(
        Parameter(key=f"{kind}CPUContention{end}", float_value=value)
        for kind, worst in bounds.items()
        for end, value in (
            ("LowerBound", 0.0),
            ("UpperBound", 10.0),
            ("ActivationLowerBound", 0.0),
            ("ActivationUpperBound", worst),
        )
    )
