"""Who is shown what: for each kind and role which objects, and how much of each; what no line names is refused.

``READERS`` is the table. An administrator is shown everything. The server asks it for every answer, and the simulation
for every read of a daemon, so that what a daemon needs and what its token shows are the same
(docs/reference/permissions.md#who-reads-what). What a role is not shown of an object stays as it is when that role
writes the object back (``restore_hidden``).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal
from xml.sax.saxutils import escape, quoteattr

import msgspec

from outlive.base import BadInput, Forbidden
from outlive.resources import (
    HOST_LABEL,
    Cluster,
    CommitmentChange,
    CommittedResource,
    Console,
    Coverage,
    DecisionRecord,
    Descheduling,
    DhcpLease,
    Election,
    Event,
    Fault,
    Flavor,
    FlavorGroup,
    FlavorGroupCapacity,
    HostLog,
    Hypervisor,
    HypervisorUsage,
    Knowledge,
    Membership,
    Notification,
    Pipeline,
    PlacementHistory,
    ProjectQuota,
    Reservation,
    Resource,
    Secret,
    StorageCluster,
    StorageDaemon,
    StoragePool,
    Token,
    UsageHistory,
    VirtualMachine,
    VirtualMachinePort,
    VirtualMachineSpec,
    VirtualNetwork,
)
from outlive.resources.codec import encode_canonical
from outlive.resources.definitions import attached_bridges, parse_xml
from outlive.resources.networks import bridges_in, is_interface_id, vm_and_index
from outlive.resources.vms import USER_DATA

Verb = Literal["get", "list", "watch"]
VERBS: Final[tuple[Verb, ...]] = ("get", "list", "watch")
ROLES: Final = ("viewer", "operator", "controller", "host", "coordinator")
"""The roles of the table; an administrator reads everything, the others nothing."""

_replace = msgspec.structs.replace
_View = Callable[[Any], Any]
"""An object as it is shown."""


class Reads(msgspec.Struct, frozen=True, kw_only=True):
    """What one role is shown of one kind."""

    text: str
    """The same for people."""
    view: _View | None = None
    """How it is shown; ``None``: whole."""
    mark: bytes = b""
    """Documents without it are shown whole."""
    own: bool = False
    """Only what belongs to the host that reads (``hosts_of``, ``OF_A_VM``); others are shown as ``rest`` says."""
    rest: _View | None = None
    rest_verbs: tuple[Verb, ...] = ()
    verbs: tuple[Verb, ...] = VERBS

    @property
    def everything(self) -> bool:
        """Whether every object is shown whole."""
        return self.view is None and not self.own

    def select_part(self, obj: Resource, verb: Verb, *, own: bool) -> Resource | None:
        """What is shown of the object, which belongs to the reader or not; ``None``: nothing."""
        if own or not self.own:
            return self.view(obj) if self.view is not None else obj
        return self.rest(obj) if self.rest is not None and verb in self.rest_verbs else None


# Views


_PASSWORD: Final = re.compile(
    r"""passwd(?:\s|\\{1,7}[nrt])*=(?:\s|\\{1,7}[nrt])*(\\{0,7}(?:["']|u002[27])).*?\1""", re.DOTALL
)
"""An attribute of a definition, also of one that is quoted in JSON."""
_UUID: Final = re.compile(r"<uuid>\s*[0-9A-Fa-f-]{32,36}\s*</uuid>")


def without_passwords(vm: VirtualMachine) -> VirtualMachine:
    """The VM without passwords of its screen, in its definition and in what annotations keep of that."""
    spec, meta = vm.spec, vm.metadata
    if "passwd" in spec.definition:
        vm = _replace(vm, spec=_replace(spec, definition=_PASSWORD.sub("", spec.definition)))
    if any("passwd" in text for text in meta.annotations.values()):
        annotations = {key: _PASSWORD.sub("", text) for key, text in meta.annotations.items()}
        vm = _replace(vm, metadata=_replace(meta, annotations=annotations))
    return vm


def shared_part(vm: VirtualMachine) -> VirtualMachine:
    """What a host has to know of VMs of other hosts: which disks, rules and order they have, and where they are.

    Nothing of what their users wrote, but the UUID of the definition: by that a host recognises a domain that somebody
    else started.
    """
    spec, uuid = vm.spec, _uuid_element(vm.spec.definition)
    holders = tuple(_replace(one, vnc=None) if one.vnc is not None else one for one in vm.status.holders)
    return _replace(
        vm,
        metadata=_replace(vm.metadata, annotations={}),
        spec=VirtualMachineSpec(
            definition=f"<domain>{uuid}</domain>" if uuid else "",
            server_group=spec.server_group,
            server_group_policy=spec.server_group_policy,
            affinity=spec.affinity,
            power_state=spec.power_state,
            disks=spec.disks,
            shared_disks=spec.shared_disks,
            ports=spec.ports,
            network_policy=spec.network_policy,
            start_after=spec.start_after,
        ),
        status=_replace(vm.status, holders=holders) if holders != vm.status.holders else vm.status,
    )


def part_for_coordinators(vm: VirtualMachine) -> VirtualMachine:
    """The same for a coordinator, with what the metadata server of the primary needs to know the guest of a VM on a
    managed network and to answer it: its bridges, its flavor and its user data. There is no such guest of a VM that is
    neither on a bridge that hosts make, nor has a port that is known by its MAC address, which such networks have.
    """
    shown, bridges = shared_part(vm), bridges_in(vm.spec.definition)
    if not bridges and all(is_interface_id(one) for one in vm.spec.ports):
        return shown
    kept = {key: text for key, text in vm.metadata.annotations.items() if key == USER_DATA}
    definition = shown.spec.definition
    if bridges and definition:
        with contextlib.suppress(BadInput):
            each = "".join(
                f'<interface type="bridge"><mac address={quoteattr(mac)}/><source bridge={quoteattr(on)}/></interface>'
                for mac, on in attached_bridges(vm.spec.definition)
                if on in bridges
            )
            definition = f"{definition.removesuffix('</domain>')}<devices>{each}</devices></domain>"
    return _replace(
        shown,
        metadata=_replace(shown.metadata, annotations=kept),
        spec=_replace(shown.spec, definition=definition, flavor=vm.spec.flavor),
    )


def _uuid_element(definition: str) -> str:
    """The definition's UUID as it is written there; a definition is parsed only where a search might mislead."""
    found = _UUID.findall(definition)
    if len(found) == 1 and "<!" not in definition:
        return str(found[0])
    try:
        element = parse_xml(definition).find("uuid") if found else None
    except BadInput:
        return ""
    return f"<uuid>{escape(element.text)}</uuid>" if element is not None and element.text else ""


def _without_controller(host: Hypervisor) -> Hypervisor:
    fencing = _replace(host.spec.fencing, driver="", address="", options={}, secret="", system_uuid="")
    return _replace(host, spec=_replace(host.spec, fencing=fencing))


def _without_owner(slot: Reservation) -> Reservation:
    """What a reservation holds and where; not for whom it was sold."""
    spec, sold, flight = slot.spec, slot.spec.committed_resource_reservation, slot.spec.in_flight_reservation
    if sold is not None:
        sold = _replace(sold, commitment_uuid="", project_id="", domain_id="", creator="")
    if flight is not None:
        flight = _replace(flight, user_id="", project_id="")
    return _replace(slot, spec=_replace(spec, committed_resource_reservation=sold, in_flight_reservation=flight))


def _without_text(fault: Fault) -> Fault:
    return _replace(fault, message="", remedy="")


def _without_value(secret: Secret) -> Secret:
    return _replace(secret, spec=_replace(secret.spec, sealed=""))


def _without_digest(token: Token) -> Token:
    return _replace(token, digest="", next_digest="", former_digest="")


# To which hosts objects belong


def _hosts_of_vm(vm: VirtualMachine) -> Collection[str]:
    """Also the host of the label: an assignment writes the label first, so that the host sees the VM come."""
    label = vm.metadata.labels.get(HOST_LABEL)
    hosts = vm.related_hosts()
    return hosts | {label} if label else hosts


def _hosts_of_fault(fault: Fault) -> Collection[str]:
    about = fault.subject.name if fault.subject.kind == "Hypervisor" else ""
    return {one for one in (about, fault.metadata.labels.get(HOST_LABEL)) if one}


_HOSTS: Final[Mapping[type[Resource], Callable[[Any], Collection[str]]]] = {
    Fault: _hosts_of_fault,
    HostLog: lambda log: (log.name,),
    Hypervisor: lambda host: (host.name,),
    VirtualMachine: _hosts_of_vm,
}
OF_A_VM: Final = (Console, Coverage, VirtualMachinePort)
"""Kinds of which an object belongs to the hosts of its VM, but for those that merely hold it."""


def vm_of_object(kind: type[Resource], name: str) -> str:
    """Name of the VM that an object of one of these kinds is of."""
    return vm_and_index(name)[0] if kind is VirtualMachinePort else name


def hosts_of(obj: Resource) -> tuple[str, ...]:
    """The hosts to which the object itself says that it belongs."""
    found = _HOSTS.get(type(obj))
    return tuple(host for host in found(obj) if host) if found is not None else ()


# The table


EVERYTHING: Final = Reads(text="all")
_OF_ITS_VMS: Final = Reads(text="those of its VMs, one by one", own=True, verbs=("get",))
_ITS_OWN: Final = Reads(text="its own", own=True)
_ITS_FAULTS: Final = Reads(
    text="those that it reports or that are about it; of others, one by one, which there are",
    own=True,
    rest=_without_text,
    rest_verbs=("get",),
)
_ITS_VMS: Final = Reads(
    text="its VMs; of others where they are, with disks, ports, rules and order, but not in a watch",
    own=True,
    rest=shared_part,
    rest_verbs=("get", "list"),
)
_VMS_OF_COORDINATOR: Final = _replace(
    _ITS_VMS,
    text="the same; of those on a network that hosts make also its bridge, flavor and user data",
    rest=part_for_coordinators,
)
_NO_PASSWORDS: Final = Reads(text="all, without passwords in definitions", view=without_passwords, mark=b"passwd")
_NO_OWNERS: Final = Reads(text="all, without project, user and commitment", view=_without_owner)
_NO_CONTROLLERS: Final = Reads(
    text="its own; others without their BMCs, and not in a watch",
    own=True,
    rest=_without_controller,
    rest_verbs=("get", "list"),
)
_NO_VALUES: Final = Reads(text="all, without values", view=_without_value)
_NO_DIGESTS: Final = Reads(text="all, without digests", view=_without_digest)
_ONE_BY_ONE: Final = Reads(text="all, one by one", verbs=("get",))

_Row = Mapping[str, Reads]
_OUTSIDE: Final[_Row] = {"viewer": EVERYTHING, "operator": EVERYTHING, "controller": EVERYTHING}
_COORDINATORS: Final[_Row] = {**_OUTSIDE, "coordinator": EVERYTHING}
_HOSTS_TOO: Final[_Row] = {**_COORDINATORS, "host": EVERYTHING}


def _host_row(host: Reads, coordinator: Reads | None = None) -> _Row:
    return {**_OUTSIDE, "host": host, "coordinator": coordinator or host}


READERS: Final[Mapping[type[Resource], _Row]] = {
    Cluster: _HOSTS_TOO,
    CommitmentChange: _OUTSIDE,
    CommittedResource: _OUTSIDE,
    Console: {"operator": EVERYTHING, "host": _OF_ITS_VMS, "coordinator": _OF_ITS_VMS},
    Coverage: _host_row(_OF_ITS_VMS),
    DecisionRecord: _OUTSIDE,
    Descheduling: _OUTSIDE,
    DhcpLease: _COORDINATORS,
    Election: _COORDINATORS,
    Event: _OUTSIDE,
    Fault: _host_row(_ITS_FAULTS, EVERYTHING),
    Flavor: _OUTSIDE,
    FlavorGroup: _OUTSIDE,
    FlavorGroupCapacity: _OUTSIDE,
    HostLog: _host_row(_ITS_OWN),
    Hypervisor: _host_row(_NO_CONTROLLERS, EVERYTHING),
    HypervisorUsage: _HOSTS_TOO,
    Knowledge: _OUTSIDE,
    Membership: _HOSTS_TOO,
    Notification: _OUTSIDE,
    Pipeline: _OUTSIDE,
    PlacementHistory: _OUTSIDE,
    ProjectQuota: _OUTSIDE,
    Reservation: _host_row(_NO_OWNERS),
    Secret: {"viewer": _NO_VALUES, "operator": EVERYTHING, "coordinator": _ONE_BY_ONE},
    StorageCluster: _COORDINATORS,
    StorageDaemon: _HOSTS_TOO,
    StoragePool: _COORDINATORS,
    Token: {"viewer": _NO_DIGESTS, "operator": _NO_DIGESTS},
    UsageHistory: _OUTSIDE,
    VirtualMachinePort: _host_row(_OF_ITS_VMS, EVERYTHING),
    VirtualNetwork: _HOSTS_TOO,
    VirtualMachine: {
        "viewer": _NO_PASSWORDS,
        "operator": _NO_PASSWORDS,
        "controller": _NO_PASSWORDS,
        "host": _ITS_VMS,
        "coordinator": _VMS_OF_COORDINATOR,
    },
}
"""Kind → role → what it is shown."""


def find_reads(role: str, kind: type[Resource], verb: Verb = "get") -> Reads | None:
    """What the role is shown of the kind in answer to the verb; ``None``: nothing."""
    if role == "admin":
        return EVERYTHING
    found = READERS.get(kind, {}).get(role)
    return found if found is not None and verb in found.verbs else None


# Writing back


def restore_hidden(current: Resource, seen: Resource, wanted: Resource, *, status: bool = False) -> Resource:
    """What a writer wants who was shown ``seen`` of ``current``: what it left as it was shown stays as it is.

    ``status``: only that half is written. ``Forbidden`` where it changes a text of which it was shown only a part.
    """
    names = [field.name for field in msgspec.structs.fields(type(current))]
    if current.has_status():
        names = ["status"] if status else [name for name in names if name != "status"]
    merged: Resource = _restore_fields(current, seen, wanted, {name: name for name in names})
    return merged


def _restore_fields(current: Any, seen: Any, wanted: Any, paths: Mapping[str, str]) -> Any:
    return _replace(
        wanted,
        **{
            name: _restore_value(getattr(current, name), getattr(seen, name), getattr(wanted, name), path)
            for name, path in paths.items()
        },
    )


def _make_hashable(entry: Any) -> Any:
    """The entry of a list, or the JSON of one that has a map in it."""
    try:
        hash(entry)
    except TypeError:
        return encode_canonical(entry)
    return entry


def _restore_value(current: Any, seen: Any, wanted: Any, path: str) -> Any:
    """The value to write."""
    if current is seen or current == seen:
        return wanted
    if wanted == seen:
        return current
    if isinstance(seen, msgspec.Struct) and type(current) is type(seen) is type(wanted):
        fields = msgspec.structs.fields(type(seen))
        return _restore_fields(current, seen, wanted, {one.name: f"{path}.{one.encode_name}" for one in fields})
    if isinstance(seen, dict) and isinstance(current, dict) and isinstance(wanted, dict):
        hidden = {key: value for key, value in current.items() if key not in seen}
        return hidden | {key: current[key] if seen.get(key) == value else value for key, value in wanted.items()}
    if isinstance(seen, tuple) and isinstance(current, tuple) and isinstance(wanted, tuple):
        places = {_make_hashable(one): number for number, one in reversed(list(enumerate(seen)))}
        return tuple(
            [current[number] if (number := places.get(_make_hashable(one), -1)) >= 0 else one for one in wanted]
        )
    if isinstance(seen, str) and seen:
        raise Forbidden(
            f"{path} holds what this token is not shown, and would lose it",
            place=path,
            remedy="leave it as it is, or use a token of the role admin",
        )
    return wanted
