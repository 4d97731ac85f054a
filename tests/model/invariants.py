"""What must hold in every state: looked at from outside, with eyes that no process of the model has."""

from __future__ import annotations

from tests.model.state import DISK, HOSTS, PORT, Doc, Domain, Host, Vm

MEANING: dict[str, str] = {
    "S1a": "two machines write one disk",
    "S1b": "one VM is on the network twice",
    "S2": "a run writes on whose entry somebody else took away",
    "proof": "an epoch is recorded as dead, and something of it runs or can still start",
    "monotone": "deadThrough, or an epoch, falls",
    "entry": "a domain writes without an entry that is not fenced",
    "writer": "a membership is changed by somebody who may not",
    "survivor": "a host is a member again with domains of an epoch that was proven dead",
    "watched": "a host counts as gone that still has something: nobody would notice its death",
    "promise": "what was promised to recovery does not hold",
    "sense": "nothing runs twice, but a VM or its operator suffers for nothing",
    "undefined": "the step looks at something that is not there",
}
"""Judges, by name."""


def _writing(host: Host, what: str) -> tuple[Domain, ...]:
    """Domains of the name that reach a disk or a network."""
    found = []
    domain = host.domain
    if domain is not None and host.power and domain.state in ("running", "sending") and what not in host.cut:
        found.append(domain)
    if host.elsewhere is not None:
        found.append(host.elsewhere)
    return tuple(found)


def judge(judges: tuple[str, ...], a: Doc, b: Doc, vm: Vm, first: Host, second: Host) -> str:
    """The violation that this state is; empty: none."""
    on_disk = (*_writing(first, f"disk:{DISK}"), *_writing(second, f"disk:{DISK}"))
    if len(on_disk) > 1 and "S1a" in judges:
        return f"S1a: {MEANING['S1a']}: {on_disk[0].run} and {on_disk[1].run}"
    on_net = (*_writing(first, f"port:{PORT}"), *_writing(second, f"port:{PORT}"))
    if len(on_net) > 1 and "S1b" in judges:
        return f"S1b: {MEANING['S1b']}: {on_net[0].run} and {on_net[1].run}"
    for one in on_disk:
        if one.run in vm.dropped and "S2" in judges:
            return f"S2: {one.run} writes, and its entry was taken away by somebody else"
    for name, doc, host in ((HOSTS[0], a, first), (HOSTS[1], b, second)):
        if doc.record is None:
            continue
        there = [one for one in (host.domain, host.elsewhere, *host.creates) if one is not None]
        for one in there:
            if one.epoch <= doc.record.dead_through and "proof" in judges and host.power:
                dead = doc.record.dead_through
                return f"proof: epoch {dead} of {name} is recorded as dead, and {one.run} is of epoch {one.epoch}"
        for one in there:
            if one.epoch <= doc.record.dead_through and doc.record.state == "Held" and "survivor" in judges:
                return f"survivor: {name} is a member again, and {one.run} of a dead epoch is still there"
        for former in doc.record.former if "proof" in judges else ():
            runs = {one.run_id for one in vm.holders if (one.hypervisor, one.member_uid) == (name, former.uid)}
            for one in there:
                if one.run in runs and one.epoch <= former.dead_through and host.power:
                    return f"proof: lost membership {former.uid} is said to be over, and {one.run} is on {name}"
        record = doc.record
        if record.fence.phase == "proven" and record.dead_through < record.fence.epoch and "sense" in judges:
            epoch = record.fence.epoch
            return f"sense: the fence of {name} counts as proven, its epoch {epoch} does not, and nobody goes on"
        if record.proof is not None and record.proof.evidence.startswith(":") and "sense" in judges:
            return "sense: somebody's word is the proof, and nobody knows whose"
        present = host.power and record.boot_id == f"{name}.boot-{host.boot}" and host.elsewhere is None
        present = present and not host.shut
        told = record.proof is not None and record.proof.kind in ("power", "operator")
        if told and present and record.dead_through >= record.epoch and "proof" in judges:
            return f"proof: epoch {record.epoch} of {name} is recorded as dead, and the host is up in that very boot"
        shut_out = all(one in host.cut for one in record.cut.scope)
        if record.cut.through >= record.epoch and host.power and not shut_out and "proof" in judges:
            return f"proof: epoch {record.cut.through} of {name} is recorded as cut off, and is not"
        if doc.record.state == "Released" and "watched" in judges:
            held = any(one.hypervisor == name and one.epoch > doc.record.dead_through for one in vm.holders)
            if there or held:
                return f"watched: {name} is released, and still has {there[0].run if there else 'an entry'}"
    if "entry" in judges:
        for name, host in ((HOSTS[0], first), (HOSTS[1], second)):
            for one in _writing(host, f"disk:{DISK}"):
                if not any(each.hypervisor == name and each.run_id == one.run for each in vm.holders):
                    return f"entry: {one.run} writes on {name}, and no entry says so"
    return ""
