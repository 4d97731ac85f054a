"""What is true of hosts and VMs now, and how old it is: one function each, used by every output. Pure.

Whether a host renews its membership is seen by the server alone, on its own clock: no document says when it was
written last. What the server saw is a ``RenewalSight``; everything else is in the documents. Where nobody sees, a host
is ``unknown``, however well it was when it wrote last, and so are the VMs that it reported running. That a host is
condemned or dead, or left cleanly, is in its Membership, and true for as long as that is
(docs/concepts/safety.md#liveness).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final, Literal

import msgspec

from outlive.base import as_datetime, as_instant, join_parts
from outlive.node.fencing.fence import AWAITED
from outlive.node.fencing.policy import Departure, HostSettings, departure_of, profile_of
from outlive.node.fencing.power import power_forecast
from outlive.node.vm.states import current_order, current_rejection
from outlive.resources import (
    HEARD,
    OBSERVED,
    READY,
    RUNNING_WORDS,
    Cluster,
    Condition,
    Holder,
    Hypervisor,
    MemberRecord,
    Membership,
    MigrationPhase,
    Recovery,
    RecoveryPhase,
    RenewalSight,
    Resource,
    VirtualMachine,
    VmState,
    active_move,
    bad_condition,
    find_condition,
    is_to_run,
    observed_condition,
    state_of,
)
from outlive.resources.reasons import BLOCKED_BY_OTHERS, MAY_RUN, HoldReason

SERVER_AWAY: Final = "server away"
"""Nobody answers, or nobody leads: what is written may be of any age."""
UNPROVEN_REASONS: Final = MAY_RUN | {
    HoldReason.FENCE_UNCONFIRMED,
    HoldReason.STORE_RESTORED,
    HoldReason.CLUSTER_DISARMED,
}
"""Reasons to wait that say nothing of whether the VM is down."""
STARTING_S: Final = 90.0
"""For how long a server that has not heard of a host says that it started."""
NOT_MEMBER: Final = "not a member"


class HostLife(enum.StrEnum):
    """How a host is, as far as anybody can know."""

    ALIVE = "alive"
    SILENT = "silent"
    """It has not renewed for as long as its profile allows; what it runs may run on."""
    CONDEMNED = "condemned"
    """It is being fenced, and not proven dead."""
    DEAD = "dead"
    STOPPED = "stopped"
    """It left cleanly and runs nothing."""
    UNKNOWN = "unknown"


class VmLife(enum.StrEnum):
    """How a VM is, as far as anybody can know."""

    RUNNING = "running"
    STARTING = "starting"
    WAITING = "waiting"
    """It is down and wanted, and something has to happen first: the reason says what."""
    DOWN = "down"
    STOPPED = "stopped"
    """It is down, as somebody wants it."""
    UNKNOWN = "unknown"


class HostLiveness(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a host is."""

    state: HostLife
    since: datetime | None = None
    """Absent: nobody noted it."""
    text: str
    """The state with its age, such as ``silent for 30 s``."""
    watched: bool = True
    """Whether it is a host with our daemon, which Outlive fences and whose VMs it restarts."""
    doubtful: bool = False
    """Of a host that another system manages: that system says that it is not well, or nobody reads what it says."""
    uid: str = ""
    epoch: int = 0
    """Of its Membership now: what it said under another one it says no more."""
    dead_through: int = 0


class VmLiveness(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a VM is."""

    state: VmLife
    since: datetime | None = None
    reason: str = ""
    """Why it does not run: a code, such as ``no-room``."""
    text: str
    """The state with its reason and age, such as ``waiting: no-room since 2026-01-01 00:00:31 UTC``."""


def sight_without_server(at: datetime) -> RenewalSight:
    """What somebody sees who only reads the store: nobody."""
    return RenewalSight(at=at, blind=SERVER_AWAY)


def sight_of_conditions(hosts: Iterable[Hypervisor], at: datetime) -> RenewalSight:
    """What the server wrote into the hosts' conditions, for a state file that says nothing else."""
    found = ((one.name, observed_condition(one)) for one in hosts)
    silent = {name: ready for name, ready in found if ready is not None and ready.reason == OBSERVED["silent"]}
    since = {name: ready.last_transition_time or at for name, ready in silent.items()}
    ages = {name: max(0.0, as_instant(at) - as_instant(moment)) for name, moment in since.items()}
    return RenewalSight(at=at, silent=ages)


# Hosts


def host_liveness(
    name: str, host: Hypervisor | None, member: Membership | None, cluster: Cluster | None, sight: RenewalSight
) -> HostLiveness:
    """How the host is at ``sight.at``."""
    if host is not None and host.spec.management != "node" and member is None:
        return _foreign_host_liveness(host, sight)
    if member is None:
        return HostLiveness(state=HostLife.UNKNOWN, text=NOT_MEMBER)
    record, found = member.record, _member_liveness(name, host, member, cluster, sight)
    uid, epoch = member.metadata.uid, record.epoch
    return msgspec.structs.replace(found, uid=uid, epoch=epoch, dead_through=record.dead_through)


def _member_liveness(
    name: str, host: Hypervisor | None, member: Membership, cluster: Cluster | None, sight: RenewalSight
) -> HostLiveness:
    record = member.record
    if record.state == "Released":
        since = _find_unready_since(host)
        return HostLiveness(state=HostLife.STOPPED, since=since, text=_format_since("stopped", since))
    if record.dead_through >= record.epoch:
        since = record.proof.at if record.proof is not None else _find_unready_since(host)
        return HostLiveness(state=HostLife.DEAD, since=since, text=_format_since("dead", since))
    if record.state == "Revoked":
        since = _find_unready_since(host)
        return HostLiveness(state=HostLife.CONDEMNED, since=since, text=_condemned_text(host, member, cluster, sight))
    if sight.blind:
        return HostLiveness(state=HostLife.UNKNOWN, text=f"unknown ({sight.blind})")
    if (silent_s := sight.silent.get(name)) is not None:
        since = as_datetime(as_instant(sight.at) - silent_s)
        how = {Departure.DAEMON: " (its daemon was stopped)", Departure.MACHINE: " (it went down cleanly)"}
        least = "at least " if name in sight.unheard else ""
        text = f"silent for {least}{silent_s:.0f} s{how.get(departure_of(host), '')}"
        return HostLiveness(state=HostLife.SILENT, since=since, text=text)
    if name in sight.unheard:
        heard = f"server started {sight.started_s:.0f} s ago" if sight.started_s < STARTING_S else "not heard of yet"
        return HostLiveness(state=HostLife.UNKNOWN, text=f"unknown ({heard})")
    return HostLiveness(state=HostLife.ALIVE, text="alive")


def _foreign_host_liveness(host: Hypervisor, sight: RenewalSight) -> HostLiveness:
    """Of a host that another system manages: what that said last, and when; nobody here watches it."""
    kind = host.spec.management
    read = f" at {shown_clock(host.status.observed_at, sight.at)}" if host.status.observed_at is not None else ""
    said = bad_condition(host)
    if sight.blind:
        text = f"unknown ({sight.blind})"
        return HostLiveness(
            state=HostLife.UNKNOWN, since=host.status.observed_at, text=text, watched=False, doubtful=True
        )
    text = f"not watched ({kind} said {said}{read})" if said else f"not watched (managed by {kind})"
    since = host.status.observed_at
    return HostLiveness(state=HostLife.UNKNOWN, since=since, text=text, watched=False, doubtful=bool(said))


def observed_ready(host: Hypervisor, life: HostLiveness, now: datetime) -> Condition | None:
    """What the server writes as the host's condition ``Ready``; ``None``: what is there stays.

    It takes back only what it wrote itself, and replaces only ``True``: how a host said that it goes
    (``fencing.policy.departure_of``) is never overwritten, and reads the same before and after each of its writes.
    """
    ready, ours = find_condition(host.status.conditions, READY), observed_condition(host) is not None
    if ready is not None and ready.status != "True" and not ours:
        return None
    wanted_now: tuple[Literal["True", "False", "Unknown"], str] | None = {
        HostLife.SILENT: ("Unknown", OBSERVED["silent"]),
        HostLife.CONDEMNED: ("False", OBSERVED["condemned"]),
        HostLife.DEAD: ("False", OBSERVED["dead"]),
        HostLife.ALIVE: ("True", HEARD) if ours else None,
    }.get(life.state)
    if wanted_now is None or (ready is not None and (ready.status, ready.reason) == wanted_now):
        return None
    status, reason = wanted_now
    said = {"silent": "no renewal was received", "condemned": "it is being fenced", "dead": "it is proven dead"}
    return Condition(
        type=READY,
        status=status,
        reason=reason,
        message=said.get(life.state, ""),
        last_transition_time=now,
    )


def _find_unready_since(host: Hypervisor | None) -> datetime | None:
    """Since when its condition ``Ready`` is as it is, where that is not of a host that is well."""
    ready = find_condition(host.status.conditions, READY) if host is not None else None
    return ready.last_transition_time if ready is not None and ready.status != "True" else None


def _format_since(word: str, moment: datetime | None) -> str:
    return f"{word} since {moment:%Y-%m-%d %H:%M:%S} UTC" if moment is not None else word


def shown_clock(moment: datetime, now: datetime) -> str:
    """The time of day in UTC, with the date where that is another one."""
    return f"{moment:%H:%M:%S}" if moment.date() == now.date() else f"{moment:%Y-%m-%d %H:%M:%S}"


def _condemned_text(host: Hypervisor | None, member: Membership, cluster: Cluster | None, sight: RenewalSight) -> str:
    if is_unproven(member.record):
        return "condemned, not proven dead"
    due = proof_due(host, member, cluster)
    if due is None:
        return "condemned (proofs are looked for)"
    if as_instant(due) < as_instant(sight.at):
        return f"condemned (proof was due at {shown_clock(due, sight.at)})"
    return f"condemned (proof by {shown_clock(due, sight.at)})"


def is_unproven(record: MemberRecord) -> bool:
    """Whether every kind of proof has failed for a host that is being fenced, so that only a person can say more; the
    kinds are tried again all the while."""
    failed = {one.kind for one in record.fence.unproven}
    return record.fence.phase == "unconfirmed" or failed.issuperset(AWAITED)


def proof_due(host: Hypervisor | None, member: Membership, cluster: Cluster | None) -> datetime | None:
    """When the first kind of proof is expected that is on its way; ``None``: none can be, or nobody noted when the host
    was condemned.

    By power as ``power_forecast`` has it, by the guard after the wait for its watchdog; both count from the last
    renewal, which lay the suspicion of its profile before it was condemned.
    """
    record, ready = member.record, find_condition(host.status.conditions, READY) if host is not None else None
    if host is None or ready is None or ready.reason != OBSERVED[HostLife.CONDEMNED]:
        return None
    since = ready.last_transition_time
    if since is None or record.state != "Revoked" or record.dead_through >= record.epoch:
        return None
    settings = HostSettings(cluster, host)
    profile = profile_of(settings.cluster_spec.fencing, settings.fencing, armed=record.guard.armed)
    kinds: dict[str, float] = {}
    answer_s = host.status.power_answer_s
    can_power = settings.fencing.driver not in ("", "none") and not settings.keeps_power(as_instant(since))
    if can_power and answer_s is not None and "power" not in record.distrusted:
        kinds["power"] = power_forecast(profile, answer_s).total_s
    if record.guard.armed and "watchdog" not in record.distrusted:
        kinds["watchdog"] = profile.watchdog_wait_s
    if len(kinds) < settings.demanded:
        return None
    last_s = sorted(kinds.values())[settings.demanded - 1]
    return as_datetime(as_instant(since) + math.ceil(max(0.0, last_s - profile.suspicion_s)))


# VMs


def vm_liveness(vm: VirtualMachine, hosts: Mapping[str, HostLiveness]) -> VmLiveness:
    """How the VM is; ``hosts``: how those are that it names, of the same moment."""
    where = hosts.get(vm.host)
    if where is not None and not where.watched:
        return _foreign_vm_liveness(vm, where)
    running, doubtful = _split_holders(running_entries(vm), hosts)
    move = active_move(vm)
    if move is not None and move.phase is MigrationPhase.TRANSFERRING and not _is_alive(hosts.get(move.target)):
        # after the switch of a move by post-copy the guest is nowhere but at the target, and nobody noted the switch
        running, doubtful = [], [*running, *doubtful]
    recovery = vm.status.recovery
    if running:
        return _build_vm_liveness(
            VmLife.RUNNING, since=min((one.since for one in running if one.since is not None), default=None)
        )
    if recovery is not None and recovery.phase is RecoveryPhase.HELD and is_to_run(vm):
        _, may_run = _split_holders(vm.status.holders, hosts)
        return _build_vm_liveness(
            VmLife.WAITING, recovery.reason, _last_step(recovery), _may_run(recovery.reason, may_run)
        )
    if doubtful:
        return _build_doubtful(doubtful[0], hosts)
    return _vm_not_running(vm, hosts) if is_to_run(vm) else _vm_at_rest(vm, hosts)


def _foreign_vm_liveness(vm: VirtualMachine, host: HostLiveness) -> VmLiveness:
    if is_to_run(vm) and vm.status.phase in RUNNING_WORDS:
        if host.doubtful:
            return VmLiveness(state=VmLife.UNKNOWN, text=f"unknown: its host is {host.text}")
        return VmLiveness(state=VmLife.RUNNING, since=vm.status.observed_at, text="running, as its source says")
    return VmLiveness(
        state=VmLife.STOPPED, since=vm.status.observed_at, text=f"{vm.status.phase or 'stopped'}, as its source says"
    )


def running_entries(vm: VirtualMachine) -> list[Holder]:
    """The entries that say that the VM runs, without that of a source whose guest ended in a transfer."""
    move = vm.status.migration
    over = move is not None and move.phase in (MigrationPhase.TRANSFERRED, MigrationPhase.STOPPED)
    left = move.source if move is not None and over else None
    return [one for one in vm.status.holders if one.seen == "running" and one.hypervisor != left]


def _split_holders(holders: Iterable[Holder], hosts: Mapping[str, HostLiveness]) -> tuple[list[Holder], list[Holder]]:
    """The entries of hosts that live, and those of hosts of which nobody knows."""
    alive, doubtful = list[Holder](), list[Holder]()
    for one in holders:
        host = hosts.get(one.hypervisor)
        present = host is not None and (host.uid, host.epoch) == (one.member_uid, one.epoch)
        over = host is not None and host.uid == one.member_uid and one.epoch <= host.dead_through
        if host is not None and present and host.state is HostLife.ALIVE:
            alive.append(one)
        elif host is None or not (over or host.state in (HostLife.DEAD, HostLife.STOPPED)):
            doubtful.append(one)
    return alive, doubtful


def _is_alive(host: HostLiveness | None) -> bool:
    return host is not None and host.state is HostLife.ALIVE


def _may_run(reason: str, holders: list[Holder]) -> str:
    names = sorted({one.hypervisor for one in holders})
    if names:
        return f"it may still run on {join_parts(names, most=3)}"
    return "it may still run" if reason in UNPROVEN_REASONS else ""


def _build_doubtful(holder: Holder, hosts: Mapping[str, HostLiveness]) -> VmLiveness:
    host = hosts.get(holder.hypervisor)
    said = host.text if host is not None else "unknown"
    if _is_alive(host):
        said = "alive, and has not said of it what is so now"
    return VmLiveness(
        state=VmLife.UNKNOWN,
        since=host.since if host is not None else None,
        text=f"unknown: its host {holder.hypervisor} is {said}",
    )


def _vm_not_running(vm: VirtualMachine, hosts: Mapping[str, HostLiveness]) -> VmLiveness:
    """Of one that is wanted and that no host is known to run."""
    recovery, order, rejection = vm.status.recovery, current_order(vm), current_rejection(vm)
    alive, doubtful = _split_holders(vm.status.holders, hosts)
    if doubtful:
        return _build_doubtful(doubtful[0], hosts)
    host = hosts.get(vm.host)
    if host is not None and host.state in (HostLife.SILENT, HostLife.CONDEMNED, HostLife.UNKNOWN):
        return VmLiveness(
            state=VmLife.UNKNOWN, since=host.since, text=f"unknown: it was to start on {vm.host}, which is {host.text}"
        )
    if rejection is not None:
        return _build_vm_liveness(VmLife.WAITING, rejection.reason, detail=rejection.message)
    if order is not None and order.waits_for:
        return _build_vm_liveness(
            VmLife.WAITING, "starts-after", order.since, f"starts after {join_parts(order.waits_for, most=3)}"
        )
    if not vm.host and not alive:
        return _build_vm_liveness(VmLife.WAITING, "on-no-host")
    if host is not None and host.state in (HostLife.DEAD, HostLife.STOPPED) and not alive:
        return _build_vm_liveness(VmLife.DOWN, f"host-{host.state}", host.since)
    if vm.status.reason in BLOCKED_BY_OTHERS:
        return _build_vm_liveness(VmLife.WAITING, vm.status.reason, detail=vm.status.message)
    since = _last_step(recovery) if recovery is not None and recovery.unfinished else None
    return _build_vm_liveness(VmLife.STARTING, vm.status.reason, since, vm.status.message)


def _vm_at_rest(vm: VirtualMachine, hosts: Mapping[str, HostLiveness]) -> VmLiveness:
    """Of one that is not wanted, or that failed, and that no host is known to run."""
    alive, doubtful = _split_holders(vm.status.holders, hosts)
    if doubtful:
        return _build_doubtful(doubtful[0], hosts)
    if state_of(vm) == VmState.FAIL:
        return _build_vm_liveness(VmLife.DOWN, vm.status.reason or "failed", detail=vm.status.message)
    if alive and active_move(vm) is None:
        return _build_vm_liveness(VmLife.STOPPED, "stopping")
    return _build_vm_liveness(VmLife.STOPPED, vm.status.reason)


def _last_step(recovery: Recovery) -> datetime | None:
    return recovery.steps[-1].at if recovery.steps else None


def _build_vm_liveness(state: VmLife, reason: str = "", since: datetime | None = None, detail: str = "") -> VmLiveness:
    text = f"{state}: {reason}" if reason else str(state)
    text = _format_since(text, since) if since is not None else text
    return VmLiveness(state=state, reason=reason, since=since, text=f"{text} ({detail})" if detail else text)


# All of them at one moment


class ClusterLiveness:
    """How hosts and VMs are at the moment of one ``RenewalSight``, each worked out once, when it is wanted."""

    def __init__(
        self,
        sight: RenewalSight,
        cluster: Cluster | None,
        find_host: Callable[[str], Hypervisor | None],
        find_member: Callable[[str], Membership | None],
    ) -> None:
        self.sight = sight
        self._cluster = cluster
        self._find_host = find_host
        self._find_member = find_member
        self._hosts: dict[str, HostLiveness] = {}

    def liveness_of_host(self, name: str) -> HostLiveness:
        """How the host is; one that nobody knows is no member."""
        found = self._hosts.get(name)
        if found is None:
            host, member = self._find_host(name), self._find_member(name)
            found = self._hosts[name] = host_liveness(name, host, member, self._cluster, self.sight)
        return found

    def liveness_of_vm(self, vm: VirtualMachine) -> VmLiveness:
        """How the VM is."""
        names = {vm.host, *(one.hypervisor for one in vm.status.holders)} - {""}
        return vm_liveness(vm, {name: self.liveness_of_host(name) for name in names})

    def cells_of(self, obj: Resource) -> dict[str, str]:
        """Column → what is printed in it of an object instead of what its document says; empty for other kinds."""
        if isinstance(obj, VirtualMachine):
            return {"State": self.liveness_of_vm(obj).text}
        if not isinstance(obj, Hypervisor):
            return {}
        life = self.liveness_of_host(obj.name)
        if not life.watched:
            return {"State": life.text}
        ready = {HostLife.SILENT: "Unknown", HostLife.UNKNOWN: "Unknown", HostLife.ALIVE: ""}.get(life.state, "False")
        return {"State": life.text, **({"Ready": ready} if ready else {})}
