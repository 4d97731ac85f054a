"""What an inventory says, before it becomes resources: hosts, VMs and flavors as records with their place.

Every driver that reads an inventory (CSV files, OpenStack's JSON, a database) ends here, and everything
after this point is the same for all of them. ``None`` means that the source does not know the field, so that
an import leaves alone what it knows nothing about.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from outlive.resources import Aggregate, Amounts
from outlive.resources.amounts import size_problems
from outlive.resources.documents import Problems
from outlive.resources.reasons import Reason

IMPORT_HOSTS_LIMIT: Final = 100_000
"""Hosts of one import."""
IMPORT_VMS_LIMIT: Final = 2_000_000
"""VMs of one import."""


class HostRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A host as its source describes it."""

    name: str
    place: str
    capacity: Amounts
    used: Amounts | None = None
    """What the source says is in use; it counts where it is more than the sum over the VMs."""
    zone: str | None = None
    domains: dict[str, str] = {}
    """Failure domain kind → name, such as ``{"rack": "r07"}``."""
    traits: tuple[str, ...] | None = None
    aggregates: tuple[Aggregate, ...] | None = None
    cpu_arch: str | None = None
    hypervisor_type: str | None = None
    """libvirt's word, ``kvm`` or ``ch``."""
    disabled: str | None = None
    """Why it is disabled; the empty string where it is known to be enabled."""
    down: bool | None = None


class VmRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A VM as its source describes it."""

    id: str
    place: str
    name: str = ""
    project: str | None = None
    flavor: str = ""
    resources: Amounts | None = None
    """Absent: those of the flavor."""
    zone: str | None = None
    host: str | None = None
    """Where it runs; the empty string where it is known to run nowhere."""
    phase: str | None = None
    disk_gib: int | None = None
    extra_specs: dict[str, str] | None = None
    os_type: str | None = None
    server_group: str | None = None
    server_group_policy: str | None = None
    """One of ``GROUP_POLICIES``."""
    protection: str | None = None
    """Protection level."""
    restart_priority: int | None = None


class FlavorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A VM size as its source describes it."""

    name: str
    place: str
    resources: Amounts
    disk_gib: int = 0
    ephemeral_gib: int = 0
    extra_specs: dict[str, str] = {}


@dataclass(slots=True)
class Inventory:
    """All records of one source, and what is wrong with them so far."""

    what: str
    """The source in one word: ``csv``, ``openstack``, ``database``."""
    problems: Problems = field(default_factory=Problems)
    hosts: list[HostRecord] = field(default_factory=list)
    vms: list[VmRecord] = field(default_factory=list)
    flavors: list[FlavorRecord] = field(default_factory=list)
    has_hosts: bool = False
    """Whether the source lists hosts at all; without, none is pruned."""
    has_vms: bool = False
    rows_left_out: int = 0
    """Rows that ``--where`` did not select, or that nothing can be made of."""
    notices: list[Reason] = field(default_factory=list)
    """What the source has that was not read, or was assumed."""
    sizes_remedy: str = "give cpu and memory, or import the flavor"
    """What helps against a VM whose size is not known."""


GROUP_POLICIES: Final = ("", "anti-affinity", "affinity", "soft-anti-affinity", "soft-affinity")
"""What a server group may ask for; empty: nothing."""

STOPPED_PHASES: Final = frozenset(
    {"shutoff", "stopped", "shutdown", "suspended", "paused", "shelved", "shelved_offloaded", "soft_deleted", "failed"}
)
"""Words of sources for a VM that does not run, lower-case."""


def is_active(phase: str) -> bool:
    """Whether a VM in this phase counts as running on its host; an unknown word does."""
    return phase.lower() not in STOPPED_PHASES


def check_amounts(amounts: Amounts, place: str, problems: Problems, *, what: str) -> None:
    """Note what is absurd about the amounts of a host or VM: nothing, negative, or beyond any machine."""
    for name in ("cpu", "memory"):
        if amounts.get(name, 0) == 0:
            problems.add(place, f"{what} has no {name}", "give a size above 0, or leave the row out")
    for name, problem, remedy in size_problems(amounts):
        if amounts[name] != 0:
            problems.add(place, f"{what} has {problem}", remedy)
