"""The controller that has OVN follow the VMs of our own hosts.

Level-triggered: one reconcile reads a VM, its ports and where it is, plans its rows and commits what differs in one
transaction. Migrations have a queue of their own, which is worked on first. What is reported of a port lies in its
status; a target of a migration is prepared once OVN has bound its ports and its chassis has the flows.

Two controllers at once do no harm: each transaction holds only if the rows are as they were read.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec

from outlive.base import Clock, Unknown, as_datetime, get_logger
from outlive.network.address_book import AddressBook
from outlive.network.announce import tell_guest
from outlive.network.cleanup import ClusterPause, PortDeletions, RowCleanup, read_pause, runs_unknown
from outlive.network.events import (
    NETWORK_PREFIX,
    VM_PREFIX,
    NetworkEvents,
    NetworkKeys,
    is_noted_arrival,
    noted_move,
    preparation_problem,
    refused_status,
    settled_status,
    unprepared_move,
)
from outlive.network.informers import BY_NETWORK, BY_VM, NetworkInformers, StatusWriter
from outlive.network.names import OWN_NAMESPACE, ROUTED
from outlive.network.operations import Op, Rows
from outlive.network.own_vms import OWN_VM, OwnPort, OwnVmInput, OwnVmResult, own_vm_scope, set_rows
from outlive.network.ports import (
    Chassis,
    NorthboundDb,
    OvnFeatures,
    Receipt,
    SouthboundDb,
)
from outlive.network.scopes import OWN_NETWORK
from outlive.network.stage_times import StageTimes, SwitchOver
from outlive.network.switches import NetworkSwitches
from outlive.network.views import (
    VmPlace,
    foreign_reason,
    host_chassis,
    is_down,
    is_programmed,
    obstacle_of,
    own_port,
    place_of,
    portless_interfaces,
    present_port,
    row_names,
    wants_address,
    was_prepared,
)
from outlive.resources import (
    Announcement,
    PortMove,
    VirtualMachine,
    VirtualMachinePort,
    find_condition,
    interface_id,
    port_mode,
    present_network,
    wanted_mode,
)
from outlive.resources.reasons import NetworkReason, Reason, make_reason
from outlive.runtime import ControllerRun, DecisionLog, Elector, Manager, Metrics, Requeue, Watch
from outlive.store import Store, read

BOUND_LOOK_S: Final = 0.25
"""How often a binding, and the flows of a target, are looked at beside what the southbound database reports."""
WAIT_S: Final = 30.0
"""When a port that could not be programmed is looked at again."""
CHASSIS_S: Final = 5.0
"""How often the chassis are read."""
MOVES_KEPT: Final = 10_000
"""Migrations of which is remembered what was committed for them."""
_replace = msgspec.structs.replace
_log = get_logger("network")


@dataclass(slots=True)
class _VmRows:
    """What is remembered of one VM: only how far its last transaction has come."""

    move: str = ""
    ended: str = ""
    """The migration before, whose end gave the VM the place that it has."""
    activated_s: dict[str, float] = field(default_factory=dict)
    """Ports that the guest's own announcement has switched over to the target → when that was seen."""
    event_s: float = 0.0
    """When the change was seen that the last transaction was for."""
    nb_cfg: int = 0
    committed_s: float = 0.0
    decide_s: float = 0.0
    """Of the last transaction, from the event …"""
    commit_s: float = 0.0
    """… and how long it took."""
    is_overwritten: bool = False
    """Whether somebody else has changed its rows since."""


class NetworkController:
    """See the module. ``attach`` has a manager run it."""

    name = "network"

    def __init__(
        self,
        store: Store,
        informers: NetworkInformers,
        northbound: NorthboundDb,
        southbound: SouthboundDb,
        *,
        metrics: Metrics,
        decisions: DecisionLog,
        clock: Clock,
        emit: Any,
        max_parallel: int = 16,
        gc_period_s: float = 600.0,
        neighbours_limit: int = 256,
    ) -> None:
        self.informers = informers
        self._store = store
        self._nb = northbound
        self._sb = southbound
        self._decisions = decisions
        self._clock = clock
        self._events = NetworkEvents(informers, emit, metrics)
        self._max_parallel = max_parallel
        self._neighbours_limit = neighbours_limit
        self._locks: dict[str, asyncio.Lock] = {}
        self._writer = StatusWriter(store, informers, clock)
        self._addresses = AddressBook(informers, self._writer, northbound, clock)
        self.switches = NetworkSwitches(
            informers, self._writer, northbound, clock, self._events, partial(read_pause, store), self._add_unprogrammed
        )
        self._chassis: dict[str, Chassis] = {}
        self._chassis_read_s = float("-inf")
        """When the last read of them began."""
        self._chassis_lock = asyncio.Lock()
        self._vms: OrderedDict[str, _VmRows] = OrderedDict()
        self._vm_of_port: dict[str, str] = {}
        """Logical port → its VM, of VMs that have ports now …"""
        self._ports_of_vm: dict[str, tuple[str, ...]] = {}
        """… and what of it is there, by VM."""
        self.keys = NetworkKeys(informers, self._events, clock)
        self._deletions = PortDeletions(informers)
        self._runs: tuple[ControllerRun, ...] = ()
        self._decide_s = metrics.add_histogram("network_decide_seconds", "From an event to its transaction", ("queue",))
        self._commit_s = metrics.add_histogram("network_commit_seconds", "Duration of a transaction", ())
        self._times = StageTimes(northbound, self._writer, metrics, events=self._events, decisions=decisions)
        self._cleanup = RowCleanup(
            northbound,
            clock,
            period_s=gc_period_s,
            known=self.keys.list_names,
            look=self._requeue,
            pause=partial(read_pause, store),
            runs=lambda vm: not is_down(informers.vms.get(vm)),
            runs_unknown=partial(runs_unknown, store),
            orphans=metrics.add_gauge("network_orphans", "VMs and networks that are gone and have rows in OVN", ()),
        )
        self._ops = metrics.add_counter("network_operations_total", "Operations committed", ("op",))

    def attach(self, manager: Manager, elector: Elector | None) -> None:
        """Have the manager run both queues, and follow what the databases report."""
        informers = self.informers
        moves = manager.add_controller(
            _Moves(self),
            (Watch(informers.vms, self.keys.find_moving),),
            self._max_parallel,
            elector=elector,
        )
        others = manager.add_controller(
            self,
            (
                Watch(informers.networks, self.keys.find_of_network),
                Watch(informers.ports, self.keys.find_vms_of_port),
                Watch(informers.vms, self.keys.find_vms),
                Watch(informers.hosts, self.keys.find_of_host),
                Watch(informers.clusters, self.keys.find_of_cluster),
            ),
            self._max_parallel,
            elector=elector,
        )
        self._runs = (moves, others)
        manager.add_task("network-bindings", self._follow_bindings, elector=elector, after_sync=True)
        manager.add_task("network-cleanup", self._cleanup.run, elector=elector, after_sync=True)
        manager.add_task("network-rows", self._follow_rows, elector=elector, after_sync=True)
        manager.add_task("network-times", self._times.run, elector=elector)

    # What is looked at again

    def _requeue(self, kind: str, *names: str) -> None:
        for one in names:
            self._runs[1].add((NETWORK_PREFIX if kind == "network" else VM_PREFIX) + one)

    def _add_unprogrammed(self, network: str) -> None:
        """Look again at VMs whose ports waited for the switches of their network."""
        for port in self.informers.ports.list_by_index(BY_NETWORK, network):
            found = find_condition(port.status.conditions, "Programmed")
            if found is None or found.status != "True":
                self._add(port.spec.vm)

    def _add(self, vm: str) -> None:
        moving = place_of(self.informers.vms.get(vm)).move
        self._runs[0 if moving else 1].add(VM_PREFIX + vm)

    async def _follow_bindings(self) -> None:
        """Look again at VMs whose ports were bound, or let go, somewhere."""
        async for names in self._sb.watch_changes():
            for name in sorted(names) or tuple(self._vm_of_port):
                if (vm := self._vm_of_port.get(name)) is not None:
                    self._add(vm)

    async def _follow_rows(self) -> None:
        """Look again at VMs and networks whose rows somebody else changed; networks first, as VMs hang on them."""
        own = f"{OWN_NAMESPACE}/"
        async for names in self._nb.watch_changes():
            changed = sorted(one for one in names if one.startswith(OWN_NETWORK))
            for network in [one.removeprefix(OWN_NETWORK) for one in changed] if names else self.keys.list_names()[1]:
                if self.informers.networks.get(network) is not None:  # else the cleanup looks at what is there of it
                    self._requeue("network", network)
            if not names:
                for vm in dict.fromkeys(self._vm_of_port.values()):
                    self._add(vm)
            for name in sorted(names.difference(changed)):
                found = name.removeprefix(own) if name.startswith(own) else self._vm_of_port.get(name)
                if found is not None:
                    if found in self._vms:
                        self._vms[found].is_overwritten = True
                    self._add(found)

    # Reconciling

    async def reconcile(self, key: str) -> Requeue | None:
        """Bring one VM's rows, or one network's, to what is wanted."""
        if key.startswith(NETWORK_PREFIX):
            return await self.switches.reconcile(key.removeprefix(NETWORK_PREFIX))
        return await self.reconcile_vm(key.removeprefix(VM_PREFIX), "others")

    async def reconcile_vm(self, name: str, queue: str) -> Requeue | None:
        """One VM; one at a time, whichever queue it came from."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                return await self._follow(name, queue)
        finally:
            if not lock.locked() and not getattr(lock, "_waiters", None):
                self._locks.pop(name, None)

    async def _follow(self, name: str, queue: str) -> Requeue | None:
        vm = self.informers.vms.get(name)
        pause = await read_pause(self._store)
        if pause.paused:
            vm = await read(self._store, VirtualMachine, name)
        place = place_of(vm)
        arrived = pause.paused and await self._has_arrived(name, place, pause)
        is_unknown = vm is None and await runs_unknown(self._store, name)
        frozen = is_unknown or (pause.paused and not arrived)
        self.keys.places.pop(name, None)
        if place.host:
            self.keys.places[name] = place
        planned: dict[str, OwnPort] = {}
        problems: dict[str, Reason] = {}
        notices: dict[str, Reason] = {}
        kept: set[str] = set()
        """Logical ports of what is refused now: a VM that runs never has less than before."""
        ports = self.informers.ports.list_by_index(BY_VM, name)
        portless = portless_interfaces(vm, ports)
        for port in ports:
            network = self.informers.networks.get(present_network(port))
            if frozen and (network is None or wants_address(port, network) is not None):
                continue  # whether an address is free is not known
            if is_down(vm) and not frozen and await self._addresses.release(port, network):
                continue  # it comes again, as it is then
            found = await self._judge(port, vm, place, notices)
            if isinstance(found, Reason):
                problems[port.name] = found
                kept |= row_names(port, vm, place) if place.host else set()
            elif found is not None:
                planned[port.name] = found
        unreached = self.informers.find_unreached(planned, place.target)
        if unreached:  # a target that was told that it can have the guest may have it; the cache may be older
            fresh = [await read(self._store, VirtualMachinePort, one) for one in planned]
            unreached = unreached if not all(was_prepared(one, place.move) for one in fresh) else {}
        known, answers_all = self._vms.get(name), self._nb.read_features().arp_proxy_full
        routed = sorted({own.network.name for own in planned.values() if own.network.type == ROUTED})
        proxied = routed if not answers_all else []
        if place.move and not frozen and (known is None or known.move != place.move):
            for one in proxied:  # else the proxy of the target's switch may answer for the guest there
                await self.switches.reconcile(one)
        wanted = OwnVmInput(
            vm=name,
            host=place.host or None,
            target=place.target or None if not unreached else None,
            ports=tuple(planned.values()),
            kept=tuple(sorted(kept)),
            portless=tuple(one for port, one in portless.items() if not self._deletions.has_seen(port, pause)),
            paused=pause.paused or is_unknown,
            arrived=arrived,
        )
        try:
            receipt, result = await self._commit(wanted, place.move, queue)
        except Unknown:  # it may have been committed, and the next try then finds nothing to change
            self._requeue("network", *proxied)
            raise
        if receipt.ops:
            self._requeue("network", *proxied)
        self.keys.frozen.pop(name, None)
        if frozen:
            self.keys.frozen[name] = None
            return Requeue(WAIT_S)  # what the store says is not compared, so nothing is reported
        before = self.keys.portless.pop(name, ())
        if result.portless:
            self.keys.portless[name] = result.portless
        self._events.report_portless(name, [one for one in result.portless if one not in before])
        for port_name in [one for one, own in planned.items() if own.interface in result.foreign]:
            problems[port_name] = foreign_reason(result.foreign[planned.pop(port_name).interface])
        requeue: Requeue | None = Requeue(WAIT_S) if problems or notices else None
        now_at = as_datetime(self._clock.now())
        for port_name in (*planned, *problems):
            self._events.report_port(port_name, problems.get(port_name))
        for port_name, problem in problems.items():
            await self._writer.write_port(port_name, refused_status(problem, place, now_at))
        move = await self._prepare_moves(name, place, planned, receipt, unreached) if place.move else {}
        self._measure(name, place, planned, receipt)
        for port_name, own in planned.items():
            binding = await self._sb.read_binding(interface_id(own.interface, own.mode, place.host))
            self._events.report_notice(port_name, notices.get(port_name))
            change = settled_status(
                own,
                place,
                notices.get(port_name),
                bound=binding is not None and binding.chassis == self._chassis_of(place.host),
                move=move.get(port_name),
                announcements=self._plan_announcements(port_name, own, place),
                at=now_at,
            )
            await self._writer.write_port(port_name, change)
        if place.move and not all(one.prepared for one in move.values()):
            requeue = Requeue(BOUND_LOOK_S)
        return requeue

    async def _has_arrived(self, name: str, place: VmPlace, pause: ClusterPause) -> bool:
        """True if the VM's move has ended at its target in the store as it is now, which has gone back; a move under
        way is noted for that.

        What is noted lies in the store, in which another controller finds it. A store that goes back again has another
        incarnation, and says of older moves as well that they have ended.
        """
        ports = self.informers.ports.list_by_index(BY_VM, name)
        if place.move and pause.incarnation:
            for one in ports:
                await self._writer.write_port(one.name, noted_move(place, pause.incarnation))
        if place.move or not place.host:
            return False
        away = [one.name for one in ports if one.status.active_on != place.host]
        found = [await read(self._store, VirtualMachinePort, one) for one in away]
        is_noted = any(is_noted_arrival(one, place.host, pause.incarnation) for one in found)
        return is_noted and await read_pause(self._store) == pause  # else it went back while that was read

    async def _judge(
        self, port: VirtualMachinePort, vm: VirtualMachine | None, place: VmPlace, notices: dict[str, Reason]
    ) -> OwnPort | Reason | None:
        """The port as it is planned, or why it cannot be; ``None``: its network is none of ours.

        ``notices``: gets what is wrong with one that is planned all the same.
        """
        wanted, port = port.spec.network, present_port(port, vm)
        network = self.informers.networks.get(port.spec.network)
        if not is_programmed(network):
            return None
        overlaps = self.switches.overlap_of(port.spec.network)
        problem = obstacle_of(self.informers.facts_of(port, vm, place, overlaps))
        if problem is not None:
            return problem
        assert network is not None
        assert vm is not None
        addressed = await self._addresses.assign_addresses(port, network, place)
        if isinstance(addressed, Reason):
            return addressed
        mode, new_mode = port_mode(port, network), wanted_mode(port, network)
        if wanted != network.name:
            notices[port.name] = make_reason(
                NetworkReason.NETWORK_CHANGED, vm=vm.name, network=network.name, wanted=wanted
            )
        elif mode != new_mode:
            notices[port.name] = make_reason(NetworkReason.MODE_CHANGED, vm=vm.name, mode=mode, wanted=new_mode)
        elif addressed.problem is not None:
            notices[port.name] = addressed.problem
        else:
            notices |= self.informers.find_unreached((port.name,), place.host)
        return own_port(addressed.port, network, vm)

    # Rows

    async def _commit(self, wanted: OwnVmInput, move: str, queue: str) -> tuple[Receipt, OwnVmResult]:
        """Plan the VM's rows and commit what differs; and the plan."""
        name, hosts = wanted.vm, [one for one in (wanted.host, wanted.target) if one]
        await self._read_chassis(hosts)
        wanted = _replace(wanted, chassis={one: self._chassis_of(one) for one in hosts})
        used: list[tuple[OwnVmInput, OwnVmResult]] = []

        def plan(rows: Rows, features: OvnFeatures) -> tuple[Op, ...]:
            given = set_rows(wanted, rows, features)
            result = OWN_VM.function(given)
            used[:] = [(given, result)]
            return result.ops

        scope = own_vm_scope(wanted)
        self._note_ports(name, scope.ports)
        seen_s, began_s = self.keys.seen_s.pop(name, None), self._clock.monotonic()
        decide_s = max(0.0, began_s - seen_s) if seen_s is not None else 0.0
        if seen_s is not None:
            self._decide_s.labels(queue).observe(decide_s)
        receipt = await self._nb.transact(scope, plan, comment=f"vm {name}")
        known = self._vms.setdefault(name, _VmRows())
        if known.move != move:
            self._events.report_aborted(self.informers.vms.get(name), known.move)
            activated_s = {} if move else known.activated_s
            self._vms[name] = known = _VmRows(move, known.move, activated_s, committed_s=self._clock.monotonic())
        self._vms.move_to_end(name)
        while len(self._vms) > MOVES_KEPT:
            self._vms.popitem(last=False)
        if receipt.ops:
            known.nb_cfg = receipt.nb_cfg
            known.decide_s, known.commit_s = decide_s, max(0.0, self._clock.monotonic() - began_s)
            known.event_s = began_s - decide_s
            self._commit_s.observe(known.commit_s)
            if known.is_overwritten:
                self._events.report_overwritten(name, len(receipt.ops))
            for op in receipt.ops:
                self._ops.labels(op.op).inc()
            given, result = used[0]
            self._decisions.keep(
                OWN_VM, msgspec.json.encode(given), msgspec.json.encode(result), empty=False, subject=name
            )
            _log.info("network.programmed", vm=name, host=given.host, target=given.target, operations=len(receipt.ops))
        known.is_overwritten = False
        return receipt, used[0][1]

    def _note_ports(self, vm: str, ports: tuple[str, ...]) -> None:
        """Know by a logical port which VM it is of, for as long as the VM has it."""
        for one in self._ports_of_vm.pop(vm, ()):
            if self._vm_of_port.get(one) == vm:
                del self._vm_of_port[one]
        if ports:
            self._ports_of_vm[vm] = ports
            self._vm_of_port.update(dict.fromkeys(ports, vm))

    async def _read_chassis(self, hosts: Iterable[str]) -> None:
        """Learn which chassis there are, by whose names hosts are found: now and then, and where one has none yet.

        Those that ask while a read is under way share the next one.
        """
        asked_s = self._clock.monotonic()
        is_known = all(self._chassis_of(host) in self._chassis for host in hosts)
        if is_known and asked_s - self._chassis_read_s < CHASSIS_S:
            return
        async with self._chassis_lock:
            if self._chassis_read_s < asked_s:
                began_s = self._clock.monotonic()
                self._chassis = {one.name: one for one in await self._sb.list_chassis()}
                self._chassis_read_s = began_s

    def _chassis_of(self, host: str) -> str:
        found = self.informers.hosts.get(host)
        if host in self._chassis and (found is None or not (found.spec.chassis or found.status.chassis)):
            return host
        return host_chassis(found, host, self._chassis.values())

    # What is reported

    async def _prepare_moves(
        self,
        name: str,
        place: VmPlace,
        planned: dict[str, OwnPort],
        receipt: Receipt,
        unreached: dict[str, Reason],
    ) -> dict[str, PortMove]:
        """Of each port, whether the target can take it over. ``unreached``: those whose network is not there."""
        target = self._chassis_of(place.target)
        found = {one.name: one for one in await self._sb.list_chassis()}
        known, features = self._vms[name], self._nb.read_features()
        moves = {}
        for port_name, own in planned.items():
            binding = await self._sb.read_binding(interface_id(own.interface, own.mode, place.target))
            if binding is not None and target in binding.activated:
                known.activated_s.setdefault(port_name, self._clock.monotonic())
            problem = unreached.get(port_name) or preparation_problem(
                own, place.target, target, found, binding, features, known.nb_cfg
            )
            before = self.informers.ports.get(port_name)
            reported = before.status.migration if before is not None else None
            if problem is None:
                if reported is None or reported.id != place.move or not reported.prepared:
                    took_s = max(0.0, self._clock.monotonic() - known.committed_s)
                    self._times.count_prepared(took_s)
                    self._events.report_late(name, port_name, place, took_s)
                    moves[port_name] = PortMove(id=place.move, prepared=True, times_ms={"prepare": 1000 * took_s})
                else:
                    moves[port_name] = reported
            else:
                moves[port_name] = unprepared_move(place.move, problem, reported)
        return moves

    def _measure(self, name: str, place: VmPlace, planned: dict[str, OwnPort], receipt: Receipt) -> None:
        """Have the stages measured of a transaction that gave ports another place."""
        known, chassis = self._vms[name], self._chassis_of(place.host)
        ended, known.ended = known.ended, ""
        before = {one: found.status for one in planned if (found := self.informers.ports.get(one)) is not None}
        switched = tuple(one for one, status in before.items() if status.active_on not in ("", place.host))
        if not switched or not receipt.ops:
            return
        activated_s = {one: at_s - known.event_s for one, at_s in known.activated_s.items() if one in switched}
        self._times.measure(
            SwitchOver(name, ended, switched, activated_s, chassis, receipt, known.decide_s, known.commit_s)
        )

    def _plan_announcements(self, name: str, own: OwnPort, place: VmPlace) -> tuple[Announcement, ...] | None:
        """What the guest is told where it has just come from another host; ``None`` where it has not."""
        port = self.informers.ports.get(name)
        if own.network.type != "routed" or port is None or port.status.active_on in ("", place.host):
            return None
        others = [one for one in self.informers.ports.list_by_index(BY_NETWORK, own.network.name) if one.name != name]
        neighbours = ((one, place_of(self.informers.vms.get(one.spec.vm)).host) for one in others)
        move = port.status.migration.id if port.status.migration is not None else ""
        return tell_guest(own, place.host, move, neighbours, self._neighbours_limit)


class _Moves:
    """The queue of migrations."""

    name = "network-moves"

    def __init__(self, controller: NetworkController) -> None:
        self._controller = controller

    async def reconcile(self, key: str) -> Requeue | None:
        """As the controller."""
        return await self._controller.reconcile_vm(key.removeprefix(VM_PREFIX), "moves")
