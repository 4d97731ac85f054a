"""What failover asks of placement: where slots may be reused, where a new one fits, whether one is still valid.

Two profiles (docs/reference/failover-operation.md#placement-calls): ``general`` names the pipelines that VMs themselves
use and says by options how they are to behave; ``dedicated`` names three pipelines of failover's own and sends no
options. Requests are built here and sent elsewhere: in process, or over HTTP. Searches for a whole class of equal VMs
are built once; then the answer may contain the own host of one of them, which the rules refuse anyway.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from outlive.base import Refused
from outlive.failover.config import Profile
from outlive.failover.slots import ResolvedSize, resource_group
from outlive.placement import (
    DOMAIN_NAME_HINT,
    GROUP_HINT,
    HANA_SPEC,
    HYPERVISOR_TYPE,
    SILENT,
    Intent,
    PlacementOptions,
    PlacementRequest,
    VmView,
    image_properties,
)
from outlive.resources import FAILOVER, Amounts, Hypervisor, encode_canonical, lies_in, lost_places

GENERAL_PIPELINE = "kvm-general-purpose-load-balancing"
HANA_PIPELINE = "kvm-hana-bin-packing"
REUSE_PIPELINE = "kvm-valid-host-reuse-failover-reservation"
NEW_PIPELINE = "kvm-new-failover-reservation"
VALIDATE_PIPELINE = "kvm-acknowledge-failover-reservation"
TENANT_KEY = "filter_tenant_id"
"""Aggregate metadata with this prefix pins its hosts to projects."""


class CallKind(enum.StrEnum):
    """The three questions."""

    REUSE = "reuse"
    NEW = "new"
    VALIDATE = "validate"


class Call(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One question to placement. ``request.hosts`` is ``None`` where all hosts but the ignored ones are candidates."""

    kind: CallKind
    request: PlacementRequest


def resolve_no_domain(_project: str) -> str:
    """Nothing: of no project."""
    return ""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Builds the calls of one profile."""

    profile: Profile = "general"
    domain_of: Callable[[str], str] = resolve_no_domain
    """Project → name of its domain, where hosts are set aside by it; else nothing."""
    lost: Callable[[], tuple[str, ...]] = tuple
    """Places of storage that some host does not reach."""
    beside_slots: bool = True
    """Whether the room that slots hold is taken; else it is asked what there would be room for without them."""

    def lost_places_of(self, vm: VmView) -> tuple[str, ...]:
        """Of the lost places those that the VM needs."""
        return tuple(place for place in self.lost() if any(lies_in(disk, place) for disk in vm.disks))

    def build_reuse_call(
        self, vm: VmView, size: ResolvedSize, *, ignore: Sequence[str], req: str = "", greq: str = ""
    ) -> Call:
        """On which hosts may a slot be that this VM joins?"""
        options = msgspec.structs.replace(SILENT, read_only=True)
        intent = Intent.REUSE_FAILOVER_RESERVATION
        if self.profile == "dedicated":
            intent = Intent.RESERVE_FOR_FAILOVER
        request = self._search(vm, size, intent=intent, ignore=ignore, req=req, greq=greq)
        return Call(kind=CallKind.REUSE, request=self._route_request(request, vm, options, REUSE_PIPELINE))

    def build_new_call(
        self, vm: VmView, size: ResolvedSize, *, ignore: Sequence[str], req: str = "", greq: str = ""
    ) -> Call:
        """Which hosts can hold a new slot of this size?"""
        overlooked = () if self.beside_slots else (FAILOVER,)
        options = msgspec.structs.replace(SILENT, lock_reservations=True, ignored_reservation_types=overlooked)
        request = self._search(vm, size, intent=Intent.RESERVE_FOR_FAILOVER, ignore=ignore, req=req, greq=greq)
        return Call(kind=CallKind.NEW, request=self._route_request(request, vm, options, NEW_PIPELINE))

    def validate(self, vm: VmView, slot_host: str, *, greq: str = "") -> Call:
        """Could this VM be evacuated to the host of its slot, now? Asked with the VM's own size."""
        options = msgspec.structs.replace(SILENT, read_only=True, lock_reservations=True)
        request = self._base_request(vm, greq=greq, req=vm.id)
        request = msgspec.structs.replace(
            request, intent=Intent.EVACUATE, hosts=(slot_host,), ignore_hosts=(vm.host,), need=_own_need(vm)
        )
        return Call(kind=CallKind.VALIDATE, request=self._route_request(request, vm, options, VALIDATE_PIPELINE))

    def _search(
        self, vm: VmView, size: ResolvedSize, *, intent: Intent, ignore: Sequence[str], req: str, greq: str
    ) -> PlacementRequest:
        request = msgspec.structs.replace(
            self._base_request(vm, greq=greq, req=req), intent=intent, ignore_hosts=tuple(ignore)
        )
        request = msgspec.structs.replace(request, places=self.lost_places_of(vm))
        if self.profile == "dedicated":
            return msgspec.structs.replace(request, need=_own_need(vm))
        return msgspec.structs.replace(
            request,
            need=Amounts(cpu=size.cpu_milli, memory=size.memory_bytes),
            flavor_name=size.flavor_name,
            hints={**request.hints, GROUP_HINT: resource_group(vm, size)},
        )

    def _base_request(self, vm: VmView, *, greq: str, req: str) -> PlacementRequest:
        return PlacementRequest(
            resource_id=vm.id,
            project=vm.project,
            zone=vm.zone,
            num_instances=1,
            flavor_name=vm.flavor,
            extra_specs=self.extra_specs(vm),
            force_hosts=forced_hosts(vm),
            hints={DOMAIN_NAME_HINT: domain} if (domain := self.domain_of(vm.project)) else {},
            request_id=req,
            global_request_id=greq,
            functions=vm.functions,
        )

    def _route_request(
        self, request: PlacementRequest, vm: VmView, options: PlacementOptions, dedicated: str
    ) -> PlacementRequest:
        if self.profile == "dedicated":
            return msgspec.structs.replace(request, pipeline=dedicated)
        kind = request.extra_specs[HYPERVISOR_TYPE]
        return msgspec.structs.replace(
            request,
            pipeline=pipeline_for(vm),
            options=options,
            image_properties=image_properties(kind),
        )

    def extra_specs(self, vm: VmView) -> dict[str, str]:
        """The VM's own extra specs; a missing hypervisor type is filled in as ``QEMU``."""
        if HYPERVISOR_TYPE in vm.extra_specs:
            return dict(vm.extra_specs)
        return {**vm.extra_specs, HYPERVISOR_TYPE: "QEMU"}


def forced_hosts(vm: VmView) -> tuple[str, ...] | None:
    """The limit of hosts of a VM as requests say it; ``None`` where it has none."""
    return vm.host_limit or None


def pipeline_for(vm: VmView) -> str:
    """The pipeline that places VMs like this one."""
    return HANA_PIPELINE if vm.extra_specs.get(HANA_SPEC, "").lower() == "required" else GENERAL_PIPELINE


class NoCandidates(Refused):
    """No host is left to ask placement about, so that nobody could answer anything but: none."""


def write_candidates(call: Call, hosts: Iterable[str]) -> Call:
    """The call with its candidates written out, as it travels; ``NoCandidates`` where no host is left."""
    request = call.request
    named = request.hosts
    if named is None:
        ignored = frozenset(request.ignore_hosts)
        named = tuple(host for host in sorted(hosts) if host not in ignored)
    if not named:
        raise NoCandidates(
            f"there is no host besides {', '.join(request.ignore_hosts) or 'none'}",
            remedy="a slot needs a second host; add one",
        )
    return Call(kind=call.kind, request=msgspec.structs.replace(request, hosts=named))


def placement_class(
    vm: VmView, size: ResolvedSize, *, with_project: bool, domain: str = "", places: tuple[str, ...] = ()
) -> str:
    """A key that VMs share if every search about them has the same answer (their own hosts aside).

    The project counts only where some host is pinned to projects (``pins_projects``). ``domain``: of the VM, where
    hosts are set aside for it. ``places``: of storage that it needs and that some host does not reach.
    """
    parts = (
        size.flavor_name,
        size.cpu_milli,
        size.memory_bytes,
        vm.zone,
        vm.project if with_project else "",
        resource_group(vm, size),
        vm.extra_specs,
    )
    limits = (
        *((vm.host_limit,) if vm.host_limit else ()),
        *((f"domain {domain}",) if domain else ()),
        *((places,) if places else ()),
        *(((vm.id, vm.functions),) if vm.functions else ()),
    )
    return encode_canonical((*parts, *limits)).decode()


def places_lost(hosts: Iterable[Hypervisor]) -> tuple[str, ...]:
    """All places of storage that any host does not reach."""
    return tuple(sorted({place for host in hosts for place in lost_places(host)}))


def pins_projects(hosts: Iterable[Hypervisor]) -> bool:
    """Whether any host takes VMs of certain projects only."""
    return any(
        host.spec.allowed_projects
        or any(key.startswith(TENANT_KEY) for aggregate in host.status.aggregates for key in aggregate.metadata)
        for host in hosts
    )


def common_host(vms: Collection[VmView]) -> tuple[str, ...]:
    """The one host of all these VMs, to be ignored in their search; nothing where they have several."""
    hosts = {vm.host for vm in vms}
    return tuple(hosts) if len(hosts) == 1 else ()


def _own_need(vm: VmView) -> Amounts:
    return Amounts(cpu=vm.cpu_milli, memory=vm.memory_bytes)
