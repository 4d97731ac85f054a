"""The pipelines that come with the product, as the objects that an operator would write.

Their names are known to callers: Nova's configuration, failover's two generations of calls, capacity reports
(docs/reference/placement.md#shipped-pipelines). They are created when missing and never overwritten.
"""

from __future__ import annotations

from typing import Final

from outlive.resources import COMMITTED, FAILOVER, ObjectMeta, Parameter, Pipeline, PipelineSpec, StepSpec

GENERAL_PURPOSE: Final = "kvm-general-purpose-load-balancing"
HANA: Final = "kvm-hana-bin-packing"
NEW_SLOT: Final = "kvm-new-failover-reservation"
VMWARE_GENERAL_PURPOSE: Final = "vmware-general-purpose-load-balancing"
VMWARE_HANA: Final = "vmware-hana-bin-packing"


_CUSTOMERS: Final = (Parameter(key="domainNamePrefixes", string_list_value=("iaas-",)),)
_MEMORY_ONLY: Final = (Parameter(key="resourceWeights", float_map_value={"memory": 1.0}),)
_UNLOCKED: Final = (Parameter(key="lockReserved", bool_value=False),)
_LOCKED: Final = (Parameter(key="lockReserved", bool_value=True),)
_EVER: Final = (
    Parameter(key="ignoreAllocations", bool_value=True),
    Parameter(key="ignoredReservationTypes", string_list_value=(COMMITTED, FAILOVER)),
)
_VM_FILTERS: Final = """
    filter_status_conditions filter_correct_az filter_host_instructions filter_image_properties filter_capabilities
    filter_has_requested_traits filter_external_customer filter_has_accelerators filter_instance_group_affinity
    filter_instance_group_anti_affinity filter_has_enough_capacity filter_allowed_projects filter_aggregate_metadata
    filter_live_migratable filter_requested_destination filter_quota_enforcement"""
_NEW_SLOT_FILTERS: Final = """
    filter_status_conditions filter_host_instructions filter_correct_az filter_has_enough_capacity
    filter_has_requested_traits filter_has_accelerators filter_allowed_projects filter_capabilities
    filter_instance_group_affinity filter_instance_group_anti_affinity filter_live_migratable
    filter_requested_destination"""
_REUSE_SLOT_FILTERS: Final = """
    filter_status_conditions filter_host_instructions filter_correct_az filter_has_requested_traits
    filter_has_accelerators filter_external_customer filter_allowed_projects filter_capabilities"""
_ACKNOWLEDGE_FILTERS: Final = """
    filter_status_conditions filter_host_instructions filter_correct_az filter_has_enough_capacity
    filter_has_requested_traits filter_has_accelerators filter_external_customer filter_allowed_projects
    filter_capabilities"""
_REPORT_FILTERS: Final = """
    filter_status_conditions filter_correct_az filter_has_enough_capacity filter_has_requested_traits
    filter_capabilities"""


def shipped_pipelines() -> tuple[Pipeline, ...]:
    """All of them, by name."""
    spread, pack = "Ordinary VMs, spread by load.", "In-memory databases, packed tightly."
    evacuation, commitments = (
        StepSpec(name="kvm_failover_evacuation"),
        StepSpec(name="kvm_committed_resource_reservation"),
    )
    spreading, packing = (
        (*_size_weighers(-1.0), evacuation, commitments),
        (*_size_weighers(1.0), evacuation, commitments),
    )
    steal = StepSpec(
        name="avoid_high_steal_pct", params=(Parameter(key="maxStealPctOverObservedTimeSpan", float_value=20.0),)
    )
    contention = (
        StepSpec(name="vmware_binpack", params=_MEMORY_ONLY, multiplier=-1.0),
        StepSpec(name="vmware_avoid_long_term_contended_hosts", params=_contention_bounds()),
        StepSpec(name="vmware_avoid_short_term_contended_hosts", params=_contention_bounds()),
    )
    made = (
        _build_pipeline(GENERAL_PURPOSE, spread, _build_filters(_VM_FILTERS), spreading),
        _build_pipeline(HANA, pack, _build_filters(_VM_FILTERS), packing),
        _build_pipeline(f"{GENERAL_PURPOSE}-no-history", spread, _build_filters(_VM_FILTERS, _UNLOCKED), spreading),
        _build_pipeline(f"{HANA}-no-history", pack, _build_filters(_VM_FILTERS, _UNLOCKED), packing),
        _build_pipeline(
            NEW_SLOT,
            "A host for a new failover slot.",
            _build_filters(_NEW_SLOT_FILTERS, _LOCKED),
            _size_weighers(-1.0),
        ),
        _build_pipeline(
            "kvm-valid-host-reuse-failover-reservation",
            "Hosts whose slots a VM may share. The slot holds the space, so capacity is not asked.",
            _build_filters(_REUSE_SLOT_FILTERS),
            gathers=False,
        ),
        _build_pipeline(
            "kvm-acknowledge-failover-reservation",
            "Whether a VM could be evacuated into its slot now.",
            _build_filters(_ACKNOWLEDGE_FILTERS),
            (evacuation,),
            gathers=False,
        ),
        _build_pipeline(
            "kvm-report-capacity",
            "Hosts that could ever take a flavor, for capacity reports.",
            _build_filters(_REPORT_FILTERS, _EVER),
        ),
        _build_pipeline("kvm-descheduler", "Finds VMs that should leave their host.", detectors=(steal,)),
        _build_pipeline(
            VMWARE_GENERAL_PURPOSE,
            "VMware: re-weighs what Nova's own filters left.",
            weighers=contention,
            gathers=False,
        ),
        _build_pipeline(VMWARE_HANA, "VMware: keeps Nova's order.", gathers=False),
    )
    return tuple(sorted(made, key=lambda pipeline: pipeline.name))


def _build_filters(names: str, capacity: tuple[Parameter, ...] = ()) -> tuple[StepSpec, ...]:
    """The filters of these names; ``capacity`` are parameters of the filter on capacity."""
    params = {"filter_external_customer": _CUSTOMERS, "filter_has_enough_capacity": capacity}
    return tuple(StepSpec(name=name, params=params.get(name, ())) for name in names.split())


def _size_weighers(bin_packing: float) -> tuple[StepSpec, ...]:
    return (
        StepSpec(name="kvm_prefer_smaller_hosts", params=_MEMORY_ONLY),
        StepSpec(name="kvm_instance_group_soft_affinity"),
        StepSpec(name="kvm_binpack", params=_MEMORY_ONLY, multiplier=bin_packing),
    )


def _build_pipeline(
    name: str,
    description: str,
    filters: tuple[StepSpec, ...] = (),
    weighers: tuple[StepSpec, ...] = (),
    *,
    detectors: tuple[StepSpec, ...] = (),
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


def _contention_bounds() -> tuple[Parameter, ...]:
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
