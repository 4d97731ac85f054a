"""What is asked of placement: which hosts may take this, best first.

One form for all callers: Nova over HTTP, failover inside the process, the command line and a replayed
decision. Amounts are per instance, in milli-cores and bytes; wire formats are the business of
``outlive.placement.external``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from outlive.base import BadInput
from outlive.resources import Amounts, FunctionNeed, ReservationType

CHECK_TYPE_HINT: Final = "_nova_check_type"
GROUP_HINT: Final = "_cortex_resource_group"
SOURCE_HOST_HINT: Final = "source_host"
DOMAIN_NAME_HINT: Final = "domain_name"
HYPERVISOR_TYPE: Final = "capabilities:hypervisor_type"
HANA_TRAIT: Final = "CUSTOM_HANA_EXCLUSIVE_HOST"
"""Trait of hosts that only VMs with HANA may use."""
HANA_SPEC: Final = f"trait:{HANA_TRAIT}"
"""Extra spec by which a flavor asks for such a host, or not."""

_IMAGE_OF_TYPE: Final = {
    "QEMU": {"img_hv_type": "kvm"},
    "qemu": {"img_hv_type": "kvm"},
    "CH": {"img_hv_type": "kvm"},
    "ch": {"img_hv_type": "kvm"},
    "VMware vCenter Server": {"hypervisor_type": "vmware"},
    "Ironic": {"hypervisor_type": "baremetal"},
}


class Intent(enum.StrEnum):
    """What the caller is up to (docs/reference/placement.md#intents)."""

    UNKNOWN = "unknown"
    """No hint: an ordinary creation by Nova. No rule that names an intent holds for it."""
    CREATE = "create"
    REBUILD = "rebuild"
    RESIZE = "resize"
    LIVE_MIGRATION = "live_migration"
    EVACUATE = "evacuate"
    RESERVE_FOR_FAILOVER = "reserve_for_failover"
    REUSE_FAILOVER_RESERVATION = "reuse_failover_reservation"
    RESERVE_FOR_COMMITTED_RESOURCE = "reserve_for_committed_resource"
    CAPACITY_PROBE = "capacity_probe"


FAILOVER_SEARCH: Final = frozenset({Intent.RESERVE_FOR_FAILOVER, Intent.REUSE_FAILOVER_RESERVATION})
INTERNAL_CALLS: Final = FAILOVER_SEARCH | {Intent.CAPACITY_PROBE, Intent.RESERVE_FOR_COMMITTED_RESOURCE}

_HINT_WORDS: Final = {
    "rebuild": Intent.REBUILD,
    "resize": Intent.RESIZE,
    "live_migrate": Intent.LIVE_MIGRATION,
    "evacuate": Intent.EVACUATE,
    "reserve_for_failover": Intent.RESERVE_FOR_FAILOVER,
    "reuse_failover_reservation": Intent.REUSE_FAILOVER_RESERVATION,
    "reserve_for_committed_resource": Intent.RESERVE_FOR_COMMITTED_RESOURCE,
    "capacity_probe": Intent.CAPACITY_PROBE,
}


def first_text(value: object) -> str | None:
    """The text of a hint: a string, or the first element of a list; ``None`` when it is neither."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and value and isinstance(value[0], str):
        return value[0]
    return None


def readable_hints(hints: Mapping[str, Any] | None) -> dict[str, str]:
    """The hints that have a text."""
    if not hints:
        return {}
    return {key: text for key, value in hints.items() if (text := first_text(value)) is not None}


def intent_of(hints: Mapping[str, str]) -> Intent:
    """The intent that readable hints state; any word that is not known means creation."""
    word = hints.get(CHECK_TYPE_HINT)
    return Intent.UNKNOWN if word is None else _HINT_WORDS.get(word, Intent.CREATE)


def hint_word(intent: Intent) -> str | None:
    """The value of the hint that states this intent; ``None`` for the unknown one."""
    if intent is Intent.UNKNOWN:
        return None
    return "live_migrate" if intent is Intent.LIVE_MIGRATION else intent.value


def image_properties(hypervisor_type: str) -> dict[str, str]:
    """What the image of a VM says that runs on hypervisors of this type; nothing of a type that is not known."""
    return dict(_IMAGE_OF_TYPE.get(hypervisor_type, {}))


class Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A piece of a request in our own JSON."""


class PlacementOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the call is to be carried out (docs/reference/placement.md#options). The wire names are these names."""

    read_only: bool = False
    assume_empty_hosts: bool = False
    lock_reservations: bool = False
    ignored_reservation_types: tuple[ReservationType, ...] = ()
    max_candidates: Annotated[int, msgspec.Meta(ge=0)] = 0
    skip_history: bool = False
    skip_inflight: bool = False
    skip_committed_resource_tracking: bool = False

    def check(self) -> None:
        """``BadInput`` when the options contradict each other: a read-only run may leave no trace."""
        if not self.read_only:
            return
        missing = [
            name
            for name in ("skip_history", "skip_inflight", "skip_committed_resource_tracking")
            if not getattr(self, name)
        ]
        if missing:
            raise BadInput(
                f"option read_only without {', '.join(missing)}",
                place="options",
                remedy="set the three skip options as well, or drop read_only",
            )


SILENT: Final = PlacementOptions(skip_history=True, skip_inflight=True, skip_committed_resource_tracking=True)
"""The three skips: the call leaves no history, no in-flight reservation and no commitment tracking."""


class Destination(Wire, frozen=True):
    """Where an operator wants the VM."""

    host: str = ""
    aggregates: tuple[str, ...] = ()
    """Every element must match; an element is a comma-separated list of uuids, one of which suffices."""


class InstanceGroup(Wire, frozen=True):
    """The server group of the VM."""

    policy: str = ""
    members: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    max_server_per_host: int = 1


class PlacementRequest(Wire, frozen=True):
    """What to place, for whom, and among which hosts."""

    resource_id: str = ""
    """The VM, or the reservation that wants a place; breaks ties and finds own slots."""
    project: str = ""
    user: str = ""
    caller_project: str = ""
    """The project in whose name the call is made, where that is another one; its commitments are used."""
    zone: str = ""
    num_instances: int = 1
    need: Amounts = msgspec.field(default_factory=Amounts)
    """Per instance."""
    flavor_name: str = ""
    extra_specs: dict[str, str] = {}
    intent: Intent = Intent.UNKNOWN
    hints: dict[str, str] = {}
    """Readable hints; the one for the intent need not be among them."""
    ignore_hosts: tuple[str, ...] = ()
    force_hosts: tuple[str, ...] | None = None
    """Only these hosts; the empty tuple means none at all."""
    destination: Destination | None = None
    group: InstanceGroup | None = None
    image_properties: dict[str, Any] = {}
    places: tuple[str, ...] = ()
    """Places of storage that it needs and that some host does not reach, as that host names them."""
    functions: tuple[FunctionNeed, ...] = ()
    """Virtual functions that the VM needs, and that must be free or its own on its host."""
    hosts: tuple[str, ...] | None = None
    """The candidates; ``None`` means all known hosts."""
    renamed_hosts: dict[str, str] = {}
    """Host → the name that its caller has for it, where that cannot be the name of an object."""
    weights: tuple[float, ...] = ()
    """Aligned with ``hosts``; empty means zero each."""
    pipeline: str = ""
    options: PlacementOptions = PlacementOptions()
    request_id: str = ""
    global_request_id: str = ""

    @property
    def instances(self) -> int:
        """How many must fit on one host: at least one."""
        return self.num_instances or 1

    def group_name(self, keys: tuple[str, ...]) -> str:
        """The flavor group by the first of these extra specs that is present, or the empty string."""
        for key in keys:
            value = self.extra_specs.get(key)
            if value:
                return value
        return ""
