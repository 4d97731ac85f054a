"""What an import has to say besides its counts: about VMs and hosts as they are once the plan is carried out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from outlive.inventory.check import Existing, Wanted
from outlive.inventory.places import after
from outlive.inventory.plan import ImportPlan
from outlive.inventory.records import is_active
from outlive.resources import ZONE_LABEL, Hypervisor, VirtualMachine
from outlive.resources.reasons import Reason
from outlive.resources.reasons.inventory import ImportNotice


def notices(wanted: Wanted, existing: Existing, plan: ImportPlan, levels: Collection[str]) -> Iterator[Reason]:
    """In a fixed order; ``levels``: the protection levels of the settings. Only about what the source lists."""
    all_hosts, all_vms = after(plan, existing)
    vms = [all_vms[name] for name in wanted.vms]
    hosts = [all_hosts[name] for name in wanted.hosts]
    taken = [name for name, record in wanted.vms.items() if not record.zone and all_vms[name].spec.zone]
    yield from _about(ImportNotice.VM_ZONE_FROM_HOST, "vms", taken)
    if any(vm.spec.zone for vm in vms):
        zoneless = [host.name for host in hosts if not host.metadata.labels.get(ZONE_LABEL)]
        yield from _about(ImportNotice.HOST_ZONE_UNKNOWN, "hosts", zoneless)
    too_large = [vm.name for vm in vms if _is_too_large(vm, all_hosts.get(_host(vm)))]
    yield from _about(ImportNotice.VM_LARGER_THAN_HOST, "vms", too_large)
    strangers = {vm.name: vm.spec.protection for vm in vms if vm.spec.protection not in ("", *levels)}
    named = tuple(sorted(set(strangers.values())))
    yield from _about(ImportNotice.LEVEL_UNKNOWN, "vms", strangers, levels=named)
    yield from _about(ImportNotice.HOST_DOWN, "hosts", [one.name for one in wanted.hosts.values() if one.down])
    yield from _about(ImportNotice.HOST_DISABLED, "hosts", [one.name for one in wanted.hosts.values() if one.disabled])
    running = [vm for vm in vms if is_active(vm.status.phase)]
    yield from _about(ImportNotice.VM_WITHOUT_HOST, "vms", [vm.name for vm in running if not _host(vm)])
    stopped = [vm.name for vm in vms if not is_active(vm.status.phase)]
    yield from _about(ImportNotice.VM_NOT_RUNNING, "vms", stopped)


def _about(code: ImportNotice, what: str, names: Iterable[str], **more: tuple[str, ...]) -> Iterator[Reason]:
    listed = tuple(names)
    if listed:
        yield Reason(code, {"count": len(listed), what: listed, **more})


def _host(vm: VirtualMachine) -> str:
    return vm.status.assigned.hypervisor if vm.status.assigned is not None else ""


def _is_too_large(vm: VirtualMachine, host: Hypervisor | None) -> bool:
    capacity = host.effective_capacity() if host is not None else None
    return capacity is not None and any(need > capacity.get(name, 0) for name, need in vm.spec.resources.items())
