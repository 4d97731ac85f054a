"""Filters on what a host's machine can do."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import numpy as np

from outlive.placement.errors import StepFailed
from outlive.placement.request import INTERNAL_CALLS, SOURCE_HOST_HINT, Intent
from outlive.placement.rules import (
    ACCELERATORS_TRAIT,
    DEVICE_PROFILE,
    HostFacts,
    capabilities_asked,
    traits_asked,
    unsuited_capabilities,
    unsuited_traits,
)
from outlive.placement.steps import FactsFilter, OnError, PipelineRun, StepEvent, StepRefusal


class ImageProperties(FactsFilter):
    """Refuses all hosts for images of another kind of hypervisor (placement.md#filter_image_properties)."""

    name = "filter_image_properties"
    counts_events = True
    admits_unknown = True

    def find_demand(self, run: PipelineRun) -> str | None:
        """What the image is made for, unless that is KVM or not known, or the call is for nobody's VM."""
        kind = _image_type(run)
        return None if run.request.intent in INTERNAL_CALLS or kind in ("", "kvm") else kind

    def find_refusal(self, asked: str, facts: HostFacts) -> StepRefusal | None:
        """Every known host is KVM."""
        return self.refuse("wrong-image", f"the image is for {asked}, the host is KVM")

    def collect_events(self, run: PipelineRun) -> list[StepEvent]:
        """Images that do not say what they are made for."""
        if run.request.intent in INTERNAL_CALLS or _image_type(run):
            return []
        return [StepEvent("image_properties_hv_type_undetermined", (("intent", run.request.intent.value),))]


def _image_type(run: PipelineRun) -> str:
    """``kvm``, ``vmware``, ``baremetal``, or the empty string; the first property that is present decides."""
    for key in ("img_hv_type", "hypervisor_type"):
        if key in run.request.image_properties:
            value = run.request.image_properties[key]
            word = value.lower() if isinstance(value, str) else ""
            return word if word in ("kvm", "vmware", "baremetal") else ""
    return ""


class HypervisorCapabilities(FactsFilter):
    """Compares ``capabilities:`` extra specs with the host's machine (placement.md#filter_capabilities)."""

    name = "filter_capabilities"
    counts_events = True

    def find_demand(self, run: PipelineRun) -> tuple[tuple[str, str], ...] | None:
        """The capabilities and their wanted values."""
        return capabilities_asked(run.request.extra_specs) or None

    def find_refusal(self, asked: tuple[tuple[str, str], ...], facts: HostFacts) -> StepRefusal | None:
        """The first capability that the host does not have."""
        return self.refuse_unsuited(unsuited_capabilities(asked, facts))

    def collect_events(self, run: PipelineRun) -> list[StepEvent]:
        """Candidates with a hypervisor type that flavors have no word for."""
        if self.skips(run):
            return []
        unmapped = run.fleet.mask_accepted("unmapped", lambda facts: not facts.hypervisor_type)
        if not unmapped.any():
            return []
        rows = np.flatnonzero(run.candidates[: run.size] & unmapped).tolist()
        found = Counter(facts.raw_type for row in rows if (facts := run.fleet.facts_at(row)) is not None)
        event = "filter_capabilities_unknown_hypervisor_type"
        return [StepEvent(event, (("hypervisor_type", kind),), count) for kind, count in found.items()]


class RequestedTraits(FactsFilter):
    """Required traits present, forbidden ones absent (placement.md#filter_has_requested_traits)."""

    name = "filter_has_requested_traits"
    on_error: ClassVar[OnError] = "reject"

    def find_demand(self, run: PipelineRun) -> tuple[tuple[str, bool], ...] | None:
        """(trait, required or else forbidden); other values than these two words say nothing."""
        return traits_asked(run.request.extra_specs) or None

    def find_refusal(self, asked: tuple[tuple[str, bool], ...], facts: HostFacts) -> StepRefusal | None:
        """The first trait that is missing, or that should be."""
        return self.refuse_unsuited(unsuited_traits(asked, facts))


class _NeedsTrait(FactsFilter):
    """Keeps hosts with one trait when the request asks for what the trait stands for."""

    trait: ClassVar[str]
    code: ClassVar[str]
    what: ClassVar[str]

    def find_refusal(self, asked: bool, facts: HostFacts) -> StepRefusal | None:
        """Whether the host has the trait."""
        return (
            None
            if self.trait in facts.traits
            else self.refuse(self.code, f"{self.what}: trait {self.trait} is missing")
        )


class Accelerators(_NeedsTrait):
    """A flavor with a device profile needs a host with accelerators."""

    name = "filter_has_accelerators"
    trait = ACCELERATORS_TRAIT
    code = "no-accelerators"
    what = "the flavor has a device profile"

    def find_demand(self, run: PipelineRun) -> bool | None:
        """Whether the flavor has a device profile; any value counts as one."""
        return DEVICE_PROFILE in run.request.extra_specs or None


class PackedVirtqueue(_NeedsTrait):
    """Optional: packed rings, asked for by flavor or image, need a host that has them."""

    name = "filter_packed_virtqueue"
    trait = "COMPUTE_NET_VIRTIO_PACKED"
    code = "no-packed-virtqueue"
    what = "packed virtqueues are requested"

    def find_demand(self, run: PipelineRun) -> bool | None:
        """Whether flavor or image mentions them."""
        in_flavor, in_image = run.request.extra_specs, run.request.image_properties
        return "hw:virtio_packed_ring" in in_flavor or "hw_virtio_packed_ring" in in_image or None


class LiveMigratable(FactsFilter):
    """Keeps hosts that a live migration from the source can reach (placement.md#filter_live_migratable).

    It compares machines, not the VM: its CPU model, pinned devices and NUMA layout are not looked at.
    """

    name = "filter_live_migratable"

    def skips(self, run: PipelineRun) -> bool:
        """No live migration, or nobody said from where."""
        return run.request.intent is not Intent.LIVE_MIGRATION or not run.request.hints.get(SOURCE_HOST_HINT)

    def find_demand(self, run: PipelineRun) -> HostFacts:
        """The facts of the source."""
        name = run.request.hints[SOURCE_HOST_HINT]
        source = run.find_facts(name)
        if source is None:
            raise StepFailed(f"source host {name} is not known", code="unknown-source-host")
        return source

    def find_refusal(self, asked: HostFacts, facts: HostFacts) -> StepRefusal | None:
        """What the host lacks of the source's architecture, modes, features and devices."""
        if facts.cpu_arch != asked.cpu_arch:
            return self.refuse("wrong-architecture", f"cpu is {facts.cpu_arch}, the source's is {asked.cpu_arch}")
        lacking = sorted(
            (asked.cpu_modes - facts.cpu_modes) | (asked.features - facts.features) | (asked.devices - facts.devices)
        )
        return self.refuse("not-migratable", f"lacks {', '.join(lacking[:5])} of the source host") if lacking else None
