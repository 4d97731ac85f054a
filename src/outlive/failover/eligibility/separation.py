"""What is asked for beyond the rules: slots in domains of their own, and what server groups ask of them, literally.

Three wishes (docs/reference/failover.md#separation). With ``keepApart`` a VM's own host and its slots are all in
different domains. Of an anti-affinity group no member has a slot where a peer runs or has a slot. Of an affinity group
all slots that are ready are on no more hosts than the member with the largest need has slots. They bind new
memberships; those that are there already are only told of. Module ``planning.separating`` is the fast form.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from outlive.failover.model import SlotView, VmView
from outlive.failover.portions import Portions, portioned, whole
from outlive.failover.topology import Topology

AFFINITY = "affinity"
ANTI_AFFINITY = "anti-affinity"
POLICIES = (AFFINITY, ANTI_AFFINITY)
"""The policies of server groups that bind slots; others are wishes to placement alone."""


class ServerGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """VMs that say the same group and the same policy."""

    name: str
    policy: str
    members: dict[str, str]
    """VM → where it runs."""
    need: int = 0
    """The most slots that any member needs; 0: not known, which binds no affinity."""


class Separation(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A membership that is not as far from others, or as near to them, as asked."""

    vm: str
    slot: str
    why: str
    """``domain`` or ``server-group``."""
    host: str = ""
    """Where the slot is."""
    others: tuple[str, ...] = ()
    """Other VMs that are involved, by id."""
    detail: str = ""


def binding_group(vm: VmView) -> tuple[str, str] | None:
    """(group, policy) of a VM whose group binds its slots; who says another policy is of another group."""
    return (vm.server_group, vm.group_policy) if vm.server_group and vm.group_policy in POLICIES else None


def groups_of(
    vms: Iterable[VmView], required: Mapping[str, int], among: Collection[str] | None = None
) -> tuple[ServerGroup, ...]:
    """The groups that bind slots, of two members or more, by name. ``required``: VM → slots that it needs.

    ``among``: only the groups of these VMs.
    """
    views = vms if isinstance(vms, Sequence) else tuple(vms)
    return whole(grouping(views, required, among))


def grouping(
    vms: Sequence[VmView], required: Mapping[str, int], among: Collection[str] | None = None
) -> Portions[tuple[ServerGroup, ...]]:
    """``groups_of`` in portions."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    wanted: set[tuple[str, str]] = set()
    for portion in portioned(vms):
        for vm in portion:
            if vm.server_group and (key := binding_group(vm)) is not None:
                found.setdefault(key, {})[vm.id] = vm.host
                if among is None or vm.id in among:
                    wanted.add(key)
        yield
    return tuple(
        ServerGroup(
            name=name,
            policy=policy,
            members=dict(sorted(members.items())),
            need=max(required.get(vm, 0) for vm in members),
        )
        for (name, policy), members in sorted(found.items())
        if len(members) > 1 and (name, policy) in wanted
    )


def separations(
    vms: Iterable[VmView], slots: Sequence[SlotView], topology: Topology, required: Mapping[str, int]
) -> list[Separation]:
    """The memberships that are not as asked, by VM and slot, each once for each reason.

    Where two of a VM's slots are too near to each other, the later one by name is told. Without ``required`` affinity
    is not judged, because it is not known how many hosts a group may use.
    """
    views = {vm.id: vm for vm in vms}
    groups = groups_of(tuple(views.values()), required) if topology.server_groups else ()
    if not groups and not topology.apart:
        return []
    concerned = views.keys() if topology.apart else {vm for group in groups for vm in group.members}
    mine: dict[str, list[SlotView]] = {}
    for slot in sorted(slots, key=lambda one: one.name):
        for member in slot.members:
            if member in concerned:
                mine.setdefault(member, []).append(slot)
    found = list(_in_one_domain(views, mine, topology)) if topology.apart else []
    for group in groups:
        found += _too_near(group, mine) if group.policy == ANTI_AFFINITY else _too_far(group, mine)
    return sorted(found, key=lambda one: (one.vm, one.slot, one.why, one.detail))


def barred(
    vm: VmView, host: str, slots: Sequence[SlotView], topology: Topology, groups: Iterable[ServerGroup] = ()
) -> str:
    """Why the VM may have no further slot on this host, as far as separation goes; empty where it may.

    ``groups``: at least those that the VM is in.
    """
    mine = [slot.host for slot in slots if vm.id in slot.members]
    for domain, values in topology.apart.items():
        value = values.get(host)
        if value is not None:
            near = next((other for other in (vm.host, *mine) if values.get(other) == value), None)
            if near is not None:
                return f"{host} is in {domain} {value}, like {near}, {_what_is_there(near, vm)}"
    if topology.server_groups:
        for group in groups:
            if vm.id in group.members:
                why = _barred_by(group, vm, host, slots)
                if why:
                    return why
    return ""


def _barred_by(group: ServerGroup, vm: VmView, host: str, slots: Sequence[SlotView]) -> str:
    theirs = {slot.host: peer for slot in slots for peer in slot.members if peer in group.members and peer != vm.id}
    if group.policy == ANTI_AFFINITY:
        runs = next((peer for peer, at in group.members.items() if peer != vm.id and at == host), None)
        if runs is not None:
            return f"{host} runs {runs}, of the same anti-affinity group {group.name}"
        if host in theirs:
            return f"{host} has a slot of {theirs[host]}, of the same anti-affinity group {group.name}"
        return ""
    used = {
        slot.host for slot in slots if slot.ready is not False and not slot.members.keys().isdisjoint(group.members)
    }
    if group.need and len(used) >= group.need and host not in used:
        return f"{host} is none of the {len(used)} hosts with slots of affinity group {group.name}"
    return ""


def _what_is_there(host: str, vm: VmView) -> str:
    return "where the VM runs" if host == vm.host else "where it has a slot"


def _in_one_domain(
    views: Mapping[str, VmView], mine: Mapping[str, Sequence[SlotView]], topology: Topology
) -> Iterator[Separation]:
    for vm, slots in mine.items():
        for domain, values in topology.apart.items():
            seen: dict[str, str] = {}
            own = values.get(views[vm].host)
            if own is not None:
                seen[own] = f"where the VM runs on {views[vm].host}"
            for slot in slots:
                value = values.get(slot.host)
                if value is None:
                    continue
                if value in seen:
                    detail = f"slot {slot.name} of VM {vm} on {slot.host} is in {domain} {value}, {seen[value]}"
                    yield Separation(vm=vm, slot=slot.name, why="domain", host=slot.host, detail=detail)
                seen.setdefault(value, f"like its slot {slot.name} on {slot.host}")


def _too_near(group: ServerGroup, mine: Mapping[str, Sequence[SlotView]]) -> Iterator[Separation]:
    """Of an anti-affinity group: slots where a peer runs, or has a slot."""
    runs: dict[str, list[str]] = {}
    holds: dict[str, list[str]] = {}
    for member, at in group.members.items():
        runs.setdefault(at, []).append(member)
        for host in sorted({slot.host for slot in mine.get(member, ())}):
            holds.setdefault(host, []).append(member)
    for member in group.members:
        for slot in mine.get(member, ()):
            near = [peer for peer in runs.get(slot.host, ()) if peer != member]
            also = [peer for peer in holds[slot.host] if peer != member]
            what = [
                f"{' and '.join(peers)} of its anti-affinity group {word}"
                for peers, word in ((near, "runs"), (also, "has a slot"))
                if peers
            ]
            if what:
                yield Separation(
                    vm=member,
                    slot=slot.name,
                    why="server-group",
                    host=slot.host,
                    others=tuple(sorted({*near, *also})),
                    detail=f"slot {slot.name} of VM {member} is on {slot.host}, where {', and '.join(what)}",
                )


def _too_far(group: ServerGroup, mine: Mapping[str, Sequence[SlotView]]) -> Iterator[Separation]:
    """Of an affinity group: slots on hosts beyond as many as the largest need, those that fewest members use."""
    users: dict[str, set[str]] = {}
    for member in group.members:
        for slot in mine.get(member, ()):
            if slot.ready is not False:
                users.setdefault(slot.host, set()).add(member)
    if not group.need or len(users) <= group.need:
        return
    kept = set(sorted(users, key=lambda host: (-len(users[host]), host))[: group.need])
    for member in group.members:
        for slot in mine.get(member, ()):
            if slot.ready is not False and slot.host not in kept:
                yield Separation(
                    vm=member,
                    slot=slot.name,
                    why="server-group",
                    host=slot.host,
                    others=tuple(vm for vm in group.members if vm != member),
                    detail=f"slot {slot.name} of VM {member} is on {slot.host}; its affinity group has slots on "
                    f"{len(users)} hosts and needs {group.need}, so that its VMs would not land together",
                )
