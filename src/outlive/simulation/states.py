"""What a story may look at: the facts of VMs, hosts and slots, as they are stored and as they really are.

The same words stand in ``expect.yaml`` (what must hold at a moment) and in ``when:`` of a timeline (what must be seen
before an act). ``runs`` is the truth of the simulated machines; everything else is what the store says, read past all
faults. A wanted value is compared as it is, except: ``~text`` must be contained, ``>= 3`` and ``<= 3`` compare numbers,
a single word stands for a list with one entry, and null for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec

from outlive.resources import (
    FAILOVER,
    Coverage,
    Fault,
    Hypervisor,
    Membership,
    Reservation,
    VirtualMachine,
)
from outlive.resources.documents import Problems
from outlive.resources.vms import RecoveryPhase
from outlive.simulation.stores import WorldStore

SHOWN_CHARACTERS: Final = 80
"""How much of a wrong value a complaint shows."""
_COMPARED: Final = re.compile(r"(>=|<=)\s*(-?\d+(?:\.\d+)?)\s*\Z")

VM_FACTS: Final = {
    "on": "the host that it is assigned to",
    "runs": "the hosts on which its domain really runs",
    "phase": "its phase",
    "reason": "the reason of its phase",
    "promised": "whether it was recovered into a slot that was promised to it",
    "recovery": "the phase of its recovery",
    "held": "why its recovery does not go on",
    "remedy": "what to do about that",
    "origin": "the host that it was recovered from",
    "rejected": "the hosts that rejected it",
    "waitsFor": "the VMs that it waits for before it starts",
    "without": "the VMs that it started without having seen them running",
    "order": "what its host says about that",
    "proof": "the kinds of proof of the holders that recovery dropped",
    "home": "the host that it goes back to",
    "holders": "the hosts that hold it",
    "seen": "what its holders say of its domain",
    "migration": "the phase of its move",
    "exists": "whether it is there",
}
MEMBERSHIP_FACTS: Final = {
    "state": "Held, Revoked or Released",
    "epoch": "its incarnation",
    "deadThrough": "the highest epoch that is proven dead",
    "proof": "the kind of that proof",
    "fence": "the phase of its fence",
    "by": "who fences",
    "attempt": "how many power commands were begun",
    "reason": "why it was condemned, or why the fence does not go on",
    "armed": "whether its guard is armed",
    "cut": "whether it is cut off",
    "distrusted": "kinds of proof that count no more",
    "exists": "whether it is there",
}
HOST_FACTS: Final = {
    "lost": "whether it counts as lost",
    "domainState": "whether it takes VMs",
    "instances": "how many VMs it reports",
    "rehearsed": "the result of the last rehearsal",
    "spared": "how often it would have been condemned but for maintenance",
    "degrading": "whether it degrades",
    "causes": "what says that it degrades",
    "leaving": "whether its VMs leave because it degrades: waits, leaves or stays",
    "staysBecause": "why they do not",
}
COVERAGE_FACTS: Final = {
    "covered": "whether it has its slots",
    "required": "how many it needs",
    "slots": "how many it has",
    "reason": "why it is not covered",
}
FAULT_FACTS: Final = {
    "exists": "whether it was raised",
    "ended": "whether it is over",
    "message": "what it says",
    "remedy": "what to do",
}
FLEET_FACTS: Final = {
    "running": "how many VMs really run, each once",
    "hostsInUse": "on how many hosts VMs really run",
    "covered": "how many VMs that need slots have them",
    "uncovered": "how many VMs that need slots lack some",
    "recovered": "how many VMs have been recovered",
    "held": "how many VMs wait with a reason",
    "slots": "how many slots there are",
    "consumed": "how many slots are taken by a recovered VM",
    "faults": "the codes of faults that are not over",
}
SUBJECTS: Final[Mapping[str, Mapping[str, str]]] = {
    "vm": VM_FACTS,
    "membership": MEMBERSHIP_FACTS,
    "host": HOST_FACTS,
    "coverage": COVERAGE_FACTS,
    "fault": FAULT_FACTS,
}
"""What may be asked of one named thing. ``fault`` is named ``<code>.<subject>``."""
FLEET: Final = "fleet"
"""The subject without a name: everything together."""


class States(msgspec.Struct, frozen=True, kw_only=True):
    """Wanted values: subject → name → fact → value. The fleet has the empty name."""

    wanted: dict[str, dict[str, dict[str, Any]]] = {}

    def names(self, subject: str) -> tuple[str, ...]:
        """Names that are asked for, of one subject."""
        return tuple(self.wanted.get(subject, {}))


class Seen(Protocol):
    """The part of a world that is looked at."""

    @property
    def store(self) -> WorldStore:
        """The store itself, past all faults."""
        ...

    def running(self, vm: str) -> tuple[str, ...]:
        """Hosts on which a domain of the VM really runs."""
        ...


def read_states(value: Any, place: str, problems: Problems) -> States:
    """Wanted states as they are written; what is wrong goes to ``problems``."""
    if not isinstance(value, dict) or not value:
        problems.add(place, f"is {shown(value)}", "write what must be seen, such as vm: {vm-1: {on: kvm-2}}")
        return States()
    wanted: dict[str, dict[str, dict[str, Any]]] = {}
    for raw, things in value.items():
        subject = str(raw)
        if subject == FLEET:
            wanted[FLEET] = {"": _facts(FLEET_FACTS, things, f"{place}: {FLEET}", problems)}
        elif subject not in SUBJECTS:
            known = ", ".join((*SUBJECTS, FLEET))
            problems.add(place, f"{subject!r} cannot be looked at", f"there are {known}")
        elif not isinstance(things, dict):
            problems.add(f"{place}: {subject}", f"is {shown(things)}", f"write {subject}: {{NAME: {{FACT: value}}}}")
        else:
            wanted[subject] = {
                str(name): _facts(SUBJECTS[subject], facts, f"{place}: {subject} {name}", problems)
                for name, facts in things.items()
            }
    return States(wanted=wanted)


def _facts(known: Mapping[str, str], value: Any, place: str, problems: Problems) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        problems.add(place, f"is {shown(value)}", f"write facts: {', '.join(known)}")
        return {}
    facts: dict[str, Any] = {}
    for raw, wanted in value.items():
        # YAML 1.1 reads a bare on as true.
        fact = "on" if raw is True else str(raw)
        if fact not in known:
            problems.add(place, f"{fact!r} is no fact of it", f"there are {', '.join(known)}")
        facts[fact] = wanted
    return facts


def differences(world: Seen, states: States) -> list[str]:
    """What is not as wanted, one line each."""
    found: list[str] = []
    for subject, things in states.wanted.items():
        for name, wanted in things.items():
            facts = _GATHER[subject](world, name)
            found += [
                f"{f'{subject} {name}'.strip()}: {fact} is {_told(facts.get(fact))}, not {_told(value)}"
                for fact, value in wanted.items()
                if not matches(value, facts.get(fact))
            ]
    return found


def matches(wanted: Any, found: Any) -> bool:
    """Whether what was found is what was wanted (see the module)."""
    if wanted is None:
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


def _told(value: Any) -> str:
    if isinstance(value, tuple | list) and value:
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "nothing" if value is None or value in ("", (), []) else str(value)


def shown(value: Any) -> str:
    """A wrong value as a complaint shows it."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"


def vm_facts(world: Seen, name: str) -> dict[str, Any]:
    """All facts of a VM."""
    vm = world.store.look(VirtualMachine, name)
    if vm is None:
        return {"exists": False, "runs": world.running(name)}
    status, recovery = vm.status, vm.status.recovery
    facts: dict[str, Any] = {
        "exists": True,
        "on": status.assigned.hypervisor if status.assigned is not None else "",
        "runs": world.running(name),
        "phase": status.phase,
        "reason": f"{status.reason}: {status.message}" if status.message else status.reason,
        "home": status.home,
        "holders": tuple(one.hypervisor for one in status.holders),
        "seen": tuple(one.seen for one in status.holders),
        "migration": status.migration.phase if status.migration is not None else "",
    }
    if status.start_order is not None:
        facts |= {
            "waitsFor": status.start_order.waits_for,
            "without": status.start_order.without,
            "order": status.start_order.detail,
        }
    if recovery is not None:
        facts |= {
            "promised": recovery.promised,
            "recovery": recovery.phase,
            "held": f"{recovery.reason}: {recovery.message}" if recovery.reason else "",
            "remedy": recovery.remedy,
            "origin": recovery.origin,
            "rejected": tuple(one.hypervisor for one in recovery.rejected),
            "proof": tuple(sorted({one.kind for one in recovery.proofs})),
        }
    return facts


def _membership_facts(world: Seen, name: str) -> dict[str, Any]:
    found = world.store.look(Membership, name)
    if found is None:
        return {"exists": False}
    record = found.record
    return {
        "exists": True,
        "state": record.state,
        "epoch": record.epoch,
        "deadThrough": record.dead_through,
        "proof": record.proof.kind if record.proof is not None else "",
        "fence": record.fence.phase,
        "by": record.fence.by,
        "attempt": record.fence.attempt,
        "reason": record.fence.unproven_why if record.fence.phase == "unconfirmed" else record.fence.reason,
        "armed": record.guard.armed,
        "cut": bool(record.cut.scope),
        "distrusted": record.distrusted,
    }


def _host_facts(world: Seen, name: str) -> dict[str, Any]:
    found = world.store.look(Hypervisor, name)
    if found is None:
        return {}
    status = found.status
    return {
        "lost": status.lost != "",
        "domainState": status.domain_state,
        "instances": len(status.instances),
        "rehearsed": status.rehearsed,
        "spared": len(status.spared),
        "degrading": status.degrading is not None,
        "causes": status.degrading.causes if status.degrading is not None else (),
        "leaving": status.degrading.leaving if status.degrading is not None else "",
        "staysBecause": status.degrading.why if status.degrading is not None else "",
    }


def _coverage_facts(world: Seen, name: str) -> dict[str, Any]:
    found = world.store.look(Coverage, name)
    if found is None:
        return {}
    status = found.status
    return {
        "covered": status.covered,
        "required": status.required,
        "slots": len(status.slots),
        "reason": status.reason,
    }


def _fault_facts(world: Seen, name: str) -> dict[str, Any]:
    fault = world.store.look(Fault, name)
    if fault is None:
        return {"exists": False}
    return {"exists": True, "ended": fault.ended, "message": fault.message, "remedy": fault.remedy}


def fleet_facts(world: Seen, name: str = "") -> dict[str, Any]:
    """All facts of everything together; ``name`` is empty."""
    vms = world.store.all_of(VirtualMachine)
    coverages = [one.status for one in world.store.all_of(Coverage)]
    slots = [one for one in world.store.all_of(Reservation) if one.spec.type == FAILOVER]
    required = [one for one in coverages if one.required > 0]
    phases = [vm.status.recovery.phase for vm in vms if vm.status.recovery is not None]
    codes = {one.code for one in world.store.all_of(Fault) if not one.ended}
    return {
        "running": sum(len(world.running(vm.name)) == 1 for vm in vms),
        "hostsInUse": len({host for vm in vms for host in world.running(vm.name)}),
        "covered": sum(one.covered for one in required),
        "uncovered": sum(not one.covered for one in required),
        "recovered": phases.count(RecoveryPhase.RECOVERED),
        "held": phases.count(RecoveryPhase.HELD),
        "slots": len(slots),
        "consumed": sum(one.status.consumer is not None for one in slots),
        "faults": tuple(sorted(codes)),
    }


_GATHER: Final[Mapping[str, Callable[[Seen, str], dict[str, Any]]]] = {
    "vm": vm_facts,
    "membership": _membership_facts,
    "host": _host_facts,
    "coverage": _coverage_facts,
    "fault": _fault_facts,
    FLEET: fleet_facts,
}


def standing_out(world: Seen) -> dict[str, Any]:
    """States at this moment that a reader of the story wants to know: what is not as it was when all was well."""
    fleet = fleet_facts(world)
    found: dict[str, Any] = {FLEET: {key: fleet[key] for key in ("running", "uncovered")}}
    members = {one.name: _membership_facts(world, one.name) for one in world.store.all_of(Membership)}
    odd = {name: facts for name, facts in members.items() if facts["state"] != "Held" or facts["epoch"] > 1}
    if odd:
        keys = ("state", "epoch", "deadThrough", "proof", "fence")
        found["membership"] = {name: {key: facts[key] or None for key in keys} for name, facts in odd.items()}
    moved = [vm for vm in world.store.all_of(VirtualMachine) if vm.status.recovery is not None]
    if moved:
        facts_of = {vm.name: vm_facts(world, vm.name) for vm in moved}
        found["vm"] = {
            name: {"runs": list(facts["runs"]), "recovery": facts["recovery"], "promised": facts["promised"]}
            for name, facts in facts_of.items()
        }
    return found
