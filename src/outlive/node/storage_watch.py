"""Looks whether storage serves the virtual machines of this host, and says so where it does not.

Three things are looked at: what the hypervisor says of guests that a failed disk paused, requests of guests that get no
answer, and whether this host reaches what their disks lie on. Whatever hangs, a look ends in time. What is found is a
fault and the reason of each virtual machine; their workers and ``host.storage`` do the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from outlive.base import NotFound, OutliveError, as_datetime, count_of, deadline, get_logger
from outlive.node.health import LeaveVerdict
from outlive.node.ports import PLACES_LIMIT, REACH_S, DomainState
from outlive.node.storage_loss import STORAGE_LOST, WHAT_NOW, LossKind, LostGuest, StorageInput, StuckRequests
from outlive.resources import Coverage, ObjectRef, StorageLoss, VirtualMachine, is_to_run, limits_of
from outlive.resources.reasons import FaultCode, Reason, VmReason, make_reason
from outlive.runtime import OrderedTaskGroup, Periodic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from outlive.node.health_monitor import HealthMonitor, PeerHealth
    from outlive.node.vm.context import VmContext

WATCH_S: Final = 2.0
"""Between two looks."""
STUCK_S: Final = 8.0
"""A guest that waits for so long without any answer of its disks is stuck."""
UNREACHED_LOOKS: Final = 2
"""Looks in a row that storage must not have answered."""
QUIET_S: Final = 10.0
"""What was found wrong is over once it was not found for so long."""
ANSWER_S: Final = REACH_S + 1.0
"""How long one look waits for anybody."""
PEERS_S: Final = 10.0
"""How often the other hosts are looked at while something is to be done."""
SUSPECTS_SHARE: Final = 0.75
"""Of the places that one look asks, so many may be ones that did not answer before."""
PUBLISHED_LIMIT: Final = 64
"""Places of one kind that are published by name."""
LEFT: Final = "it is not sent here before the storage answers"
"""What becomes of virtual machines that have left a host that does not reach their storage."""
HANGS: Final = "its process does not end, so that it may not start elsewhere before its host is proven dead"
_log = get_logger("node.storage")


@dataclass(frozen=True, slots=True)
class Loss:
    """That storage does not serve one virtual machine; times are monotonic."""

    run_id: str
    kind: LossKind
    why: str
    since_s: float
    seen_s: float
    """When it was found last."""
    places: tuple[str, ...] = ()
    """Those of its disks that are not reached."""


@dataclass(slots=True)
class StorageLosses:
    """What is known of it, for the workers of virtual machines."""

    by_vm: dict[str, Loss] = field(default_factory=dict)
    restart: frozenset[str] = frozenset()
    """Those that are to be ended here, so that they start elsewhere."""
    hanging: dict[str, None] = field(default_factory=dict)
    """Those whose process does not end."""
    then: LeaveVerdict = LeaveVerdict.OFF
    looked: bool = False
    """Whether ``published`` says something: storage was looked at."""
    published: StorageLoss | None = None
    reached: tuple[str, ...] = ()
    """Places that some host of the cluster does not reach, and that this one does."""

    def reason_of(self, vm: str) -> Reason | None:
        """What its document is to say; ``None``: storage serves it."""
        loss = self.by_vm.get(vm)
        if loss is None:
            return None
        return make_reason(VmReason.STORAGE_LOST, why=loss.why, then=self.describe_consequence(vm))

    def describe_consequence(self, vm: str) -> str:
        """What becomes of it."""
        return HANGS if vm in self.hanging else WHAT_NOW.get(self.then, WHAT_NOW[LeaveVerdict.OFF])


@dataclass(frozen=True, slots=True)
class LostPlace:
    """A place of storage that this host does not reach."""

    why: str
    seen_s: float
    """When it did not answer last."""


def next_places(places: Collection[str], suspects: Collection[str], asked_s: Mapping[str, float]) -> tuple[str, ...]:
    """Those that one look asks: what was not reached before first, then the others, longest not asked first."""
    oldest = sorted(places, key=lambda place: (asked_s.get(place, float("-inf")), place))
    others = [place for place in oldest if place not in suspects]
    room = PLACES_LIMIT - min(len(others), PLACES_LIMIT - int(SUSPECTS_SHARE * PLACES_LIMIT))
    first = [place for place in oldest if place in suspects][:room]
    return (*first, *others[: PLACES_LIMIT - len(first)])


def published_places(lost: Collection[str]) -> tuple[str, ...]:
    """By name; of a kind with too many, the kind alone."""
    of_kind: dict[str, list[str]] = {}
    for place in sorted(lost):
        of_kind.setdefault(place.partition(":")[0], []).append(place)
    return tuple(
        one for kind, some in of_kind.items() for one in (some if len(some) <= PUBLISHED_LIMIT else (f"{kind}:",))
    )


class StorageWatch:
    """See the module."""

    def __init__(
        self, node: VmContext, health: HealthMonitor, peers: PeerHealth, *, enqueue: Callable[[str], None]
    ) -> None:
        """``enqueue``: have the worker of a virtual machine look at it."""
        self._node = node
        self._health = health
        self._peers = peers
        self._enqueue = enqueue
        self._losses = node.losses
        self._stuck = StuckRequests(STUCK_S)
        self._misses: dict[str, int] = {}
        """Place → how many times in a row it was asked and not reached."""
        self._asked_s: dict[str, float] = {}
        """Place → when it was asked last."""
        self._lost: dict[str, LostPlace] = {}
        """Those that are lost, also once nobody here uses them any more, until they answer."""
        self._peers_s = float("-inf")
        self._waiting: dict[str, str] = {}
        """Guests whose disk requests were stuck at the last look that was answered, and their runs."""

    async def run(self) -> None:
        """Until cancelled."""
        await Periodic(self.inspect, WATCH_S, clock=self._node.clock).run()

    async def inspect(self) -> None:
        """Look once, say what was found, and decide what is done about it."""
        node = self._node
        if not node.lease.held or not node.domains.looked:
            return
        vms = {name: vm for name in node.domains.by_vm if (vm := node.informer.get(name)) is not None}
        if not self._losses.looked:
            self._adopt()
        async with OrderedTaskGroup() as group:  # what hangs in one of both costs the other no time
            stuck = group.create_task(self._ask_guests(), name="ask how the disks of guests do")
            unreached = group.create_task(self._ask_storage(vms), name="ask whether storage is reached")
        found = self._find_losses(vms, stuck.result(), unreached.result())
        before = {vm: self._losses.reason_of(vm) for vm in self._losses.by_vm}
        self._remember(found)
        try:
            await self._decide(vms, found)
        except OutliveError as error:  # what was decided last holds
            _log.info("storage.not_decided", host=node.host, error=str(error))
        self._report()
        if self._publish():
            node.reported()
        said = {vm: self._losses.reason_of(vm) for vm in self._losses.by_vm}
        for name in sorted({*before, *said}):
            if before.get(name) != said.get(name) or name in self._losses.restart:
                self._enqueue(name)

    async def _ask_guests(self) -> dict[str, str]:
        """Guests whose disk requests are stuck, and their runs.

        If the hypervisor does not answer, those of the last look: its silence says nothing about other guests.
        """
        try:
            with deadline(ANSWER_S):
                seen = await self._node.domains.hypervisor.disk_io()
        except (OutliveError, TimeoutError) as error:
            _log.info("storage.guests_not_asked", host=self._node.host, error=str(error) or "no answer in time")
        else:
            self._waiting = self._stuck.find_stuck(seen, self._node.clock.monotonic())
        return self._waiting

    async def _ask_storage(self, vms: Mapping[str, VirtualMachine]) -> Mapping[str, str]:
        """Places that this host has not reached for long enough, and why: of its guests, and those that were lost when
        guests left."""
        storage, clock = self._node.storage, self._node.clock
        used = {place for vm in vms.values() for disk in vm.spec.disks if (place := storage.find_place(disk))}
        cluster = self._node.desired.cluster
        elsewhere = frozenset(cluster.status.lost_places if cluster is not None else ())
        own = used | self._lost.keys()
        places = own | elsewhere
        self._losses.reached = tuple(place for place in self._losses.reached if place in elsewhere)
        self._misses = {place: count for place, count in self._misses.items() if place in own}
        self._asked_s = {place: at_s for place, at_s in self._asked_s.items() if place in places}
        if not places:
            return {}
        asked = next_places(places, self._misses, self._asked_s)
        began_s, answer = clock.monotonic(), dict[str, str]()
        try:
            with deadline(ANSWER_S):
                answer = dict(await storage.check_reach(asked))
        except TimeoutError:
            answer = dict.fromkeys(asked, "storage does not answer")
        except OutliveError as error:
            _log.info("storage.not_asked", host=self._node.host, error=str(error))
            return {}
        now_s = clock.monotonic()
        mine = [place for place in asked if place in own]
        lost = [place for place in asked if answer.get(place)]
        if used and lost == [place for place in lost if place in own]:  # others cost time that is not its own
            self._health.record_storage_check(REACH_S if lost else max(0.0, now_s - began_s))
        reached = {place for place in elsewhere.intersection(asked) if answer.get(place) == ""}
        self._losses.reached = tuple(sorted(reached.union(self._losses.reached) - (set(asked) - reached)))
        self._asked_s.update(dict.fromkeys(asked, now_s))
        self._learn(mine, answer, now_s)
        return {place: self._lost[place].why for place, misses in self._misses.items() if misses >= UNREACHED_LOOKS}

    def _learn(self, asked: Iterable[str], answer: Mapping[str, str], now_s: float) -> None:
        """Count who was not reached; what has answered for a while is lost no more."""
        for place in asked:
            why = answer.get(place, "")
            if not why:
                self._misses.pop(place, None)
                if place in self._lost and now_s - self._lost[place].seen_s >= QUIET_S:
                    del self._lost[place]
                continue
            self._misses[place] = self._misses.get(place, 0) + 1
            if self._misses[place] >= UNREACHED_LOOKS:
                self._lost[place] = LostPlace(why, now_s)

    def _adopt(self) -> None:
        """Go on from what the daemon before this one has published."""
        host = self._node.desired.hypervisor
        before = host.status.storage_lost if host is not None else None
        self._losses.looked = True
        if before is None or not before.unreached:
            return
        self._losses.published = before
        for place in before.places:
            if place.partition(":")[2]:
                self._lost[place] = LostPlace(before.why, float("-inf"))
                self._misses[place] = UNREACHED_LOOKS

    def _find_losses(
        self, vms: Mapping[str, VirtualMachine], stuck: Mapping[str, str], unreached: Mapping[str, str]
    ) -> dict[str, Loss]:
        """What this look has found wrong, by virtual machine."""
        found: dict[str, Loss] = {}
        now_s, place = self._node.clock.monotonic(), self._node.storage.find_place
        for name, domain in self._node.domains.by_vm.items():
            if domain.state not in (DomainState.RUNNING, DomainState.PAUSED):
                continue
            disks = vms[name].spec.disks if name in vms else ()
            lacks = tuple(dict.fromkeys(at for disk in disks if (at := place(disk)) in unreached))
            if lacks:
                kind, why = LossKind.UNREACHED, f"{self._node.host} does not reach them: {unreached[lacks[0]]}"
            elif domain.io_error:
                kind, why = LossKind.IO_ERROR, "one of them failed, and the hypervisor paused it"
            elif stuck.get(name) == domain.run_id:
                kind, why = LossKind.STUCK, "its requests get no answer"
            else:
                continue
            before = self._losses.by_vm.get(name)
            since_s = before.since_s if before is not None and before.run_id == domain.run_id else now_s
            found[name] = Loss(domain.run_id, kind, why, since_s, now_s, lacks)
        return found

    def _remember(self, found: dict[str, Loss]) -> None:
        """Keep what was found, and for a while what was."""
        now_s, before = self._node.clock.monotonic(), self._losses.by_vm
        here = self._node.domains.by_vm
        lately = {
            vm: one
            for vm, one in before.items()
            if vm in here and here[vm].run_id == one.run_id and now_s - one.seen_s < QUIET_S
        }
        after = self._losses.by_vm = {**lately, **found}
        self._losses.hanging = {vm: None for vm in self._losses.hanging if vm in after}
        for vm in after.keys() - before.keys():
            _log.warning("storage.lost", vm=vm, host=self._node.host, kind=after[vm].kind, why=after[vm].why)
        for vm in before.keys() - after.keys():
            _log.info("storage.back", vm=vm, host=self._node.host)
        self._losses.restart = self._losses.restart.intersection(found)  # what is served again is not ended

    async def _decide(self, vms: Mapping[str, VirtualMachine], found: Collection[str]) -> None:
        """Decide for those that are lost, or were lately; only what was ``found`` at this look is ended."""
        node, losses, now_s = self._node, self._losses, self._node.clock.monotonic()
        if not losses.by_vm:
            losses.restart, losses.then = frozenset(), LeaveVerdict.OFF
            node.lease.withhold("")
            return
        guests = []
        for name, loss in sorted(losses.by_vm.items()):
            vm = vms.get(name)
            if vm is None or vm.host != node.host:
                continue
            limits = limits_of(vm.spec.recovery, node.desired.cluster_spec.recovery)
            guests.append(
                LostGuest(
                    vm=name,
                    kind=loss.kind,
                    places=loss.places,
                    lost_for=max(0.0, now_s - loss.since_s),
                    action=limits.storage_lost,
                    recovers=vm.spec.recovery.mode in ("", "restart") and is_to_run(vm),
                    required=await self._read_required(name) if limits.storage_lost == "fence" else None,
                    hangs=name in losses.hanging,
                )
            )
        policy, cluster = self._health.policy, node.desired.cluster
        given = StorageInput(
            host=node.host,
            guests=tuple(guests),
            settle=max(0.0, policy.settle_s),
            common_share=max(0.0, policy.common_share),
            resting=node.desired.active_maintenance(node.clock.now()) != ""
            or node.desired.cluster_spec.resting_reason(node.clock.now()) != ""
            or (cluster is not None and cluster.paused),
        )
        alone = STORAGE_LOST.function(given)
        if alone.why is not LeaveVerdict.ALONE:
            result = alone
            if alone.why is LeaveVerdict.UNSETTLED and now_s - self._peers_s >= PEERS_S:
                self._peers_s = now_s
                await self._peers.list_peers(policy.common_share)  # so that it is seen later whose figures are new
        elif now_s - self._peers_s < PEERS_S:
            return
        else:
            self._peers_s = now_s
            peers = await self._peers.list_peers(policy.common_share)
            given = msgspec.structs.replace(given, peers=peers)
            result = node.decisions.use(STORAGE_LOST, given, subject=node.host)
        losses.restart, losses.then = frozenset(result.restart).intersection(found), result.why
        node.lease.withhold("its VMs have lost their storage and cannot be ended" if result.fence else "")

    async def _read_required(self, vm: str) -> int | None:
        try:
            return (await self._node.store.get(Coverage, vm)).status.required
        except NotFound:
            return None

    def _report(self) -> None:
        """A fault for each guest, but one for all of those whose storage the host itself does not reach."""
        node, faults, losses = self._node, self._node.faults, self._losses
        single = {vm: one for vm, one in losses.by_vm.items() if one.kind is not LossKind.UNREACHED}
        about = {one.subject.name for one in faults.active if one.code is FaultCode.VM_STORAGE_LOST}
        for vm in about - single.keys():
            faults.clear(FaultCode.VM_STORAGE_LOST, ObjectRef(kind="VirtualMachine", name=vm))
        for vm, one in single.items():
            about_vm = ObjectRef(kind="VirtualMachine", name=vm)
            faults.activate(
                FaultCode.VM_STORAGE_LOST, about_vm, host=node.host, why=one.why, then=losses.describe_consequence(vm)
            )
        host = ObjectRef(kind="Hypervisor", name=node.host)
        lost = [(vm, one) for vm, one in losses.by_vm.items() if one.kind is LossKind.UNREACHED]
        if lost:
            vm, first = next((one for one in lost if one[0] in losses.hanging), lost[0])
            fields = {"vms": count_of(len(lost), "VM"), "why": first.why, "then": losses.describe_consequence(vm)}
            faults.activate(FaultCode.HOST_STORAGE_LOST, host, **fields)
        elif self._lost:
            why = next(iter(self._lost.values())).why
            faults.activate(FaultCode.HOST_STORAGE_LOST, host, vms="VMs that have left it", why=why, then=LEFT)
        else:
            faults.clear(FaultCode.HOST_STORAGE_LOST, host)

    def _publish(self) -> bool:
        """Whether what is published changes."""
        losses, before = self._losses, self._losses.published
        if not losses.by_vm and not self._lost:
            losses.published = None
        else:
            of_host = [one for one in losses.by_vm.values() if one.kind is LossKind.UNREACHED]
            reasons = [one.why for one in of_host] + [one.why for one in self._lost.values()]
            reasons += [one.why for one in losses.by_vm.values()]
            losses.published = StorageLoss(
                since=before.since if before is not None else as_datetime(self._node.clock.now()),
                unreached=bool(self._lost),
                places=published_places(self._lost),
                vms=len(losses.by_vm),
                why=reasons[0],
                then=str(losses.then),
            )
        return losses.published != before
