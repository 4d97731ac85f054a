"""One writer per field; what was acknowledged is kept (S5); nothing grows beyond its limit."""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec.structs import replace

from outlive.node.membership.states import MemberView, member_view
from outlive.node.permission_facts import Facts, HostWriter
from outlive.node.permissions import host_refusal, needed_facts, write_refusal
from outlive.node.primary import ROLE
from outlive.resources import Cluster, Election, Fault, Hypervisor, MemberRecord, Membership, Resource, VirtualMachine
from outlive.resources.cluster import CLUSTER
from outlive.resources.vms import RECOVERY_STEPS
from outlive.resources.writers import ADMIN, table_refusal
from outlive.simulation.judges.truth import Truth
from outlive.simulation.stores import Author
from outlive.store.tables import Write

HOLDERS_LIMIT: Final = 8
"""Two in a move, and those that are fenced and not yet dropped."""
FINDINGS_LIMIT: Final = 6
"""One of each kind of proof."""


REPORTS_TRAIL_S: Final = 10.0
"""How long a daemon may go on to report a fault of a VM that has left it: one look, and the writes of other faults."""


def allowed_by_the_table(truth: Truth, write: Write, author: Author) -> str:
    """A process writes nothing that the server would refuse a token with its names: by the table, and by the rules.

    But for a host that has yet to notice something, whose writes the server refuses until it has: that the store went
    back once more behind its Membership, so that it registers what it runs in the epoch that it had; or that, that it
    was condemned while it stood still, or that a VM has left it, so that it reports faults of VMs that are not its own
    any more.
    """
    if ADMIN in author.writers:
        return ""
    before, after, host = write.before, write.after, author.host
    if after is None and before is not None and before.deleting:
        after = write.answer  # its last finalizer was removed, which is a change of one that was deleted before
    if not {"daemon", "fencer"}.intersection(author.writers):
        host = ""
    needed = needed_facts(host, before, after)
    known = truth.store.all_of(Membership) if needed.every_host else ()
    members = [truth.store.look(Membership, name) for name in needed.members] or [*known]
    facts = Facts(
        members=tuple(member_view(one) for one in members if one is not None),
        vm=truth.store.look(VirtualMachine, needed.vm) if needed.vm else None,
        cluster=truth.store.look(Cluster, CLUSTER) if needed.cluster else None,
        hosts=tuple(one.name for one in truth.store.all_of(Hypervisor) if one.spec.management == "node")
        if needed.every_host
        else (),
    )
    if not host:
        return _describe_author(author, write_refusal(author.writers, before, after, facts))
    own, election = truth.store.look(Hypervisor, host), truth.store.look(Election, ROLE)
    leads = election is not None and election.record.holder == host
    who = HostWriter(
        host,
        coordinator="fencer" in author.writers and (own is None or own.spec.mode == "coordinator"),
        term=election.record.term if election is not None and leads else 0,
    )
    why = table_refusal(author.writers, before, after)
    why = why or host_refusal(who, before, after, _as_its_host_knows(truth, host, after, facts))
    return _describe_author(author, why)


def _as_its_host_knows(truth: Truth, host: str, after: Resource | None, facts: Facts) -> Facts:
    """The facts, where the store went back behind the host's Membership, as if it knew the one that the host enters;
    without the VM of a fault there, where the host was condemned, and where the VM has only just left it."""
    if isinstance(after, Fault):
        member = truth.store.look_member(host)
        unaware = truth.forgotten(host) or (member is not None and member.state != "Held")
        left_s = truth.vm_left_s.get((host, after.subject.name), float("-inf"))
        unaware = unaware or asyncio.get_running_loop().time() - left_s <= REPORTS_TRAIL_S
        return replace(facts, vm=None) if unaware else facts
    if not truth.forgotten(host) or not isinstance(after, VirtualMachine):
        return facts
    entered = [one for one in after.status.holders if one.hypervisor == host]
    if not entered:
        return facts
    latest = max(entered, key=lambda one: one.epoch)
    record = next((one.record for one in facts.members if one.host == host), MemberRecord(machine_id="", boot_id=""))
    own = MemberView(host=host, uid=latest.member_uid, record=replace(record, epoch=max(record.epoch, latest.epoch)))
    return replace(facts, members=(own, *(one for one in facts.members if one.host != host)))


def _describe_author(author: Author, why: str) -> str:
    return f"{author.process} as {'/'.join(author.writers)} {why}" if why else ""


def acknowledged_is_kept(truth: Truth, answer: object) -> str:
    """S5: the object that a writer got as an answer is what the store has, or something later, or was deleted since."""
    if not isinstance(answer, Resource):
        return ""
    kept = truth.store.look(type(answer), answer.name)
    if kept is None or kept.metadata.uid != answer.metadata.uid:
        return ""
    if int(kept.metadata.resource_version) < int(answer.metadata.resource_version):
        version = answer.metadata.resource_version
        return f"version {version} was acknowledged, and the store has {kept.metadata.resource_version}"
    return ""


def within_limits(after: Resource) -> str:
    """Lists in documents stay short."""
    if isinstance(after, VirtualMachine):
        if len(after.status.holders) > HOLDERS_LIMIT:
            return f"{len(after.status.holders)} holders"
        if after.status.recovery is not None and len(after.status.recovery.steps) > RECOVERY_STEPS:
            return f"{len(after.status.recovery.steps)} steps of one recovery"
    if isinstance(after, Membership) and len(after.record.fence.findings) > FINDINGS_LIMIT:
        return f"{len(after.record.fence.findings)} findings of one fence"
    return ""
