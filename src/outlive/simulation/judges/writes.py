"""One writer per field; what was acknowledged is kept (S5); nothing grows beyond its limit."""

from __future__ import annotations

from typing import Final

from outlive.node.membership.states import member_view
from outlive.node.permissions import HostWriter, dropped, host_refusal, owned, writes_as_primary
from outlive.node.primary import ROLE
from outlive.resources import Console, Election, Membership, Resource, VirtualMachine
from outlive.resources.vms import RECOVERY_STEPS
from outlive.resources.writers import changed_fields, owners_of
from outlive.simulation.judges.truth import Truth
from outlive.simulation.stores import Author
from outlive.store.tables import Write

HOLDERS_LIMIT: Final = 8
"""Two in a move, and those that are fenced and not yet dropped."""
FINDINGS_LIMIT: Final = 6
"""One of each kind of proof."""


def written_by_its_owner(write: Write, author: Author) -> str:
    """Every field that differs belongs to one of the names under which the process wrote."""
    kind, before, after = write.kind, write.before, write.after
    if before is None or after is None:
        return ""
    for path in changed_fields(before, after):
        if not owned(kind, path, author.writers):
            names, owners = "/".join(author.writers), " or ".join(owners_of(kind, path))
            return f"{author.process} as {names} writes {path}, of {owners or 'nobody'}"
    return ""


def allowed_by_its_token(truth: Truth, write: Write, author: Author) -> str:
    """A daemon writes nothing that the server would refuse its token."""
    if not author.host or not {"daemon", "fencer"}.intersection(author.writers):
        return ""
    before, after = write.before, write.after
    members: list[Membership | None] = []
    if isinstance(before, VirtualMachine) and isinstance(after, VirtualMachine):
        members = [truth.store.look(Membership, one.hypervisor) for one in dropped(author.host, before, after)]
    term = 0
    if any(writes_as_primary(one) for one in (before, after) if one is not None):
        election = truth.store.look(Election, ROLE)
        term = election.record.term if election is not None and election.record.holder == author.host else 0
    who = HostWriter(author.host, coordinator="fencer" in author.writers, term=term)
    vm = truth.store.look(VirtualMachine, after.name) if isinstance(after, Console) else None
    return host_refusal(who, before, after, [member_view(one) for one in members if one is not None], vm)


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
