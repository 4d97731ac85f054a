"""What recovery observes: hosts, slots and VMs as its caches show them, and how long each host has been silent.

VMs are found by what their own documents say (who holds them, where they are assigned, whether a recovery of them was
begun), never by a list of what ran on a host. Caches may be old: facts that a write rests on either only ever turn true
(a proof of death) or are read again before the write. Ages are judged on this process's own clock from when it first
saw a state: a restart, or another leader, only makes everybody wait once more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from typing import Final

import msgspec

from outlive.base import Clock, as_datetime, as_instant
from outlive.node.fencing import Departure, HostSettings, Profile, absence_limit_s, departure_of, profile_of
from outlive.node.membership import MemberView, find_member, is_fenced, is_proven_dead, member_view, proof_of
from outlive.node.vm import current_order, current_rejection, reach_of, was_requested_since
from outlive.placement import Group, Peers, RuleVerdict, VmView, demands_of, judge, view_of_resource
from outlive.recovery.deaths import Death, FlapView, death_of, failures_of, find_died_together, update_quarantine
from outlive.recovery.informers import (
    ASSIGNED_INDEX,
    CONSUMER_INDEX,
    DELETED_INDEX,
    DELETED_KEY,
    DESTINATION_INDEX,
    DOUBT_S,
    HOLDER_INDEX,
    MEMBER_INDEX,
    RECOVERY_INDEX,
    UNFINISHED_KEY,
    RecoveryInformers,
    Since,
    members_of,
)
from outlive.recovery.model import AffectedVm, HolderState, HostHealth, HostState, RecoveryView, SlotState
from outlive.recovery.states import find_losing_fence, is_recovered, is_unfinished, rejection_of
from outlive.resources import (
    CLUSTER,
    Amounts,
    Cluster,
    Disarmed,
    FencingPolicy,
    FencingSpec,
    FreeFunction,
    Holder,
    HostFailure,
    Hypervisor,
    HypervisorStatus,
    Limits,
    Membership,
    Recovery,
    RecoveryLimits,
    RecoveryPhase,
    RenewalSight,
    VirtualMachine,
    active_move,
    explain_out_of_service,
    free_functions,
    is_lost,
    is_only_emptied,
    is_to_run,
    limits_of,
    lost_places,
)
from outlive.resources.reasons import LOCKED, OF_EVERY_HOST, HoldReason, Reason

WAITS_FOR_HOST: Final = (HoldReason.HOST_STOPPED, HoldReason.HOST_NOT_JOINED, HoldReason.HOST_AWAITED)
"""Nothing was done yet about a VM that is held for one of these."""
REFUSALS: Final = (HoldReason.REFUSED, HoldReason.RELOCATION_LIMIT, HoldReason.NOT_ELSEWHERE)
"""A VM that is held for one of these is tried again after a while."""
START_LIMIT_S: Final = 60.0
"""How long a host may take to hold a VM that was assigned to it."""
WAITS_MOST_S: Final = 3600.0
"""How much longer at most it may take where it says that the VM waits for others."""
UNATTENDED_S: Final = 60.0
"""How long a host has to be silent before it is reported that no coordinator attends to it."""
FORGIVE_S: Final = 30.0
"""After so long without any other place the hosts that refused are asked again …"""
FORGIVE_MOST_S: Final = 600.0
"""… and ever later, but at least so often."""
FORGIVE_SHARE: Final = 0.25
"""Of the time since its recovery began, a VM that is held waits for so much until then."""
_replace = msgspec.structs.replace


class RecoveryObserver:
    """Gathers the view of a plan from the caches."""

    def __init__(
        self,
        informers: RecoveryInformers,
        clock: Clock,
        priority: Callable[[VmView], int],
        incarnation: Callable[[], str],
    ) -> None:
        """``incarnation``: what the store says of itself, empty where it says nothing."""
        self._informers = informers
        self.incarnation = incarnation
        self._clock = clock
        self._priority = priority
        self._waiting = Since(clock)
        self._held = Since(clock)
        self._states: dict[str, tuple[tuple[object, ...], AffectedVm]] = {}
        """By VM: all that its state was worked out from, and the state."""
        self._deaths: tuple[Death, ...] = ()
        self._together: dict[tuple[str, datetime], tuple[str, ...]] = {}
        """Of the present look: who died, and who with whom."""
        self._attended = Since(clock)
        """Whether a coordinator lives."""
        self._renewed = Since(clock)
        """Versions of Memberships, from when they were received."""
        self._heard: set[str] = set()
        """Hosts whose Membership has changed since this process first read it, or that came later."""
        self._began_s = clock.monotonic()
        informers.memberships.subscribe(self._member_changed)

    def _member_changed(self, old: Membership | None, new: Membership | None) -> None:
        if new is not None:
            self._renewed.see(new.name, (new.metadata.uid, new.metadata.resource_version))
            if old is not None and (new.record.epoch, new.record.seq) < (old.record.epoch, old.record.seq):
                self._heard.discard(new.name)  # the store did, and nobody renewed
            elif old is not None or self._informers.memberships.synced:
                self._heard.add(new.name)
        elif old is not None:
            self._renewed.forget(old.name)
            self._heard.discard(old.name)

    def observe_renewals(self) -> RenewalSight:
        """What this process sees of the renewals now."""
        now_s, memberships = self._clock.monotonic(), self._informers.memberships
        stalled_s = memberships.stalled_s()
        blind = "" if memberships.synced else "the server is starting"
        if stalled_s > DOUBT_S:
            blind = f"the server has not reached the store for {stalled_s:.0f} s"
        members = [one for one in memberships.items() if one.record.state == "Held"]
        silent: dict[str, float] = {}
        for one in members:
            elapsed_s, host = self._renewed.elapsed_s(one.name), self._informers.hypervisors.get(one.name)
            if elapsed_s > self._silence_s(host, armed=one.record.guard.armed):
                silent[one.name] = elapsed_s
        return RenewalSight(
            at=as_datetime(self._clock.now()),
            blind=blind,
            silent={} if blind else silent,
            unheard=tuple(one.name for one in members if one.name not in self._heard),
            started_s=now_s - self._began_s,
        )

    # One look

    def observe(self) -> RecoveryView:
        """Every VM with a fenced or condemned holder, with an unfinished recovery, with a slot as its consumer, or that
        its host does not start."""
        self._deaths, self._together = (), {}
        unattended = self._unattended_hosts()
        # hosts that went down cleanly and whose VMs wait for them, by their policy
        awaited = frozenset(one.name for one in self._informers.hypervisors.items() if self._is_awaited(one.name))
        vms = self._find_concerned({*unattended, *awaited})
        reservations = self._informers.reservations
        gone = [name for name in reservations.index_keys(CONSUMER_INDEX) if name not in vms]
        slots = {slot.name: slot for name in vms for slot in reservations.list_by_index(MEMBER_INDEX, name)}
        slots |= {
            slot.name: slot for name in (*vms, *gone) for slot in reservations.list_by_index(CONSUMER_INDEX, name)
        }
        shown = [slots[name] for name in sorted(slots)]
        states = tuple(self.vm_state(vm) for vm in vms.values())
        self._waiting.forget_except(vms)
        self._held.forget_except(vms)
        self._states = {name: self._states[name] for name in vms}
        names = {slot.status.host for slot in shown} | {vm.assigned for vm in states}
        names |= {holder.host for vm in states for holder in vm.holders}
        cluster = self._informers.clusters.get(CLUSTER)
        pause = cluster.status.pause if cluster is not None else None
        return RecoveryView(
            vms=states,
            gone=tuple(gone),
            slots=tuple(map(SlotState.from_slot, shown)),
            hosts=tuple(self.host_state(name, unattended, awaited) for name in sorted(names) if name),
            paused=self.is_paused(),
            disarmed=self.disarmed_mode(),
            waits_for=pause.waits_for if pause is not None else (),
            incarnation=cluster.status.store_incarnation if cluster is not None else "",
            start_limit_s=START_LIMIT_S,
            groups=self.find_groups(vms.values()),
            default_selector=cluster.spec.default_selector if cluster is not None else "",
        )

    def _find_concerned(self, away: Collection[str]) -> dict[str, VirtualMachine]:
        """``away``: hosts of which nothing is to be proven now, and whose VMs get that as their reason."""
        vms = self._informers.vms
        found: dict[str, VirtualMachine] = {vm.name: vm for vm in vms.list_by_index(RECOVERY_INDEX, UNFINISHED_KEY)}
        for place in vms.index_keys(HOLDER_INDEX):
            host, _, uid = place.partition("/")
            if self._may_have_died(host, uid):
                found.update(
                    (vm.name, vm) for vm in vms.list_by_index(HOLDER_INDEX, place) if self._is_concerned(vm, host)
                )
        for place in vms.index_keys(HOLDER_INDEX) if away else ():
            if place.partition("/")[0] in away:
                found.update((vm.name, vm) for vm in vms.list_by_index(HOLDER_INDEX, place) if is_to_run(vm))
        for host in vms.index_keys(ASSIGNED_INDEX):
            member = self.find_member(host)
            starts = member.record.state == "Held" if member is not None else not self._is_ours(host)
            if not starts or host in away:
                found.update((vm.name, vm) for vm in vms.list_by_index(ASSIGNED_INDEX, host) if is_to_run(vm))
        for name in self._informers.reservations.index_keys(CONSUMER_INDEX):
            vm = vms.get(name)
            if vm is not None:
                found[name] = vm
        return {name: found[name] for name in sorted(found)}

    def _is_ours(self, host: str) -> bool:
        """Whether our daemon is to start what is assigned to it; of other hosts VMs are only reported."""
        known = self._informers.hypervisors.get(host)
        return known is not None and known.spec.management == "node"

    def is_managed_elsewhere(self, host: str) -> bool:
        """Whether somebody else manages the host, and answers requests for what is assigned to it; empty: all hosts."""
        if not host:
            return all(one.spec.management != "node" for one in self._informers.hypervisors.items())
        known = self._informers.hypervisors.get(host)
        return known is not None and known.spec.management != "node"

    def _unattended_hosts(self) -> frozenset[str]:
        """Hosts that are silent for long while no coordinator lives: nobody would condemn or report them."""
        if self._has_coordinator():
            return frozenset()
        return frozenset(
            one.name
            for one in self._informers.memberships.items()
            if self._renewed.elapsed_s(one.name) >= UNATTENDED_S
            and self._health_of(one.name, self.find_member(one.name), None) in (HostHealth.SILENT, HostHealth.REVOKED)
        )

    def _has_coordinator(self) -> bool:
        """Whether a coordinator lives, or there are no hosts at all."""
        hosts = self._informers.hypervisors.items()
        return not hosts or any(one.spec.mode == "coordinator" and self.is_live(one.name) for one in hosts)

    def lacks_coordinator(self) -> bool:
        """Whether hosts have joined and no coordinator has lived for so long that it is reported."""
        joined = any(one.record.state == "Held" for one in self._informers.memberships.items())
        lacks = joined and not self._has_coordinator()
        return self._attended.see("", lacks) >= UNATTENDED_S and lacks

    def _is_awaited(self, name: str) -> bool:
        host, cluster = self._informers.hypervisors.get(name), self._informers.clusters.get(CLUSTER)
        if host is None or HostSettings(cluster, host).shutdown_policy != "freeze":
            return False
        member = self.find_member(name)
        gone = departure_of(host, released=member is not None and member.record.state == "Released")
        if not HostSettings(cluster, host).is_awaited(gone):
            return False
        return self._health_of(name, member, host) in (HostHealth.SILENT, HostHealth.RELEASED)

    def _may_have_died(self, host: str, uid: str) -> bool:
        member = self.find_member(host)
        if member is None or member.uid != uid:
            return True
        record = member.record
        return record.state == "Revoked" or record.dead_through > 0 or record.cut.through > 0

    def _is_concerned(self, vm: VirtualMachine, host: str) -> bool:
        """Whether some entry of the host is fenced, of nobody, or of somebody who was condemned."""
        reach = reach_of(vm)
        for holder in vm.status.holders:
            if holder.hypervisor == host:
                members = self.find_members((holder,))
                if not members or is_fenced(holder, members, reach) or members[0].record.state == "Revoked":
                    return True
        return False

    def find_groups(self, vms: Iterable[VirtualMachine]) -> tuple[Group, ...]:
        """The groups of these VMs: who is in each, and on which hosts that are not lost he is, or goes to."""
        rules = dict.fromkeys(rule for vm in vms for rule in vm.spec.affinity_rules)
        groups = []
        for rule in rules:
            members: dict[str, tuple[str, ...]] = {}
            for vm in members_of(self._informers.vms, rule):
                if not vm.status.holders and rejection_of(vm) is not None:
                    continue  # its host does not start it, so it is nowhere
                if hosts := tuple(host for host in sorted(vm.involved_hosts()) if self._may_run_on(host)):
                    members[vm.name] = hosts
            groups.append(Group(rule=rule, members=members))
        return tuple(groups)

    def _may_run_on(self, host: str) -> bool:
        """Whether a VM that is said to be on the host may be, or come to be, running there."""
        member, known = self.find_member(host), self._informers.hypervisors.get(host)
        if member is None:
            return known is not None and known.spec.management != "node"
        return self._health_of(host, member, known) in (HostHealth.LIVE, HostHealth.SILENT)

    def judge(self, vm: VirtualMachine, host: str) -> RuleVerdict:
        """What the VM's rules say of the host, by where the others of its groups are now."""
        return judge(demands_of(vm), host, Peers(self.find_groups((vm,))))

    def soft_objections(self, vm: VirtualMachine) -> tuple[Reason, ...]:
        """The soft rules that it goes against on its host. Members on a host that is being emptied may follow it."""
        peers, known = Peers(), self._informers.hypervisors.get
        for group in self.find_groups((vm,)):
            for name, hosts in group.members.items():
                peers.put(
                    name,
                    (group.rule,),
                    (one for one in hosts if (host := known(one)) is None or not host.closed_reason()),
                )
        return judge(demands_of(vm), vm.host, peers).against

    # Single things

    def find_member(self, host: str) -> MemberView | None:
        """The host's Membership."""
        found = self._informers.memberships.get(host)
        return member_view(found) if found is not None else None

    def find_members(self, holders: Iterable[Holder]) -> tuple[MemberView, ...]:
        """The Memberships that these entries were written under."""
        known = [(holder, self.find_member(holder.hypervisor)) for holder in holders]
        found = [find_member(holder, (view,)) for holder, view in known if view is not None]
        return tuple({(one.host, one.uid): one for one in found if one is not None}.values())

    def host_state(self, name: str, unattended: Collection[str] = (), awaited: Collection[str] = ()) -> HostState:
        """A host as the plan sees it."""
        member, host = self.find_member(name), self._informers.hypervisors.get(name)
        why = explain_out_of_service(host) if host is not None else ""
        return HostState(
            name=name,
            health=self._health_of(name, member, host),
            refuses=f"{name} {why}" if why else "",
            lost_places=lost_places(host) if host is not None else (),
            functions=self._functions_on(host) if host is not None else (),
            drained=host is not None and is_only_emptied(host),
            unattended=name in unattended,
            awaited=name in awaited,
            unconfirmed=member is not None
            and member.record.state == "Revoked"
            and member.record.fence.phase == "unconfirmed",
            vcpu_milli=(host.status.allocation or Amounts()).cpu_milli if host is not None else 0,
            vms=host.status.num_instances if host is not None else 0,
        )

    def _functions_on(self, host: Hypervisor) -> tuple[FreeFunction, ...]:
        """Its virtual functions, and who has them by its own books, or gets them since it was assigned there or is on
        its way there, though the host has not written it yet."""
        found = free_functions(host)
        for vm in self._informers.vms.list_by_index(DESTINATION_INDEX, host.name) if found else ():
            for need in vm.spec.functions if vm.status.holders or rejection_of(vm) is None else ():
                found = tuple(
                    msgspec.structs.replace(one, owner=one.owner or vm.name)
                    if need.is_met_by(one.name, one.pci)
                    else one
                    for one in found
                )
        return found

    def is_live(self, name: str) -> bool:
        """Whether the host holds its membership, and renews it."""
        return self._health_of(name, self.find_member(name), self._informers.hypervisors.get(name)) is HostHealth.LIVE

    def _health_of(self, name: str, member: MemberView | None, host: Hypervisor | None) -> HostHealth:
        if member is None:
            return HostHealth.UNKNOWN
        record = member.record
        if record.state == "Released":  # its own proof: nothing runs there
            return HostHealth.DEAD if self._stays_away(name, host, armed=record.guard.armed) else HostHealth.RELEASED
        if record.dead_through >= record.epoch:
            return HostHealth.DEAD
        if record.state == "Revoked":
            return HostHealth.REVOKED
        silent = self._renewed.elapsed_s(name) > self._silence_s(host, armed=record.guard.armed)
        return HostHealth.SILENT if silent else HostHealth.LIVE

    def _stays_away(self, name: str, host: Hypervisor | None, *, armed: bool) -> bool:
        """Whether a host that left cleanly has not come back in time; one with announced work is waited for."""
        if host is None:
            return False
        settings = HostSettings(self._informers.clusters.get(CLUSTER), host)
        limit_s = absence_limit_s(
            Departure.LEFT,
            self._profile_of(host, armed=armed),
            settings.cluster_spec.fencing.transition_grace_s,
            settings.planned_work(self._clock.now(), Departure.LEFT),
        )
        return self._renewed.elapsed_s(name) > limit_s

    def _silence_s(self, host: Hypervisor | None, *, armed: bool) -> float:
        return float(self._profile_of(host, armed=armed).silence_s)

    def _profile_of(self, host: Hypervisor | None, *, armed: bool) -> Profile:
        cluster = self._informers.clusters.get(CLUSTER)
        policy = cluster.spec.fencing if cluster is not None else FencingPolicy()
        fencing = host.spec.fencing if host is not None else FencingSpec()
        return profile_of(policy, fencing, armed=armed)

    def find_mismarked(self) -> list[str]:
        """Hosts whose status says something else than their Membership does of them, by name."""
        view = self._flap_view()
        return [
            one.name
            for one in self._informers.memberships.items()
            if (host := self._informers.hypervisors.get(one.name)) is not None
            and self.updated_status(host, one, view) != host.status
        ]

    def find_removable(self) -> list[str]:
        """VMs that were deleted and that nobody holds, by name."""
        vms = self._informers.vms.list_by_index(DELETED_INDEX, DELETED_KEY)
        return sorted(vm.name for vm in vms if not vm.status.holders)

    def updated_status(self, host: Hypervisor, member: Membership, view: FlapView | None = None) -> HypervisorStatus:
        """The host's status as its Membership has it: whether it is lost, its deaths, and its quarantine."""
        status, now = host.status, self._clock.now()
        lost = find_losing_fence(member.record)
        if lost is None or bool(lost) == bool(status.lost):
            lost = status.lost
        if member.record.proof is not None or status.deaths or status.quarantine is not None:
            settings = HostSettings(self._informers.clusters.get(CLUSTER), host)
            resting = settings.planned_work(now, Departure.DAEMON) != ""
            deaths, quarantine = update_quarantine(host, member, view or self._flap_view(), now, resting=resting)
            status = _replace(status, deaths=deaths, quarantine=quarantine)
        return status if lost == status.lost else _replace(status, lost=lost)

    def _flap_view(self) -> FlapView:
        cluster = self._informers.clusters.get(CLUSTER)
        hosts = [one for one in self._informers.hypervisors.items() if one.spec.management == "node"]
        return FlapView(
            policy=cluster.spec.fencing if cluster is not None else FencingPolicy(),
            together=self._find_died_together,
            hosts=len(hosts),
            quarantined=sum(one.status.quarantine is not None for one in hosts),
        )

    def _find_died_together(self, host: str, at: datetime) -> tuple[str, ...]:
        """Other hosts that died at about that time, or are dying if that is now; worked out once in each look."""
        key = (host, at)
        if key not in self._together:
            if not self._deaths:
                found = []
                for one in self._informers.memberships.items():
                    silence_s = self._silence_s(self._informers.hypervisors.get(one.name), armed=one.record.guard.armed)
                    silent = self._renewed.elapsed_s(one.name) > silence_s
                    found.append(death_of(one.name, one.record, silent=silent))
                self._deaths = tuple(filter(None, found))
            now = as_datetime(self._clock.now())
            self._together[key] = tuple(find_died_together(host, at, self._deaths, now))
        return self._together[key]

    def host_failures(self, vm: VirtualMachine) -> tuple[HostFailure, ...]:
        """Hosts that died under it, one soon after the other; none once a user has asked for it all the same."""
        record, holders = vm.status.recovery, vm.status.holders
        if was_requested_since(vm):
            return ()
        before = record.host_failures if record is not None else ()
        if not any(one.since is not None for one in holders):
            return before
        reach, members = reach_of(vm), self.find_members(holders)
        proofs = {
            one.run_id: proof
            for one in holders
            if is_proven_dead(one, members) and (proof := proof_of(one, members, reach)) is not None
        }
        if not proofs:
            return before
        return failures_of(
            before,
            holders,
            proofs,
            self._find_died_together,
            self._silence_of,
            self.get_limits(vm),
        )

    def _silence_of(self, host: str) -> float:
        """For how long the host is silent before it is condemned."""
        member = self.find_member(host)
        armed = member is not None and member.record.guard.armed
        return self._silence_s(self._informers.hypervisors.get(host), armed=armed)

    def cluster_is_lost(self, cluster: Cluster | None) -> bool:
        """Whether what ``Cluster/default`` said is gone."""
        return is_lost(cluster, (one.record for one in self._informers.memberships.items()))

    def is_paused(self) -> bool:
        """True if the cluster is paused, by the cache; each write reads it again.

        What the store says of itself counts before what is written down, so that nothing happens in between.
        """
        cluster = self._informers.clusters.get(CLUSTER)
        if self.cluster_is_lost(cluster):
            return True
        return cluster is not None and (cluster.paused or not cluster.status.knows(self.incarnation()))

    def disarmed_mode(self) -> Disarmed:
        """How the cluster is disarmed, if it is: nothing is recovered then."""
        cluster = self._informers.clusters.get(CLUSTER)
        return cluster.spec.disarmed_mode(self._clock.now()) if cluster is not None else ""

    def get_limits(self, vm: VirtualMachine) -> Limits:
        """How often it is tried."""
        cluster = self._informers.clusters.get(CLUSTER)
        return limits_of(vm.spec.recovery, cluster.spec.recovery if cluster is not None else RecoveryLimits())

    def last_recovery(self, vm: VirtualMachine) -> Recovery | None:
        """Its last recovery, where what happened in it still counts: it has not run for long since."""
        record = vm.status.recovery
        if record is None or record.unfinished or not record.steps or rejection_of(vm) is None:
            return None
        ran_s = self._clock.now() - as_instant(record.steps[-1].at)
        return record if 0 <= ran_s < self.get_limits(vm).reset_s else None

    def vm_state(self, vm: VirtualMachine) -> AffectedVm:
        """A VM as the plan sees it; from look to look nothing changes of most but for how long they have waited."""
        status = vm.status
        members = self.find_members(status.holders)
        away = self._is_awaited(vm.host)  # a VM that waits for its host has not waited for its start
        since = (status.assigned, status.holders, status.rejection, self.disarmed_mode(), away)
        waited_s = self._waiting.see(vm.name, since)
        late = waited_s >= START_LIMIT_S + _wait_limit_s(vm)
        failed = tuple(dict.fromkeys(one.host for one in self.host_failures(vm)))
        inputs = (
            vm,
            members,
            self.fence_id(vm),
            late,
            self.is_forgiven(vm),
            self.last_recovery(vm),
            self.get_limits(vm),
            failed,
        )
        known = self._states.get(vm.name)
        if known is None or known[0] != inputs:
            self._states[vm.name] = known = (inputs, self._build_vm_state(*inputs))
        return _replace(known[1], waited_s=waited_s)

    def _build_vm_state(
        self,
        vm: VirtualMachine,
        members: tuple[MemberView, ...],
        fence: str,
        late: bool,
        forgiven: bool,
        before: Recovery | None,
        limits: Limits,
        failed: tuple[str, ...],
    ) -> AffectedVm:
        """All of a VM's state but how long it has waited; ``late``: whether that is longer than it should."""
        status, reach, view = vm.status, reach_of(vm), view_of_resource(vm)
        where, record, move = status.assigned, status.recovery, active_move(vm)
        begun = record if is_unfinished(vm) else None
        counts, said = begun or before, rejection_of(vm)
        refusal = (said.message or "it gave no reason") if said is not None else ""
        avoid: list[str] = [one.hypervisor for one in counts.rejected] if counts is not None else []
        order = current_order(vm)
        waits = order is not None and order.waits_for != ()
        if where is not None and (refusal or late):
            avoid.append(where.hypervisor)
        tried = tuple(dict.fromkeys(avoid))
        if forgiven and record is not None and record.reason != HoldReason.RELOCATION_LIMIT:
            avoid = []
        asked = was_requested_since(vm)
        return AffectedVm(
            id=vm.name,
            fence=fence,
            priority=self._priority(view),
            cpu_milli=view.cpu_milli,
            memory_bytes=view.memory_bytes,
            wanted=is_to_run(vm),
            mode=vm.spec.recovery.mode,
            asked=asked,
            holders=tuple(
                HolderState(
                    host=one.hypervisor,
                    fenced=is_fenced(one, members, reach),
                    known=find_member(one, members) is not None,
                    uid=one.member_uid,
                )
                for one in status.holders
            ),
            assigned=where.hypervisor if where is not None else "",
            slot=where.slot.name if where is not None and where.slot is not None else "",
            arriving=where is not None and move is not None and move.target == where.hypervisor,
            unfinished=begun is not None,
            waits_for_host=begun is not None and not asked and _is_held_for(begun, *WAITS_FOR_HOST),
            running=is_recovered(vm, members) and not any(is_proven_dead(one, members) for one in status.holders),
            refusal=refusal,
            blocked=_blocking_message(vm) if begun is not None else "",
            blocked_by_itself=begun is not None and _is_blocked_by_itself(vm),
            avoid=tuple(dict.fromkeys(avoid)),
            tried=tried,
            failed_hosts=failed,
            max_host_failures=limits.max_host_failures,
            relocations=counts.relocations if counts is not None and not forgiven else 0,
            max_relocations=limits.max_relocations,
            after=vm.spec.start_after,
            waits_for=order.detail if order is not None and waits else "",
            wait_limit_s=_wait_limit_s(vm),
            host_limit=view.host_limit,
            disks=vm.spec.disks,
            functions=vm.spec.functions,
            rules=vm.spec.affinity_rules,
            preferred=vm.spec.preferred_hosts.weights,
            selector=vm.spec.selector,
        )

    def is_forgiven(self, vm: VirtualMachine) -> bool:
        """Whether the VM was held for so long, since hosts refused it, that it is tried again."""
        record = vm.status.recovery
        refused = record is not None and _is_held_for(record, *REFUSALS)
        held_s = self._held.see(vm.name, refused)
        if record is None or not refused:
            return False
        begun_s = self._clock.now() - as_instant(record.steps[0].at) if record.steps else 0.0
        return held_s >= min(max(FORGIVE_S, FORGIVE_SHARE * begun_s), FORGIVE_MOST_S)

    def fence_id(self, vm: VirtualMachine) -> str:
        """The identity of this recovery: what is stored already, else named after the host that died."""
        record, where = vm.status.recovery, vm.status.assigned
        if record is not None and is_unfinished(vm) and record.fence:
            return record.fence
        for slot in self._informers.reservations.list_by_index(CONSUMER_INDEX, vm.name):
            consumer = slot.status.consumer
            here = where is not None and slot.status.host == where.hypervisor
            if consumer is not None and not here:
                return consumer.fence
        for holder in vm.status.holders:
            for member in self.find_members((holder,)):
                fence = member.record.fence
                return fence.id if fence.id and fence.epoch == holder.epoch else f"{holder.hypervisor}.{holder.epoch}"
        host = where.hypervisor if where is not None else ""
        assigned = self.find_member(host) if host else None
        if assigned is None:
            return host or f"unassigned.{vm.name}"
        fence = assigned.record.fence
        return fence.id if fence.id and fence.epoch == assigned.record.epoch else f"{host}.{assigned.record.epoch}"


def _is_held_for(record: Recovery, *reasons: HoldReason) -> bool:
    return record.phase is RecoveryPhase.HELD and record.reason in reasons


def _wait_limit_s(vm: VirtualMachine) -> float:
    """How much longer than others it may take to start, because it waits for some."""
    order = current_order(vm)
    return min(order.limit_s, WAITS_MOST_S) if order is not None and order.waits_for != () else 0.0


def _blocking_message(vm: VirtualMachine) -> str:
    """What the host that the VM is assigned to says is in every host's way."""
    said = current_rejection(vm)
    return said.message if said is not None and said.stays else ""


def _is_blocked_by_itself(vm: VirtualMachine) -> bool:
    said = current_rejection(vm)
    return said is not None and said.stays and said.reason in OF_EVERY_HOST - LOCKED
