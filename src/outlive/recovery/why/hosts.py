"""Why a host is thought dead or alive: its fences with their proofs, what became of its VMs, and what helps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from outlive.base import NotFound, as_instant, count_of, join_parts, shown_time
from outlive.node import (
    WHAT_NOW,
    ClusterLiveness,
    HostLife,
    HostLiveness,
    LeaveVerdict,
    health,
    is_unproven,
    proof_due,
    shown_clock,
)
from outlive.node.fencing import HostSettings, fence_order, lost_memberships, power_forecast, profile_of
from outlive.recovery.states import summary_of
from outlive.recovery.why.chain import (
    Link,
    WhyAnswer,
    find_departed,
    first_remedy,
    is_of_fence,
    link_condemnation,
    link_proofs,
    list_disarmed,
    list_rate_faults,
    show_decisions,
)
from outlive.resources import (
    CLUSTER,
    Cluster,
    DecisionRecord,
    FormerMembership,
    Hypervisor,
    Membership,
    RecoveryPhase,
    RenewalSight,
    StorageLoss,
    VirtualMachine,
)
from outlive.resources.reasons import FaultCode, fault_message, render
from outlive.store import Store, list_all, read

NAMED: Final = 8
"""VMs that a sentence names."""


async def explain_host(store: Store, name: str, records: list[DecisionRecord], life: ClusterLiveness) -> WhyAnswer:
    """The answer for a host that has, or had, a Membership; else ``NotFound``."""
    member = await read(store, Membership, name)
    if member is None:
        raise await _refuse_unknown(store, name)
    record = member.record
    fence = record.fence
    mine = [one for one in records if one.subject == name]
    dead = fence.id != "" and record.dead_through >= fence.epoch
    chain: list[Link] = (
        list(link_condemnation([one for one in mine if is_of_fence(one, fence.id)], fence.by)) if fence.id else []
    )
    if fence.id and not chain:
        at = record.proof.at if record.proof is not None else None
        chain.append(Link(at=at, text=f"{fence.by} condemned it as fence {fence.id}: {fence.reason}"))
    chain += link_proofs(fence.findings if fence.findings else (() if record.proof is None else (record.proof,)))
    moved = await _link_recoveries(store, fence.id) if fence.id else []
    for former in record.former:
        chain += _link_lost_membership(former)
        if former.proof.fence not in ("", fence.id):
            moved += await _link_recoveries(store, former.proof.fence)
    chain += [link for link, _ in moved]
    chain += await list_disarmed(store)
    now = life.liveness_of_host(name)
    if record.state == "Held":
        last = "at renewal" if now.state is HostLife.ALIVE else "the last renewal that the store has is"
        chain.append(Link(text=f"{name} holds its membership in epoch {record.epoch}, {last} {record.seq}"))
    doubt = await list_rate_faults(store) if record.state == "Held" else []
    chain += [Link(text=one.message) for one in doubt]
    departed = await find_departed(store, name) if record.state == "Held" else None
    host = await read(store, Hypervisor, name)
    settings = HostSettings(await read(store, Cluster, CLUSTER), host)
    answer_s = host.status.power_answer_s if host is not None else None
    if settings.fencing.driver and answer_s is not None and record.state != "Released" and not dead:
        profile = profile_of(settings.cluster_spec.fencing, settings.fencing, armed=record.guard.armed)
        forecast = power_forecast(profile, answer_s)
        chain.append(
            Link(
                text=f"its BMC takes up to {answer_s:g} s for an answer, so a proof by power comes up to "
                f"{forecast.text} after the last renewal"
            )
        )
    slow = host.status.degrading if host is not None else None
    remedy = departed.remedy if departed is not None else first_remedy(doubt)
    if slow is not None:
        chain.append(Link(at=slow.since, text=f"{health.describe_degrading(name, slow)} (score {slow.score} of 100)"))
        remedy = health.suggest_remedy(name, slow)
    starved = host.status.storage_lost if host is not None else None
    if starved is not None:
        chain.append(Link(at=starved.since, text=_describe_starved(name, starved)))
        remedy = f"check the network of {name} to the storage, and the storage"
    shut = host.status.quarantine if host is not None else None
    if shut is not None:
        until = shown_time(shut.until)
        chain.append(Link(at=shut.since, text=f"it died {shut.deaths} times and is in quarantine until {until}"))
        remedy = f"see why it dies, then: outlive host release {name}"
    asked = fence_order(host.spec.fencing.requested, member.metadata.uid) if host is not None else None
    ordered = asked is not None and asked[0] == record.epoch and record.state != "Released" and not dead
    if asked is not None and ordered:
        stays = (
            "" if record.state == "Held" else "; until it has booted it does not come back while that order is active"
        )
        chain.append(Link(text=f"{asked[1]} asks to have it fenced: {asked[2]}{stays}"))
    contradiction, helps = await _link_contradictions(store, member)
    chain += contradiction
    remedy = helps or remedy
    if record.state == "Revoked" and not dead:
        remedy = _remedy_of_condemned(name, host, member, settings.cluster, life.sight)
    if ordered:
        back = f"to have that called off: outlive fence {name} --call-off"
        remedy = f"{remedy}; {back}" if remedy else back
    return WhyAnswer(
        subject=name,
        summary=_summarize_host(member, now) if departed is None else f"{departed.said}; {departed.waits}",
        settled=not doubt
        and not record.distrusted
        and now.state in (HostLife.ALIVE, HostLife.DEAD, HostLife.STOPPED)
        and not (now.state is HostLife.DEAD and any(held for _, held in moved)),
        chain=tuple(chain),
        remedy=remedy,
        decisions=show_decisions(mine),
    )


def _summarize_host(member: Membership, now: HostLiveness) -> str:
    record, name = member.record, member.name
    dead = now.state is HostLife.DEAD
    if record.state == "Revoked":
        proven = (
            f"proven dead by {record.proof.kind}"
            if dead and record.proof
            else f"not proven dead: {record.fence.unproven_why or 'proofs are looked for'}"
        )
        return f"{name} was condemned in epoch {record.fence.epoch} and is {proven}"
    if record.state == "Released":
        return f"{name} was stopped on purpose and runs nothing"
    through = f"; epochs through {record.dead_through} are dead" if record.dead_through else ""
    return f"{name} is {now.text}, in epoch {record.epoch}{through}"


def _remedy_of_condemned(
    name: str, host: Hypervisor | None, member: Membership, cluster: Cluster | None, sight: RenewalSight
) -> str:
    """What helps a host that is being fenced: waiting, for as long as proofs are on their way; what only a person can
    say comes after them."""
    if sight.blind:
        return f"check the server first ({sight.blind}): while none runs, no host is fenced and no VM restarted"
    due = proof_due(host, member, cluster)
    if is_unproven(member.record):
        return f"if it is off for certain: outlive fence {name} --confirm-off --reason ..."
    if due is not None and as_instant(due) >= as_instant(sight.at):
        return f"nothing to do yet: its proof is expected by {shown_clock(due, sight.at)}"
    return "nothing to do yet: proofs are looked for, and fault fence-unconfirmed says so if none comes"


async def _link_contradictions(store: Store, member: Membership) -> tuple[list[Link], str]:
    """Kinds of proof that turned out wrong for the host, the VMs that were restarted by them, and what helps."""
    record = member.record
    if not record.distrusted:
        return [], ""
    kinds = join_parts(record.distrusted)
    words = " ".join(record.distrusted)
    fault = fault_message(FaultCode.PROOF_CONTRADICTED, member.name, {"kinds": kinds, "words": words})
    vms = [
        one.name
        async for one in list_all(store, VirtualMachine)
        if (recovery := one.status.recovery) is not None
        and recovery.origin == member.name
        and any(proof.kind in record.distrusted for proof in recovery.proofs)
    ]
    links = [Link(text=f"the proof by {kinds} was wrong for {member.name}, and is trusted no more")]
    if vms:
        links.append(Link(text=f"restarted by it, and perhaps run twice: {join_parts(sorted(vms), most=NAMED)}"))
    return links, fault.remedy


async def _link_recoveries(store: Store, fence: str) -> list[tuple[Link, bool]]:
    """What became of each VM of a fenced host, and whether it is held."""
    found = []
    async for vm in list_all(store, VirtualMachine):
        recovery = vm.status.recovery
        if recovery is not None and recovery.fence == fence:
            remedy = f" ({recovery.remedy})" if recovery.remedy else ""
            at = recovery.steps[-1].at if recovery.steps else None
            held = recovery.phase is RecoveryPhase.HELD
            found.append((Link(at=at, text=render(summary_of(vm)).text + remedy), held))
    return found


def _describe_starved(name: str, loss: StorageLoss) -> str:
    """That storage does not serve VMs of a host, and what is done about it."""
    if loss.vms == 0:
        return f"{name} does not reach the storage of VMs that have left it: {loss.why}"
    then = WHAT_NOW.get(loss.then, WHAT_NOW[LeaveVerdict.OFF])
    return f"storage does not serve {count_of(loss.vms, 'VM')} on {name}: {loss.why}; of each of them: {then}"


def _link_lost_membership(former: FormerMembership) -> Iterator[Link]:
    """What is known of a Membership that is lost."""
    proof = former.proof
    by = f", recorded by {proof.by}" if proof.by else ""
    yield Link(
        at=proof.at,
        text=f"its lost membership {former.uid} is over through epoch {former.dead_through}, "
        f"by {proof.kind}: {proof.evidence}{by}",
    )


async def _refuse_unknown(store: Store, name: str) -> NotFound:
    """Of a host that nobody watches, or of a name that is neither a host's nor a VM's."""
    if await lost_memberships(store, name):
        return NotFound(
            f"the membership of {name} is lost, and VMs are held until it is known that what it ran is off",
            remedy=f"a Membership that is applied again does not help; once you know that {name} is off: "
            f"outlive fence {name} --confirm-off --reason ...",
        )
    host = await read(store, Hypervisor, name)
    if host is None:
        return NotFound(
            f"there is no VM and no host {name[:80]!r}", remedy="outlive get vms and outlive get hypervisors list them"
        )
    return NotFound(
        f"host {name} has no membership, so nobody watches it and nothing is known of it",
        remedy=f"it is managed by {host.spec.management}; only hosts with our daemon have one",
    )
