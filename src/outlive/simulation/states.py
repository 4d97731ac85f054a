"""What a story may look at: the facts of VMs, hosts and slots, as they are stored and as they really are.

The same words stand in ``expect.yaml`` (what must hold at a moment) and in ``when:`` of a timeline (what must be seen
before an act). ``runs`` is the truth of the simulated machines; everything else is what the store says, read past all
faults. A wanted value is compared as it is, except: ``~text`` must be contained, ``>= 3`` and ``<= 3`` compare numbers,
a single word stands for a list with one entry, and null for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec

from outlive.commitments import commitment_name
from outlive.network import PORTS, external_ids, vm_in
from outlive.resources import (
    FAILOVER,
    CommitmentChange,
    CommittedResource,
    Coverage,
    DhcpLease,
    Event,
    Fault,
    Hypervisor,
    Membership,
    Problems,
    RecoveryPhase,
    Reservation,
    Resource,
    VirtualMachine,
    VirtualMachinePort,
    find_condition,
)
from outlive.resources.reasons import StepReason
from outlive.simulation.spec import FromFile

if TYPE_CHECKING:
    from outlive.simulation.world import World

_COMPARED: Final = re.compile(r"(>=|<=)\s*(-?\d+(?:\.\d+)?)\s*\Z")

Fact = Callable[[Any], Any]


class Subject(NamedTuple):
    """What may be asked of one named thing, besides whether it ``exists``: fact → how it is read from its resource."""

    kind: type[Resource]
    facts: Mapping[str, Fact]


def _path_fact(path: str) -> Fact:
    """What stands there; ``None`` where a part on the way is absent."""

    def follow_path(found: Any) -> Any:
        for part in path.split("."):
            found = getattr(found, part) if found is not None else None
        return found

    return follow_path


def _join_reason(reason: str, message: str) -> str:
    return f"{reason}: {message}" if message else reason


def _condition_text(port: VirtualMachinePort, kind: str) -> str:
    """``True``, or why not."""
    found = find_condition(port.status.conditions, kind)
    return (
        "" if found is None else found.status if found.status == "True" else _join_reason(found.reason, found.message)
    )


SUBJECTS: Final[Mapping[str, Subject]] = {
    "vm": Subject(
        VirtualMachine,
        {
            "on": _path_fact("status.assigned.hypervisor"),
            "phase": _path_fact("status.phase"),
            "reason": lambda vm: _join_reason(vm.status.reason, vm.status.message),
            "answer": lambda vm: (
                _join_reason(vm.status.answered.code, vm.status.answered.message)
                if vm.status.answered is not None
                else None
            ),
            "home": _path_fact("status.home"),
            "answered": _path_fact("status.answered.code"),
            "holders": lambda vm: tuple(one.hypervisor for one in vm.status.holders),
            "seen": lambda vm: tuple(one.seen for one in vm.status.holders),
            "migration": _path_fact("status.migration.phase"),
            "waitsFor": _path_fact("status.start_order.waits_for"),
            "without": _path_fact("status.start_order.without"),
            "order": _path_fact("status.start_order.detail"),
            "promised": _path_fact("status.recovery.promised"),
            "recovery": _path_fact("status.recovery.phase"),
            "held": lambda vm: (
                f"{vm.status.recovery.reason}: {vm.status.recovery.message}"
                if vm.status.recovery is not None and vm.status.recovery.reason
                else None
            ),
            "against": lambda vm: tuple(
                one.message
                for one in _path_fact("status.recovery.steps")(vm) or ()
                if one.what == StepReason.AGAINST_RULE
            ),
            "remedy": _path_fact("status.recovery.remedy"),
            "origin": _path_fact("status.recovery.origin"),
            "rejected": lambda vm: tuple(one.hypervisor for one in _path_fact("status.recovery.rejected")(vm) or ()),
            "proof": lambda vm: tuple(sorted({one.kind for one in _path_fact("status.recovery.proofs")(vm) or ()})),
        },
    ),
    "port": Subject(
        VirtualMachinePort,
        {
            "activeOn": _path_fact("status.active_on"),
            "addresses": _path_fact("status.addresses"),
            "programmed": lambda port: _condition_text(port, "Programmed"),
            "bound": lambda port: _condition_text(port, "Bound"),
            "prepared": _path_fact("status.migration.prepared"),
            "why": _path_fact("status.migration.message"),
        },
    ),
    "membership": Subject(
        Membership,
        {
            "state": _path_fact("record.state"),
            "epoch": _path_fact("record.epoch"),
            "deadThrough": _path_fact("record.dead_through"),
            "proof": _path_fact("record.proof.kind"),
            "fence": _path_fact("record.fence.phase"),
            "by": _path_fact("record.fence.by"),
            "attempt": _path_fact("record.fence.attempt"),
            "reason": lambda member: (
                member.record.fence.unproven_why
                if member.record.fence.phase == "unconfirmed"
                else member.record.fence.reason
            ),
            "armed": _path_fact("record.guard.armed"),
            "cut": lambda member: bool(member.record.cut.scope),
            "distrusted": _path_fact("record.distrusted"),
        },
    ),
    "host": Subject(
        Hypervisor,
        {
            "lost": lambda host: host.status.lost != "",
            "domainState": _path_fact("status.domain_state"),
            "instances": lambda host: len(host.status.instances),
            "rehearsed": _path_fact("status.rehearsed"),
            "quarantined": lambda host: host.status.quarantine is not None,
            "spared": lambda host: len(host.status.spared),
            "degrading": lambda host: host.status.degrading is not None,
            "causes": _path_fact("status.degrading.causes"),
            "leaving": _path_fact("status.degrading.leaving"),
            "staysBecause": _path_fact("status.degrading.why"),
            "storageLost": _path_fact("status.storage_lost.vms"),
            "storageThen": _path_fact("status.storage_lost.then"),
            "functions": lambda host: tuple(
                f"{one.name} used by {one.used_by or 'nobody'}"
                + (f", for {one.reserved_by}" if one.reserved_by else "")
                for one in host.status.virtual_functions
            ),
        },
    ),
    "coverage": Subject(
        Coverage,
        {
            "covered": _path_fact("status.covered"),
            "required": _path_fact("status.required"),
            "slots": lambda coverage: len(coverage.status.slots),
            "reason": _path_fact("status.reason"),
        },
    ),
    "commitment": Subject(
        CommittedResource,
        {
            "project": _path_fact("spec.project_id"),
            "state": _path_fact("spec.state"),
            "amount": _path_fact("spec.amount"),
            "ready": lambda one: (
                _join_reason(ready.reason, ready.message)
                if (ready := find_condition(one.status.conditions, "Ready")) is not None
                else None
            ),
            "vms": _path_fact("status.assigned_instances"),
        },
    ),
    "fault": Subject(
        Fault, {"ended": _path_fact("ended"), "message": _path_fact("message"), "remedy": _path_fact("remedy")}
    ),
}
"""What may be asked of one named thing. A VM also ``runs`` on hosts and ``answers`` there, and a commitment has
``slots`` on hosts, of which some are ``takenBy`` VMs; ``fault`` is named ``<code>.<subject>``, ``commitment`` by its
uuid, and ``port`` ``<vm>.<number>``."""
ADDRESS: Final = "address"
"""An address of hosts' own networks, such as a floating one; it is no object of the store."""
ADDRESS_FACTS: Final = ("on", "twiceMs", "absentMs")
"""Hosts that have it, and the longest times that it was on two of them, or on none after it had been on one."""
FLEET: Final = "fleet"
"""The subject without a name: everything together."""
FLEET_FACTS: Final = (
    *("running", "hostsInUse", "covered", "uncovered", "recovered", "held", "slots", "consumed", "faults", "events"),
    "portRows",
    "leases",
    *("batchesAccepted", "batchesRefused", "batchesUnanswered", "batchesDecided"),
)


def list_facts(subject: str) -> tuple[str, ...]:
    """What may be asked of a subject."""
    if subject == FLEET:
        return FLEET_FACTS
    if subject == ADDRESS:
        return ADDRESS_FACTS
    return (*SUBJECTS[subject].facts, "exists", *_REAL.get(subject, ()))


_REAL: Final[Mapping[str, tuple[str, ...]]] = {"vm": ("runs", "answers"), "commitment": ("slots", "takenBy")}
"""Facts that its own object does not have."""


Facts = Annotated[dict[str, Any], msgspec.Meta(min_length=1)]
"""Fact → its wanted value."""


class States(FromFile, frozen=True, kw_only=True):
    """Wanted values of named things, and of the fleet."""

    vm: dict[str, Facts] = {}
    port: dict[str, Facts] = {}
    commitment: dict[str, Facts] = {}
    membership: dict[str, Facts] = {}
    host: dict[str, Facts] = {}
    coverage: dict[str, Facts] = {}
    fault: dict[str, Facts] = {}
    address: dict[str, Facts] = {}
    fleet: Facts | None = None

    def list_subjects(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Subject, name and wanted values; the fleet has the empty name."""
        for subject in (*SUBJECTS, ADDRESS):
            yield from ((subject, name, facts) for name, facts in getattr(self, subject).items())
        if self.fleet is not None:
            yield FLEET, "", self.fleet


def check_facts(states: States, place: str, problems: Problems) -> None:
    """Every fact is one that can be looked at."""
    for subject, name, wanted in states.list_subjects():
        known = list_facts(subject)
        for fact in wanted:
            if fact not in known:
                where = f"{place}: {subject} {name}".rstrip()
                problems.add(where, f"{fact!r} is no fact of it", f"there are {', '.join(known)}")


def find_differences(world: World, states: States) -> list[str]:
    """What is not as wanted, one line each."""
    found: list[str] = []
    for subject, name, wanted in states.list_subjects():
        facts = facts_of(world, subject, name)
        found += [
            f"{f'{subject} {name}'.strip()}: {fact} is {show_value(facts.get(fact))}, not {show_value(value)}"
            for fact, value in wanted.items()
            if not is_match(value, facts.get(fact))
        ]
    return found


def is_match(wanted: Any, found: Any) -> bool:
    """Whether what was found is what was wanted (see the module)."""
    if wanted is None or wanted == "":
        return found in (None, "", (), 0, False)
    if isinstance(wanted, str):
        compared = _COMPARED.match(wanted)
        if compared is not None and isinstance(found, int | float):
            limit = float(compared[2])
            return found >= limit if compared[1] == ">=" else found <= limit
        if wanted.startswith("~"):
            return wanted[1:] in (" ".join(found) if isinstance(found, tuple) else str(found))
        if isinstance(found, tuple):
            return found == (wanted,)
    if isinstance(wanted, list):
        return isinstance(found, tuple) and sorted(map(str, wanted)) == sorted(found)
    return bool(wanted == found) and isinstance(wanted, bool) == isinstance(found, bool)


def show_value(value: Any) -> str:
    """As complaints say it."""
    if isinstance(value, tuple | list) and value:
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "nothing" if value is None or value in ("", (), []) else str(value)


def facts_of(world: World, subject: str, name: str) -> dict[str, Any]:
    """All facts of one thing, or of everything together; of what is not there only that."""
    if subject == FLEET:
        return fleet_facts(world)
    if subject == ADDRESS:
        presence = world.addresses.find_presence(name) if world.addresses is not None else None
        if presence is None:
            return dict.fromkeys(ADDRESS_FACTS)
        twice_ms, absent_ms = round(1000 * presence.longest_twice_s), round(1000 * presence.longest_absent_s)
        return {"on": presence.hosts, "twiceMs": twice_ms, "absentMs": absent_ms}
    kind, facts = SUBJECTS[subject]
    found = world.store.find(kind, commitment_name(name) if subject == "commitment" else name)
    known = {fact: look(found) for fact, look in facts.items()} if found is not None else {}
    known["exists"] = found is not None
    if subject == "vm":
        known["runs"] = world.running_hosts(name)
        known["answers"] = tuple(host for host in world.running_hosts(name) if world.truth.is_answering(host, name))
    elif subject == "commitment":
        known |= _slots_of(world, name)
    return known


def _slots_of(world: World, uuid: str) -> dict[str, Any]:
    """Hosts of its slots, and VMs in them."""
    found = [
        (one.status.host, details.allocations)
        for one in world.store.list_all(Reservation)
        if (details := one.spec.committed_resource_reservation) is not None and details.commitment_uuid == uuid
    ]
    return {
        "slots": tuple(sorted(host for host, _ in found)),
        "takenBy": tuple(sorted(vm for _, vms in found for vm in vms)),
    }


def fleet_facts(world: World) -> dict[str, Any]:
    """How many VMs really run, have their slots, were recovered or wait; slots, faults that are open, events."""
    vms = world.store.list_all(VirtualMachine)
    coverages = [one.status for one in world.store.list_all(Coverage)]
    slots = [one for one in world.store.list_all(Reservation) if one.spec.type == FAILOVER]
    required = [one for one in coverages if one.required > 0]
    phases = [vm.status.recovery.phase for vm in vms if vm.status.recovery is not None]
    ports = world.fabric.ovn.rows.get(PORTS, ()) if world.fabric is not None else ()
    codes = {one.code for one in world.store.list_all(Fault) if not one.ended}
    return {
        "running": sum(len(world.running_hosts(vm.name)) == 1 for vm in vms),
        "hostsInUse": len({host for vm in vms for host in world.running_hosts(vm.name)}),
        "covered": sum(one.covered for one in required),
        "uncovered": sum(not one.covered for one in required),
        "recovered": phases.count(RecoveryPhase.RECOVERED),
        "held": phases.count(RecoveryPhase.HELD),
        "slots": len(slots),
        "consumed": sum(one.status.consumer is not None for one in slots),
        "faults": tuple(sorted(codes)),
        "leases": len(world.store.list_all(DhcpLease)),
        "portRows": sum(bool(vm_in(external_ids(row))) for row in ports),
        "batchesAccepted": world.limes.answers["accepted"],
        "batchesRefused": world.limes.answers["refused"],
        "batchesUnanswered": world.limes.answers["unanswered"],
        "batchesDecided": sum(bool(one.steps) and not one.part_of for one in world.store.list_all(CommitmentChange)),
        "events": tuple(sorted({one.reason for one in world.store.list_all(Event)})),
    }


def find_unusual(world: World) -> dict[str, Any]:
    """States at this moment that a reader of the story wants to know: what is not as it was when all was well."""
    fleet = fleet_facts(world)
    found: dict[str, Any] = {FLEET: {key: fleet[key] for key in ("running", "uncovered")}}
    members = {one.name: facts_of(world, "membership", one.name) for one in world.store.list_all(Membership)}
    odd = {name: one for name, one in members.items() if one["state"] != "Held" or one["epoch"] > 1}
    if odd:
        keys = ("state", "epoch", "deadThrough", "proof", "fence")
        found["membership"] = {name: {key: one[key] or None for key in keys} for name, one in odd.items()}
    moved = [vm for vm in world.store.list_all(VirtualMachine) if vm.status.recovery is not None]
    if moved:
        facts = {vm.name: facts_of(world, "vm", vm.name) for vm in moved}
        found["vm"] = {
            name: {"runs": list(one["runs"]), "recovery": one["recovery"], "promised": one["promised"]}
            for name, one in facts.items()
        }
    return found
