"""Filters on what a host's machine can do."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import ClassVar, Final

import numpy as np

from outlive.placement.columns import BoolVector, HostFacts
from outlive.placement.errors import StepFailed
from outlive.placement.request import INTERNAL_CALLS, SOURCE_HOST_HINT, Intent
from outlive.placement.steps import Event, Filter, OnError, Reason, Run

_NUMBERS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
}
_TEXTS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "s==": operator.eq,
    "s!=": operator.ne,
    "s<": operator.lt,
    "s<=": operator.le,
    "s>": operator.gt,
    "s>=": operator.ge,
}


def satisfies(has: str, wanted: str) -> bool:
    """Whether what a host has meets what an extra spec wants."""
    words = wanted.split()
    first = words[0] if words else ""
    if first == "<or>":
        return has in [word for word in words if word != "<or>"]
    if first == "<in>":
        return len(words) > 1 and " ".join(words[1:]) in has
    if first == "<all-in>":
        return len(words) > 1 and all(word in has for word in words[1:])
    if first in _TEXTS:
        return _TEXTS[first](has, " ".join(words[1:]))
    if first in _NUMBERS:
        try:
            return _NUMBERS[first](float(has), float(" ".join(words[1:])))
        except ValueError:
            return False
    return has == wanted


_CAPABILITY = "capabilities:"
_TRAIT = "trait:"
_CAPABILITY_WORDS = {"capabilities:hypervisor_type": "hypervisor_type", "capabilities:cpu_arch": "cpu_arch"}


class ImageProperties(Filter):
    """Refuses all hosts for images of another kind of hypervisor (placement.md#filter_image_properties)."""

    name = "filter_image_properties"
    counts_events = True

    def skips(self, run: Run) -> bool:
        """The call is for nobody's VM, or the image does not say what it is made for."""
        return run.request.intent in INTERNAL_CALLS or _image_type(run) in ("", "kvm")

    def mask(self, run: Run) -> BoolVector:
        """No known host: all of them are KVM."""
        return run.pad(np.zeros(run.size, dtype=np.bool_), keep_unknown=True)

    def check(self, run: Run, host: str) -> Reason | None:
        """What the image is made for."""
        if run.facts(host) is None:
            return None
        return self.no("wrong-image", f"the image is for {_image_type(run)}, the host is KVM")

    def events(self, run: Run) -> list[Event]:
        """Images that do not say what they are made for."""
        if run.request.intent in INTERNAL_CALLS or _image_type(run):
            return []
        return [Event("image_properties_hv_type_undetermined", (("intent", run.request.intent.value),))]


def _image_type(run: Run) -> str:
    """``kvm``, ``vmware``, ``baremetal``, or the empty string; the first property that is present decides."""
    for key in ("img_hv_type", "hypervisor_type"):
        if key in run.request.image_properties:
            value = run.request.image_properties[key]
            word = value.lower() if isinstance(value, str) else ""
            return word if word in ("kvm", "vmware", "baremetal") else ""
    return ""


class HypervisorCapabilities(Filter):
    """Compares ``capabilities:`` extra specs with the host's machine (placement.md#filter_capabilities)."""

    name = "filter_capabilities"
    counts_events = True

    def skips(self, run: Run) -> bool:
        """Nothing is asked for."""
        return not _capabilities(run)

    def mask(self, run: Run) -> BoolVector:
        """Hosts that meet every requested capability."""
        wanted, fleet = _capabilities(run), run.fleet

        def build() -> BoolVector:
            mask = fleet.columns.flag("mapped").copy()
            for key, value in wanted:
                word = _CAPABILITY_WORDS.get(key)
                if word is None:
                    return np.zeros(fleet.size, dtype=np.bool_)
                mask &= fleet.columns.matching(word, lambda has, value=value: satisfies(has, value))  # type: ignore[misc]
            return mask

        return run.remembered(("capabilities", wanted), build)

    def check(self, run: Run, host: str) -> Reason | None:
        """The first capability that the host does not have."""
        facts = run.facts(host)
        if facts is None:
            return self.unknown(host)
        if not facts.hypervisor_type:
            return self.no("unmapped-hypervisor", f"hypervisor type {facts.raw_type!r} is not known")
        has = {"capabilities:hypervisor_type": facts.hypervisor_type, "capabilities:cpu_arch": facts.cpu_arch}
        for key, value in _capabilities(run):
            if key not in has:
                return self.no("unknown-capability", f"no host states {key}")
            if not satisfies(has[key], value):
                return self.no("wrong-capability", f"{key} is {has[key]!r}, requested is {value!r}")
        return None

    def events(self, run: Run) -> list[Event]:
        """Candidates with a hypervisor type that flavors have no word for."""
        if self.skips(run):
            return []
        fleet = run.fleet
        unmapped = fleet.remembered(("unmapped",), lambda: fleet.live & ~fleet.columns.flag("mapped"))
        if not unmapped.any():
            return []
        lost = run.candidates[: run.size] & unmapped
        words = fleet.columns.word("raw_type")
        return [
            Event(
                "filter_capabilities_unknown_hypervisor_type",
                (("hypervisor_type", fleet.columns.decode(int(code))),),
                int((lost & (words == code)).sum()),
            )
            for code in np.unique(words[lost])
        ]


def _capabilities(run: Run) -> tuple[tuple[str, str], ...]:
    found: tuple[tuple[str, str], ...] | None = run.memo.get(_CAPABILITY)
    if found is None:
        specs = run.request.extra_specs
        found = tuple(sorted((key, value) for key, value in specs.items() if key.startswith(_CAPABILITY)))
        run.memo[_CAPABILITY] = found
    return found


class RequestedTraits(Filter):
    """Required traits present, forbidden ones absent (placement.md#filter_has_requested_traits)."""

    name = "filter_has_requested_traits"
    on_error: ClassVar[OnError] = "reject"

    def skips(self, run: Run) -> bool:
        """No trait is required or forbidden."""
        return not _traits(run)

    def mask(self, run: Run) -> BoolVector:
        """Hosts with all required and no forbidden trait."""
        wanted, fleet = _traits(run), run.fleet

        def build() -> BoolVector:
            mask = fleet.live.copy()
            for trait, required in wanted:
                has = fleet.has_trait(trait)
                mask &= has if required else ~has
            return mask

        return run.remembered(("traits", wanted), build)

    def check(self, run: Run, host: str) -> Reason | None:
        """The first trait that is missing, or that should be."""
        facts = run.facts(host)
        if facts is None:
            return self.unknown(host)
        for trait, required in _traits(run):
            if required and trait not in facts.traits:
                return self.no("missing-trait", f"trait {trait} is required and missing")
            if not required and trait in facts.traits:
                return self.no("forbidden-trait", f"trait {trait} is forbidden and present")
        return None


def _traits(run: Run) -> tuple[tuple[str, bool], ...]:
    """(trait, required or else forbidden); other values than these two words say nothing."""
    found: tuple[tuple[str, bool], ...] | None = run.memo.get(_TRAIT)
    if found is None:
        found = tuple(
            sorted(
                (key[len(_TRAIT) :], value == "required")
                for key, value in run.request.extra_specs.items()
                if key.startswith(_TRAIT) and value in ("required", "forbidden")
            )
        )
        run.memo[_TRAIT] = found
    return found


class _NeedsTrait(Filter):
    """Keeps hosts with one trait when the request asks for what the trait stands for."""

    trait: ClassVar[str]
    code: ClassVar[str]
    what: ClassVar[str]

    def mask(self, run: Run) -> BoolVector:
        """Hosts with the trait."""
        return run.pad(run.fleet.has_trait(self.trait), keep_unknown=False)

    def check(self, run: Run, host: str) -> Reason | None:
        """Whether the host has the trait."""
        facts = run.facts(host)
        if facts is None:
            return self.unknown(host)
        return None if self.trait in facts.traits else self.no(self.code, f"{self.what}: trait {self.trait} is missing")


class Accelerators(_NeedsTrait):
    """A flavor with a device profile needs a host with accelerators."""

    name = "filter_has_accelerators"
    trait = "COMPUTE_ACCELERATORS"
    code = "no-accelerators"
    what = "the flavor has a device profile"

    def skips(self, run: Run) -> bool:
        """The flavor has no device profile; any value counts as one."""
        return "accel:device_profile" not in run.request.extra_specs


class PackedVirtqueue(_NeedsTrait):
    """Optional: packed rings, asked for by flavor or image, need a host that has them."""

    name = "filter_packed_virtqueue"
    trait = "COMPUTE_NET_VIRTIO_PACKED"
    code = "no-packed-virtqueue"
    what = "packed virtqueues are requested"

    def skips(self, run: Run) -> bool:
        """Neither flavor nor image mentions them."""
        request = run.request
        return "hw:virtio_packed_ring" not in request.extra_specs and (
            "hw_virtio_packed_ring" not in request.image_properties
        )


class LiveMigratable(Filter):
    """Keeps hosts that a live migration from the source can reach (placement.md#filter_live_migratable).

    It compares machines, not the VM: its CPU model, pinned devices and NUMA layout are not looked at.
    """

    name = "filter_live_migratable"

    def skips(self, run: Run) -> bool:
        """No live migration, or nobody said from where."""
        return run.request.intent is not Intent.LIVE_MIGRATION or not run.request.hints.get(SOURCE_HOST_HINT)

    @staticmethod
    def _source(run: Run) -> HostFacts:
        name = run.request.hints[SOURCE_HOST_HINT]
        source = run.facts(name)
        if source is None:
            raise StepFailed(f"source host {name} is not known", code="unknown-source-host")
        return source

    def mask(self, run: Run) -> BoolVector:
        """Hosts of the same architecture with at least the source's modes, features and devices."""
        source, fleet = self._source(run), run.fleet

        def build() -> BoolVector:
            words = fleet.columns.word("migration")
            codes, first = np.unique(words, return_index=True)
            good = [
                int(code)
                for code, row in zip(codes, first, strict=True)
                if (facts := fleet.facts_at(int(row))) is not None and facts.takes_migration_from(source)
            ]
            return np.isin(words, good)

        return run.remembered(("migration", source.migration), build)

    def check(self, run: Run, host: str) -> Reason | None:
        """What the host lacks."""
        source, facts = self._source(run), run.facts(host)
        if facts is None:
            return self.unknown(host)
        if facts.takes_migration_from(source):
            return None
        if facts.cpu_arch != source.cpu_arch:
            return self.no("wrong-architecture", f"cpu is {facts.cpu_arch}, the source's is {source.cpu_arch}")
        lacking = sorted(
            (source.cpu_modes - facts.cpu_modes) | (source.features - facts.features) | (source.devices - facts.devices)
        )
        return self.no("not-migratable", f"lacks {', '.join(lacking[:5])} of the source host")
