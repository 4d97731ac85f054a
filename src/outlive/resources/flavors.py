"""VM sizes: ``Flavor`` and ``FlavorGroup``."""

from __future__ import annotations

from typing import ClassVar

from outlive.resources.amounts import Amounts
from outlive.resources.meta import KindInfo, Part, Resource, Writers


class FlavorSpec(Part, frozen=True, kw_only=True):
    """A VM size. The flavor's own name stands here, because a Nova flavor name need not be a DNS name."""

    flavor_name: str
    resources: Amounts = Amounts()
    disk_gib: int = 0
    ephemeral_gib: int = 0
    extra_specs: dict[str, str] = {}


class Flavor(Resource, frozen=True, kw_only=True, tag="Flavor"):
    """A VM size."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="flavors",
        writers=Writers(fields={"spec": ("users", "import", "mirror")}),
        columns=(
            ("Flavor", ".spec.flavorName", 0),
            ("CPU", ".spec.resources.cpu", 0),
            ("Memory", ".spec.resources.memory", 0),
        ),
    )

    spec: FlavorSpec


class GroupFlavor(Part, frozen=True, kw_only=True):
    """A flavor as its group records it; ``memory_mb`` is MiB despite the inherited name."""

    name: str
    vcpus: int
    memory_mb: int = 0
    disk_gb: int = 0
    ephemeral_gb: int = 0
    extra_specs: dict[str, str] = {}


class FlavorGroupSpec(Part, frozen=True, kw_only=True):
    """A set of sizes that share hardware, traits and a RAM/CPU ratio rule; flavors largest first."""

    group_name: str
    flavors: tuple[GroupFlavor, ...] = ()
    largest_flavor: GroupFlavor
    smallest_flavor: GroupFlavor
    ram_core_ratio: int | None = None
    ram_core_ratio_min: int | None = None
    ram_core_ratio_max: int | None = None


class FlavorGroup(Resource, frozen=True, kw_only=True, tag="FlavorGroup"):
    """A flavor group, derived from the flavors."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="flavorgroups",
        writers=Writers(fields={"spec": ("placement", "mirror")}),
        columns=(
            ("Group", ".spec.groupName", 0),
            ("Largest", ".spec.largestFlavor.name", 0),
            ("Smallest", ".spec.smallestFlavor.name", 0),
            ("Ratio", ".spec.ramCoreRatio", 0),
        ),
    )

    spec: FlavorGroupSpec
