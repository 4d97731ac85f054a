"""Sizes of VMs, and groups of sizes that share hardware and a ratio of memory to processors."""

from __future__ import annotations

from typing import ClassVar

from outlive.resources.amounts import Amounts, DiskGib, Size
from outlive.resources.meta import KindInfo, Part, Resource, Writers


class FlavorSpec(Part, frozen=True, kw_only=True):
    """A VM size. The flavor's own name is a field, because a Nova flavor name need not be a DNS name."""

    flavor_name: str
    """Nova's name of the flavor."""
    resources: Size = Amounts()
    """``cpu``, ``memory``, and other resources of such a VM (``gpu``)."""
    disk_gib: DiskGib = 0
    """GiB of disk; with Nova, of the root disk."""
    ephemeral_gib: int = 0
    """GiB of further disks that go with the VM."""
    extra_specs: dict[str, str] = {}
    """Extra specs, as Nova has them; placement reads them."""


class Flavor(Resource, frozen=True, kw_only=True, tag="Flavor"):
    """A VM size."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="flavors",
        writers=Writers(
            fields={"spec": ("users", "import", "mirror")},
            creates=("users", "import", "mirror"),
            deletes=("users", "import", "mirror"),
        ),
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
    """Nova's name of the flavor."""
    vcpus: int
    """Virtual processors that such a VM has."""
    memory_mb: int = 0
    """MiB of memory that such a VM has."""
    disk_gb: int = 0
    """GiB of disk, as ``diskGib`` of the flavor."""
    ephemeral_gb: int = 0
    """GiB of further disks that go with the VM."""
    extra_specs: dict[str, str] = {}
    """Extra specs of the flavor."""


class FlavorGroupSpec(Part, frozen=True, kw_only=True):
    """Sizes that share hardware, traits and a RAM/CPU ratio rule; flavors largest first."""

    group_name: str
    """Name of the group, as extra specs of its flavors give it."""
    flavors: tuple[GroupFlavor, ...] = ()
    """The flavors of the group, the largest first."""
    largest_flavor: GroupFlavor
    """The largest flavor of the group."""
    smallest_flavor: GroupFlavor
    """The smallest flavor of the group: units of memory and capacity are counted in it."""
    ram_core_ratio: int | None = None
    """MiB of memory for each virtual processor, where that is the same in all flavors."""
    ram_core_ratio_min: int | None = None
    """The smallest such ratio, where flavors differ."""
    ram_core_ratio_max: int | None = None
    """The largest such ratio, where flavors differ."""


class FlavorGroup(Resource, frozen=True, kw_only=True, tag="FlavorGroup"):
    """A flavor group, derived from the flavors."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="flavorgroups",
        writers=Writers(
            fields={"spec": ("placement", "mirror")}, creates=("placement", "mirror"), deletes=("placement", "mirror")
        ),
        columns=(
            ("Group", ".spec.groupName", 0),
            ("Largest", ".spec.largestFlavor.name", 0),
            ("Smallest", ".spec.smallestFlavor.name", 0),
            ("Ratio", ".spec.ramCoreRatio", 0),
        ),
    )

    spec: FlavorGroupSpec
