"""Why a VM runs where it runs, or why a host is thought dead: the chain from the last renewal that was seen.

It is made from what is stored and nothing else: the VM's own record of its recovery, the Memberships with their
proofs, and the records of the decisions that were acted on, each with its input, so that ``outlive decide`` repeats it.
Where a record is missing (they are kept for a week) the chain is shorter, and says nothing that nobody wrote down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from outlive.base.clock import as_datetime, as_instant
from outlive.base.errors import NotFound
from outlive.base.phrases import count_of, listing, shown_time
from outlive.failover.failback import FAIL_BACK, FailBackResult
from outlive.failover.rebalance import REBALANCE, RebalanceResult
from outlive.node import health
from outlive.node.fencing.attestation import lost_memberships
from outlive.node.fencing.policy import Departure, HostSettings, departure_of, fence_order, profile_of
from outlive.node.fencing.power import power_forecast
from outlive.node.fencing.states import CondemnView
from outlive.node.health import Answer
from outlive.node.liveness import (
    ClusterLiveness,
    HostLife,
    HostLiveness,
    VmLife,
    VmLiveness,
    is_unproven,
    proof_due,
    running_entries,
    shown_clock,
)
from outlive.node.membership.steps import RecordOutcome
from outlive.node.storage_loss import WHAT_NOW
from outlive.node.vm.states import deletion_of, order_here, wanted
from outlive.placement.rules import AFFINITY, Peers, demands_of, facts_of, objections
from outlive.recovery.balance import sentence
from outlive.recovery.groups import helpful_move
from outlive.recovery.states import is_waiting, summary_of, waits_for
from outlive.resources import (
    Cluster,
    DecisionRecord,
    Fault,
    FormerMembership,
    Hypervisor,
    Membership,
    Proof,
    Reservation,
    VirtualMachine,
)
from outlive.resources.cluster import CLUSTER
from outlive.resources.codec import decode_as
from outlive.resources.hosts import StorageLoss
from outlive.resources.memberships import RenewalSight
from outlive.resources.reasons import HoldReason, Reason, VmReason, render
from outlive.resources.reasons.faults import FaultCode, fault_message
from outlive.resources.vms import Recovery, RecoveryPhase
from outlive.store import Store, list_all, read

DECISIONS_LIMIT: Final = 200
"""Decisions that one answer shows, the last ones."""
CLOSED_BY_RULES: Final = (HoldReason.RULED_OUT, HoldReason.REFUSED)
"""Reasons behind which a rule of an affinity group may be."""
NAMED: Final = 8
"""VMs that a sentence names."""
ANY_DATE: Final = datetime.max.replace(tzinfo=UTC)
ANY_TIME: Final = float("-inf")
"""A moment before the end of all announced work."""


_ORDER: Final = ("safety.condemn", "safety.attempt", "safety.claim", "safety.assign", "safety.hold", "safety.create")
"""In this order decisions follow each other, whatever clocks say."""


class Link(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One link of the chain."""

    at: datetime | None = None
    text: str
    decision: str = ""
    """Name of the ``DecisionRecord`` that it comes from."""


class RecordedDecision(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A decision as it was taken: ``outlive decide NAME`` on the input gives the output again."""

    name: str
    decision: str
    at: datetime
    by: str
    subject: str
    input: msgspec.Raw = msgspec.Raw(b"null")
    output: msgspec.Raw = msgspec.Raw(b"null")
    input_digest: str = ""


class Why(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The whole answer."""

    subject: str
    summary: str
    settled: bool
    """Whether nothing is left to be done: the VM runs, the host lives or everything on it is recovered."""
    chain: tuple[Link, ...]
    remedy: str = ""
    decisions: tuple[RecordedDecision, ...] = ()


STORAGE_REMEDY: Final = (
    "see to its storage, and to its host's way there; to have it start elsewhere, set spec.recovery.storageLost"
)


async def why(store: Store, name: str, sight: RenewalSight) -> Why:
    """Of a VM, else of a host; ``NotFound``. ``sight``: what is seen of renewals at this moment."""
    records = [one async for one in list_all(store, DecisionRecord)]
    vm = await read(store, VirtualMachine, name)
    life = await _read_liveness(store, name, vm, sight)
    answer = await (_why_host(store, name, records, life) if vm is None else _why_vm(store, vm, records, life))
    return msgspec.structs.replace(answer, chain=_in_time_order(answer.chain))


async def _read_liveness(store: Store, name: str, vm: VirtualMachine | None, sight: RenewalSight) -> ClusterLiveness:
    """How the host is, or all hosts of the VM."""
    names = [name] if vm is None else sorted({vm.host, *(one.hypervisor for one in vm.status.holders)} - {""})
    hosts = {one: await read(store, Hypervisor, one) for one in names}
    members = {one: await read(store, Membership, one) for one in names}
    return ClusterLiveness(sight, await read(store, Cluster, CLUSTER), hosts.get, members.get)


def _in_time_order(chain: Iterable[Link]) -> tuple[Link, ...]:
    """What happened, the oldest first; then what is so now, which has no time of its own."""
    links = list(chain)
    dated = sorted((one for one in links if one.at is not None), key=lambda one: as_instant(one.at or ANY_DATE))
    return (*dated, *(one for one in links if one.at is None))


async def _why_vm(store: Store, vm: VirtualMachine, records: list[DecisionRecord], life: ClusterLiveness) -> Why:
    recovery, now = vm.status.recovery, life.vm(vm)
    well = now.state in (VmLife.RUNNING, VmLife.STOPPED)
    mine = [one for one in records if one.subject == vm.name]
    if vm.deleting:
        said, since = deletion_of(vm), vm.metadata.deletion_timestamp
        steps = recovery.steps if recovery is not None else ()
        return Why(
            subject=vm.name,
            summary=said.text,
            settled=False,
            chain=(
                Link(at=since, text="somebody deleted it"),
                *_held(vm, life),
                *await _disarmed(store),
                *(Link(at=step.at, text=step.message) for step in steps),
            ),
            remedy=(recovery.remedy if recovery is not None and recovery.unfinished else "") or said.remedy,
            decisions=_recorded(mine),
        )
    if recovery is None:
        where, waits = vm.host or "no host", waits_for(vm)
        away = await _departed(store, vm.host) if wanted(vm) else None
        then = f"waits there for {', '.join(waits)}" if waits else "was never recovered from a dead one"
        then = f"{away.said}; {away.waits}" if away is not None else then
        doubt = await _nobody_condemned(store) if wanted(vm) else []
        broken = await _broken_rules(store, vm)
        summary = f"{vm.name} is {now.text}; it is assigned to {where}, and {then}"
        return Why(
            subject=vm.name,
            summary=summary,
            settled=well and not waits and away is None and not doubt and not is_starved(vm),
            chain=(
                *_held(vm, life),
                *_storage_loss_links(vm),
                *_start_order(vm),
                *_rebalanced(vm.name, records),
                *_not_back(vm, records),
                *_policy(vm),
                *_against(broken),
                *await _disarmed(store),
                *(Link(text=one.message) for one in doubt),
            ),
            remedy=away.remedy
            if away is not None
            else _remedy_of_storage(vm)
            or _remedy_of_waiting(vm)
            or _first_remedy(doubt)
            or await _remedy_of_rules(store, vm, broken),
            decisions=_recorded(mine),
        )
    fenced = [one for one in records if one.subject == recovery.origin and _is_fence(one, recovery.fence)]
    chain: list[Link] = [*_condemned(fenced, await _fencer(store, recovery.origin, recovery.fence))]
    chain += _proofs(recovery.proofs)
    chain += [Link(at=step.at, text=step.message) for step in recovery.steps]
    slot = await read(store, Reservation, recovery.slot) if recovery.slot else None
    if slot is not None:
        taken = slot.status.consumer.vm if slot.status.consumer is not None else "nobody"
        chain.append(Link(text=f"slot {slot.name} on {slot.status.host} is taken by {taken}"))
    chain += await _contradicted_proofs(store, vm)
    chain += [
        *_start_order(vm),
        *_held(vm, life),
        *_storage_loss_links(vm),
        *_policy(vm),
        *_rebalanced(vm.name, records),
        *_not_back(vm, records),
    ]
    broken = await _broken_rules(store, vm) if recovery.phase is RecoveryPhase.RECOVERED else []
    chain += _against(broken)
    chain += await _disarmed(store)
    return Why(
        subject=vm.name,
        summary=render(summary_of(vm)).text + _changed_since(vm, recovery, now),
        settled=well and recovery.phase is RecoveryPhase.RECOVERED and not is_starved(vm),
        chain=tuple(chain),
        remedy=(await _remedy_of_rules(store, vm, broken) if not broken else "")
        or recovery.remedy
        or _remedy_of_storage(vm)
        or _remedy_of_waiting(vm)
        or await _remedy_of_rules(store, vm, broken),
        decisions=_recorded([*fenced, *mine]),
    )


class _Departed(NamedTuple):
    """A host that said that it goes, and has not come back."""

    said: str
    waits: str
    """For whom its VMs wait, or for how long."""
    remedy: str


async def _departed(store: Store, host: str) -> _Departed | None:
    """What a VM waits for whose host went in good order; ``None``: it did not, or was condemned since.

    Announced work counts here until somebody ends it, also past its time: no clock is read.
    """
    hypervisor, member = await read(store, Hypervisor, host), await read(store, Membership, host)
    if hypervisor is None or member is None or member.record.state == "Revoked":
        return None
    how = departure_of(hypervisor, released=member.record.state == "Released")
    if how is Departure.NONE:
        return None
    said = {
        Departure.DAEMON: f"the daemon of {host} was stopped",
        Departure.MACHINE: f"{host} went down in good order",
        Departure.LEFT: f"{host} was stopped in good order",
    }[how]
    settings = HostSettings(await read(store, Cluster, CLUSTER), hypervisor)
    planned = settings.planned_work(ANY_TIME, how)
    if settings.is_awaited(how):
        return _Departed(
            said,
            "its VMs wait for it, by its shutdown policy (freeze)",
            f"switch {host} on; or, to have them recovered elsewhere: outlive host shutdown-policy {host} failover",
        )
    if planned:
        return _Departed(
            said,
            f"its VMs wait for it because work is announced ({planned})",
            f"switch {host} on, or end the work (outlive maintenance off, outlive ready {host}): "
            "then they are recovered elsewhere",
        )
    return _Departed(
        said, "unless it is soon back, its VMs are recovered elsewhere", f"start its daemon or switch {host} on"
    )


def _rebalanced(vm: str, records: Iterable[DecisionRecord]) -> Iterator[Link]:
    """The moves of it that were asked for because its host was full."""
    for record in records:
        if record.decision == REBALANCE.name and f'"{vm}"' in record.output:
            result = decode_as(RebalanceResult, record.output.encode())
            yield from (
                Link(at=record.at, text=f"for balance {sentence(move)}", decision=record.name)
                for move in result.moves
                if move.vm == vm
            )


def _not_back(vm: VirtualMachine, records: Iterable[DecisionRecord]) -> Iterator[Link]:
    """Why it was not sent to a host that it prefers when that was looked at last, while it would still go there."""
    weights = vm.spec.preferred_hosts.weights
    named = [one for one in records if one.decision == FAIL_BACK.name and f'"{vm.name}"' in one.output]
    if vm.spec.failback != "auto" or not named:
        return
    last = max(named, key=lambda one: (one.at, one.name))
    for blocked in decode_as(FailBackResult, last.output.encode()).blocked:
        if blocked.vm == vm.name and weights.get(blocked.host, 0) > weights.get(vm.host, 0):
            yield Link(at=last.at, text=str(blocked), decision=last.name)


async def _disarmed(store: Store) -> list[Link]:
    """That somebody disarmed the cluster, and until when."""
    cluster = await read(store, Cluster, CLUSTER)
    if cluster is None or not cluster.spec.disarmed:
        return []
    spec = cluster.spec
    end = f"until {shown_time(spec.disarmed_until)}" if spec.disarmed_until else "until it is armed again"
    text = f"the cluster was disarmed ({spec.disarmed}): {end} no host is condemned and nothing is recovered"
    return [Link(at=spec.disarmed_since, text=text)]


async def _nobody_condemned(store: Store) -> list[Fault]:
    """Faults that say that silent hosts are not condemned now: that a host holds its membership says little then."""
    codes = (FaultCode.STORM_HOLD, FaultCode.RATE_HOLD)
    return [one async for one in list_all(store, Fault) if one.code in codes and not one.ended]


def _changed_since(vm: VirtualMachine, recovery: Recovery, now: VmLiveness) -> str:
    """Where it is now, if it was moved after its recovery, and how it is, if it does not run any more."""
    if recovery.phase is not RecoveryPhase.RECOVERED:
        return ""
    moved = f"; it was moved since, and is assigned to {vm.host}" if vm.host not in ("", recovery.host) else ""
    return moved if now.state is VmLife.RUNNING else f"{moved}; now it is {now.text}"


def _first_remedy(faults: list[Fault]) -> str:
    return faults[0].remedy if faults else ""


def _policy(vm: VirtualMachine) -> Iterator[Link]:
    """What its policy says that becomes of it, where that is not to restart elsewhere."""
    policy = vm.spec.recovery
    why = f": {policy.reason}" if policy.reason else ""
    if policy.mode == "ignore":
        yield Link(text=f"it is out of protection, by spec.recovery.mode ignore{why}; outlive protect {vm.name}")
    elif policy.mode == "hold":
        yield Link(text=f"if its host dies, it stays down until its start is requested (recovery.mode hold){why}")


def _start_order(vm: VirtualMachine) -> Iterator[Link]:
    """For whom it waits where it is assigned, or without whom it was started there."""
    said = order_here(vm)
    if said is not None:
        yield Link(at=said.since, text=f"on {said.hypervisor} it {said.detail}")


async def _broken_rules(store: Store, vm: VirtualMachine) -> list[Reason]:
    """The rules, hard and soft, that it goes against where it is to run; others on hosts that are lost do not count."""
    host = await read(store, Hypervisor, vm.host) if vm.host and wanted(vm) else None
    if host is None:
        return []
    demands, peers = demands_of(vm), Peers()
    if demands.rules:
        lost = {one.name async for one in list_all(store, Hypervisor) if one.status.lost}
        async for one in list_all(store, VirtualMachine):
            if shared := [rule for rule in one.spec.affinity_rules if rule in demands.rules]:
                peers.put(one.name, shared, one.hosts() - lost)
    return objections(demands, host.name, peers, facts_of(host))


def _against(rules: Iterable[Reason]) -> Iterator[Link]:
    return (Link(text=f"it runs against a rule: {render(one).text}") for one in rules)


async def _remedy_of_rules(store: Store, vm: VirtualMachine, broken: list[Reason]) -> str:
    """The move that helps one that runs against rules, or that is held because of those of its affinity group."""
    recovery = vm.status.recovery
    held = recovery is not None and is_waiting(vm) and recovery.reason in CLOSED_BY_RULES
    if not broken and not held:
        return ""
    vms: dict[str, VirtualMachine] = {}
    if any(rule.policy == AFFINITY for rule in vm.spec.affinity_rules):
        vms = {one.name: one async for one in list_all(store, VirtualMachine)}
    move = helpful_move(vm, vms, [one async for one in list_all(store, Hypervisor)]) if vms else None
    if move is not None and (
        broken or not any(one.status.holders for one in vms.values() if _is_with(one, vm, move[1]))
    ):
        group, host = move
        return f"outlive group move {group} {host} brings all that are to be together to a host that their rules allow"
    one = f"outlive vm move {vm.name} brings it to a host that its rules allow, where one has room"
    return one if broken else ""


def _is_with(one: VirtualMachine, vm: VirtualMachine, host: str) -> bool:
    """Whether it is on the host and to be on one host with the VM."""
    shared = any(rule.policy == AFFINITY and rule in one.spec.affinity_rules for rule in vm.spec.affinity_rules)
    return shared and one.host == host and one.name != vm.name


def _remedy_of_waiting(vm: VirtualMachine) -> str:
    waits = waits_for(vm)
    if not waits:
        return ""
    return f"see outlive why {waits[0]}; to start it now, take {', '.join(waits)} out of its spec.startAfter"


async def _contradicted_proofs(store: Store, vm: VirtualMachine) -> list[Link]:
    """That a proof by which it was restarted turned out wrong."""
    recovery = vm.status.recovery
    member = await read(store, Membership, recovery.origin) if recovery is not None else None
    if recovery is None or member is None:
        return []
    wrong = [one for one in recovery.proofs if one.kind in member.record.distrusted]
    return [
        Link(
            text=f"the proof by {one.kind} that {recovery.origin} was dead turned out wrong: it may have run twice; "
            "check its file systems"
        )
        for one in wrong
    ]


async def _contradiction_of_host(store: Store, member: Membership) -> tuple[list[Link], str]:
    """Kinds of proof that turned out wrong for the host, the VMs that were restarted by them, and what helps."""
    record = member.record
    if not record.distrusted:
        return [], ""
    kinds = listing(record.distrusted)
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
        links.append(Link(text=f"restarted by it, and perhaps run twice: {listing(sorted(vms), most=NAMED)}"))
    return links, fault.remedy


async def _why_host(store: Store, name: str, records: list[DecisionRecord], life: ClusterLiveness) -> Why:
    member = await read(store, Membership, name)
    if member is None:
        raise await _unknown(store, name)
    record = member.record
    fence = record.fence
    mine = [one for one in records if one.subject == name]
    dead = fence.id != "" and record.dead_through >= fence.epoch
    chain: list[Link] = (
        list(_condemned([one for one in mine if _is_fence(one, fence.id)], fence.by)) if fence.id else []
    )
    if fence.id and not chain:
        at = record.proof.at if record.proof is not None else None
        chain.append(Link(at=at, text=f"{fence.by} condemned it as fence {fence.id}: {fence.reason}"))
    chain += _proofs(fence.findings if fence.findings else (() if record.proof is None else (record.proof,)))
    moved = await _moved(store, fence.id) if fence.id else []
    for former in record.former:
        chain += _lost(former)
        if former.proof.fence not in ("", fence.id):
            moved += await _moved(store, former.proof.fence)
    chain += [link for link, _ in moved]
    chain += await _disarmed(store)
    now = life.host(name)
    if record.state == "Held":
        last = "at renewal" if now.state is HostLife.ALIVE else "the last renewal that the store has is"
        chain.append(Link(text=f"{name} holds its membership in epoch {record.epoch}, {last} {record.seq}"))
    doubt = await _nobody_condemned(store) if record.state == "Held" else []
    chain += [Link(text=one.message) for one in doubt]
    departed = await _departed(store, name) if record.state == "Held" else None
    host = await read(store, Hypervisor, name)
    settings = HostSettings(await read(store, Cluster, CLUSTER), host)
    answer_s = host.status.power_answer_s if host is not None else None
    if settings.fencing.driver and answer_s is not None and record.state != "Released" and not dead:
        profile = profile_of(settings.cluster_spec.fencing, settings.fencing, armed=record.guard.armed)
        forecast = power_forecast(profile, answer_s)
        chain.append(
            Link(
                text=f"its power controller takes up to {answer_s:g} s for an answer, so a proof by power comes up to "
                f"{forecast.text} after the last renewal"
            )
        )
    slow = host.status.degrading if host is not None else None
    remedy = departed.remedy if departed is not None else _first_remedy(doubt)
    if slow is not None:
        chain.append(Link(at=slow.since, text=f"{health.message(name, slow)} (score {slow.score} of 100)"))
        remedy = health.remedy(name, slow)
    starved = host.status.storage_lost if host is not None else None
    if starved is not None:
        chain.append(Link(at=starved.since, text=starved_text(name, starved)))
        remedy = f"see to the way of {name} to the storage, and to the storage"
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
    contradiction, helps = await _contradiction_of_host(store, member)
    chain += contradiction
    remedy = helps or remedy
    if record.state == "Revoked" and not dead:
        remedy = _remedy_of_condemned(name, host, member, settings.cluster, life.sight)
    if ordered:
        back = f"to have that called off: outlive fence {name} --call-off"
        remedy = f"{remedy}; {back}" if remedy else back
    return Why(
        subject=name,
        summary=_host_summary(member, now) if departed is None else f"{departed.said}; {departed.waits}",
        settled=not doubt
        and not record.distrusted
        and now.state in (HostLife.ALIVE, HostLife.DEAD, HostLife.STOPPED)
        and not (now.state is HostLife.DEAD and any(held for _, held in moved)),
        chain=tuple(chain),
        remedy=remedy,
        decisions=_recorded(mine),
    )


def _remedy_of_condemned(
    name: str, host: Hypervisor | None, member: Membership, cluster: Cluster | None, sight: RenewalSight
) -> str:
    """What helps a host that is being fenced: waiting, for as long as proofs are on their way; what only a person can
    say comes after them."""
    if sight.blind:
        return f"see to the server first ({sight.blind}): while none runs, no host is fenced and no VM restarted"
    due = proof_due(host, member, cluster)
    if is_unproven(member.record):
        return f"if it is off for certain: outlive fence {name} --confirm-off --reason …"
    if due is not None and as_instant(due) >= as_instant(sight.at):
        return f"nothing to do yet: its proof is expected by {shown_clock(due, sight.at)}"
    return "nothing to do yet: proofs are looked for, and fault fence-unconfirmed says so if none comes"


def is_starved(vm: VirtualMachine) -> bool:
    """Whether its host says that storage does not serve it."""
    return vm.status.reason == VmReason.STORAGE_LOST


def _storage_loss_links(vm: VirtualMachine) -> Iterator[Link]:
    if is_starved(vm):
        yield Link(text=vm.status.message)


def _remedy_of_storage(vm: VirtualMachine) -> str:
    return STORAGE_REMEDY if is_starved(vm) else ""


def starved_text(name: str, loss: StorageLoss) -> str:
    """That storage does not serve VMs of a host, and what is done about it."""
    if loss.vms == 0:
        return f"{name} does not reach the storage of VMs that have left it: {loss.why}"
    then = WHAT_NOW.get(loss.then, WHAT_NOW[Answer.OFF])
    return f"storage does not serve {count_of(loss.vms, 'VM')} on {name}: {loss.why}; of each of them: {then}"


def _lost(former: FormerMembership) -> Iterator[Link]:
    """What is known of a Membership that is lost."""
    proof = former.proof
    by = f", recorded by {proof.by}" if proof.by else ""
    yield Link(
        at=proof.at,
        text=f"its lost membership {former.uid} is over through epoch {former.dead_through}, "
        f"by {proof.kind}: {proof.evidence}{by}",
    )


async def _unknown(store: Store, name: str) -> NotFound:
    """Of a host that nobody watches, or of a name that is neither a host's nor a VM's."""
    if await lost_memberships(store, name):
        return NotFound(
            f"the membership of {name} is lost, and VMs are held until it is known that what it ran is off",
            remedy=f"a Membership that is applied again does not help; once you know that {name} is off: "
            f'outlive fence {name} --confirm-off --reason "..."',
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


def _host_summary(member: Membership, now: HostLiveness) -> str:
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


async def _fencer(store: Store, host: str, fence: str) -> str:
    """Who carries that fence, as far as the host's Membership still shows."""
    member = await read(store, Membership, host)
    return member.record.fence.by if member is not None and member.record.fence.id == fence else ""


def _condemned(records: Iterable[DecisionRecord], by: str) -> Iterator[Link]:
    """The last renewal that was seen, and who condemned the host for it.

    Of several who decided so at the same time the store let one through: ``by``, unless the fence was taken over.
    """
    found = [
        (record, decode_as(CondemnView, record.input.encode()))
        for record in records
        if record.decision == "safety.condemn" and record.input
    ]
    through = [one for one in found if one[1].observer == by]
    for record, view in through or found:
        at_version = f", version {view.version}" if view.version else ""
        yield Link(
            at=as_datetime(as_instant(record.at) - view.unchanged_s),
            text=f"the last renewal of {view.host} that {view.observer} saw is number {view.record.seq} "
            f"of epoch {view.record.epoch}{at_version}",
            decision=record.name,
        )
        yield Link(
            at=record.at,
            text=f"{view.observer} had seen it unchanged for {view.unchanged_s:.1f} s (limit {view.silence_s:g} s) "
            f"and condemned {view.host} on exactly that version",
            decision=record.name,
        )
        for note in (view.observers, view.looks):
            if note:
                yield Link(at=record.at, text=note, decision=record.name)


def _proofs(proofs: Iterable[Proof]) -> Iterator[Link]:
    for proof in proofs:
        by = f", recorded by {proof.by}" if proof.by else ""
        yield Link(at=proof.at, text=f"proof of epoch {proof.epoch} by {proof.kind}: {proof.evidence}{by}")


def _held(vm: VirtualMachine, life: ClusterLiveness) -> Iterator[Link]:
    runs = running_entries(vm)
    for holder in vm.status.holders:
        host = life.host(holder.hypervisor)
        seen = f", seen {holder.seen}" if holder.seen else ", not seen running"
        if holder.seen == "running" and holder not in runs:
            seen = ", where its guest ended in the move"
        elif holder.seen and host.state is not HostLife.ALIVE:
            seen = f", last seen {holder.seen}: {holder.hypervisor} is {host.text}"
        role = " (incoming)" if holder.role else ""
        yield Link(text=f"{holder.hypervisor} holds it in epoch {holder.epoch}, run {holder.run_id}{role}{seen}")


async def _moved(store: Store, fence: str) -> list[tuple[Link, bool]]:
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


def _is_fence(record: DecisionRecord, fence: str) -> bool:
    if record.decision == "safety.condemn":
        outcome = decode_as(RecordOutcome, record.output.encode()) if record.output else None
        return outcome is not None and outcome.record is not None and outcome.record.fence.id == fence
    return record.decision.startswith("safety.") and f'"{fence}"' in record.input


def _order(record: DecisionRecord) -> tuple[datetime, int, datetime, str]:
    """By time; those of different processes in one millisecond as the protocol goes on."""
    moment = record.at.replace(microsecond=record.at.microsecond // 1000 * 1000)
    place = _ORDER.index(record.decision) if record.decision in _ORDER else len(_ORDER)
    return moment, place, record.at, record.name


def _recorded(records: Iterable[DecisionRecord]) -> tuple[RecordedDecision, ...]:
    ordered = sorted(records, key=_order)[-DECISIONS_LIMIT:]
    return tuple(
        RecordedDecision(
            name=one.name,
            decision=one.decision,
            at=one.at,
            by=one.by,
            subject=one.subject,
            input=msgspec.Raw(one.input.encode() or b"null"),
            output=msgspec.Raw(one.output.encode() or b"null"),
            input_digest=one.input_digest,
        )
        for one in ordered
    )
