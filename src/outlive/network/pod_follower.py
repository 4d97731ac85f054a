"""The controller that has OVN follow VMs that are pods of a Kubernetes cluster, such as KubeVirt's.

Level-triggered, one key for each VM: a reconcile reads its pods, sees that each has its addresses, plans the rows of
all its networks and commits what differs in one transaction. A migration's keys have a queue of their own. What cannot
be done for one VM is told at its pod and tried again, and holds nobody else up. In mode ``interconnect`` there is one
follower for each zone: each programs its own database, and writes to pods of its own nodes alone.

Two followers of one zone do no harm: a transaction holds only if the rows are as they were read, and an annotation is
written against the version of the pod that was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from outlive.base import Clock, LimitExceeded, OutliveError, get_logger
from outlive.network.copies import Copy, CopyQuestion, VmKey, describe_lifecycle
from outlive.network.names import DEFAULT_NETWORK
from outlive.network.operations import Op, Rows
from outlive.network.pod_addresses import PodAddresses, set_entry
from outlive.network.pod_cache import BY_COPY, DnsService, PodCache, node_facts, pod_facts
from outlive.network.pod_facts import AddressTwice, PlanTooLarge, PodReports, is_unreadable
from outlive.network.pod_garbage import PodGarbage
from outlive.network.pod_rows import (
    DerivedView,
    PodHosts,
    PodZone,
    RowsByVm,
    VmRows,
    VmRowsInput,
    is_settled,
    make_zone,
    plan_vm_rows,
    scope_of,
)
from outlive.network.pod_switched import PodSwitched
from outlive.network.pods import follows_default, index_attachments, networks_of
from outlive.network.ports import NeighbourTable, NorthboundDb, OvnFeatures
from outlive.network.settings import NetworkSettings
from outlive.network.status import has_status_changed
from outlive.resources import VirtualNetwork
from outlive.resources.foreign import KubernetesNode, KubernetesPod
from outlive.runtime import (
    ClusterEvents,
    ClusterVerbs,
    ControllerOptions,
    ControllerRun,
    DecisionLog,
    Elector,
    Informer,
    Manager,
    Metrics,
    Periodic,
    Requeue,
    Watch,
)
from outlive.store import Store

VM_PREFIX: Final = "vm/"
HOSTS_KEY: Final = "hosts"
RETRY_CAP_S: Final = 30.0
"""The longest wait before a VM that could not be programmed is tried again."""
START_STEP: Final = 50
"""VMs that are compared at the start before others get their turn."""
DNS_S: Final = 30.0
"""How often the DNS service is looked at."""
_log = get_logger("network")


class PodFollower:
    """See the module. ``attach`` has a manager run it."""

    name = "network-pods"

    def __init__(
        self,
        store: Store,
        verbs: ClusterVerbs,
        events: ClusterEvents,
        networks: Informer[VirtualNetwork],
        northbound: NorthboundDb,
        settings: NetworkSettings,
        *,
        cache: PodCache,
        metrics: Metrics,
        decisions: DecisionLog,
        clock: Clock,
        neighbours: NeighbourTable | None = None,
    ) -> None:
        """``store``: of the cluster with the pods. ``networks``: of Outlive's own store."""
        self.cache = cache
        self._store = store
        self._networks = networks
        self._nb = northbound
        self._settings = settings
        self._decisions = decisions
        self._clock = clock
        self.addresses = PodAddresses(cache, store, verbs, decisions, allocate=settings.pods.allocate)
        self.reports = PodReports(events, metrics)
        self._garbage = PodGarbage(cache, northbound, self.addresses, self.reports)
        self._hosts = PodHosts(northbound, settings.pods)
        self._switched = PodSwitched(cache, verbs, settings, neighbours)
        self._locks: dict[VmKey, asyncio.Lock] = {}
        self._vm_of_port: dict[str, VmKey] = {}
        self._ports_of_vm: dict[VmKey, tuple[str, ...]] = {}
        self._seen_s: dict[VmKey, float] = {}
        self._zone = DerivedView(cache.nodes, self._make_zone)
        self._attachments = DerivedView(networks, index_attachments)
        self._settled: dict[VmKey, Any] = {}
        """VMs whose rows were right at the start → their marks then."""
        self._changes = northbound.watch_changes()
        self._dns = DnsService(store, settings.pods.dns_service)
        self._started = asyncio.Event()
        self._runs: tuple[ControllerRun, ...] = ()
        self._decide_s = metrics.add_histogram("network_decide_seconds", "From an event to its transaction", ("queue",))
        self._commit_s = metrics.add_histogram("network_commit_seconds", "Duration of a transaction", ())
        self._ops = metrics.add_counter("network_operations_total", "Operations committed", ("op",))

    def attach(self, manager: Manager, elector: Elector | None) -> None:
        """Have the manager run both queues, the start-up with the periodic look for garbage, and what else follows."""
        moves = (self._settings.max_parallel + 1) // 2
        options = ControllerOptions(retry_cap_s=RETRY_CAP_S)
        self._runs = (
            manager.add_controller(
                _PodMoves(self),
                (Watch(self.cache.pods, self._moving_keys),),
                moves,
                elector=elector,
                options=options,
            ),
            manager.add_controller(
                self,
                (
                    Watch(self.cache.pods, self._pod_keys),
                    Watch(self.cache.nodes, self._node_keys),
                    Watch(self._networks, self._network_keys),
                ),
                max(1, self._settings.max_parallel - moves),
                elector=elector,
                options=options,
            ),
        )
        manager.add_task("network-pods-garbage", self._start_and_sweep, elector=elector, after_sync=True)
        manager.add_task("network-pods-rows", self._follow_rows, elector=elector, after_sync=True)
        dns = Periodic(self._read_dns, DNS_S, clock=self._clock, wait_first=True)
        manager.add_task("network-pods-dns", dns.run, elector=elector, after_sync=True)

    # Which keys a change asks for

    def _moving_keys(self, old: KubernetesPod | None, new: KubernetesPod | None) -> Iterable[str]:
        """A VM with two copies of which one lives, and one whose target has become ready."""
        return self._vm_keys(old, new, moving=True)

    def _pod_keys(self, old: KubernetesPod | None, new: KubernetesPod | None) -> Iterable[str]:
        return self._vm_keys(old, new, moving=False)

    def _vm_keys(self, old: KubernetesPod | None, new: KubernetesPod | None, *, moving: bool) -> list[str]:
        facts = [pod_facts(one) for one in (old, new) if one is not None]
        if len(facts) == 2 and facts[0] == facts[1]:
            return []
        vms = dict.fromkeys(one.copy.vm for one in facts if one.copy.vm is not None)
        took_over = len(facts) == 2 and has_status_changed(facts[0].copy, facts[1].copy)
        if new is not None and not moving and facts[-1].problems:
            self.reports.tell_unreadable(facts[-1])
        keys = []
        for vm in vms:
            if (took_over or self._is_moving(vm)) is moving:
                self._seen_s.setdefault(vm, self._clock.monotonic())
                keys.append(f"{VM_PREFIX}{vm}")
        return keys

    def _is_moving(self, vm: VmKey) -> bool:
        """True while a VM has several copies of which one lives: a migration runs, ends, or has failed."""
        copies = self.cache.copies_of(vm)
        return len(copies) > 1 and any(not one.completed for one in copies)

    def _node_keys(self, old: KubernetesNode | None, new: KubernetesNode | None) -> Iterable[str]:
        """A node that came, went or got subnets: its switch, and the VMs that are on it or at home there."""
        facts = [node_facts(one) for one in (old, new) if one is not None]
        if len(facts) == 2 and facts[0] == facts[1]:
            return []
        keys = [HOSTS_KEY]
        if old is not None:  # else each VM is looked at when its own pods are seen
            keys += [f"{VM_PREFIX}{copy.vm}" for copy in self.cache.all_copies() if _is_affected(copy, facts)]
        return dict.fromkeys(keys)

    def _network_keys(self, old: VirtualNetwork | None, new: VirtualNetwork | None) -> Iterable[str]:
        """All VMs that have attachments to the network, as it was and as it is."""
        given = [one for one in (old, new) if one is not None]
        if len(given) == 2 and (given[0].spec, given[0].metadata.annotations) == (
            given[1].spec,
            given[1].metadata.annotations,
        ):
            return []
        nads = index_attachments(given).keys()
        return dict.fromkeys(
            f"{VM_PREFIX}{copy.vm}" for copy in self.cache.all_copies() if not nads.isdisjoint(copy.networks)
        )

    def _add(self, vm: VmKey) -> None:
        self._runs[0 if self._is_moving(vm) else 1].add(f"{VM_PREFIX}{vm}")

    # What runs beside the queues

    async def _start_and_sweep(self) -> None:
        """Find what is in use, delete what is left of VMs that are gone, let reconciles begin; then look from time to
        time."""
        try:
            await self.addresses.clear()
            await self._dns.read()
            zone = self.read_zone()
            await self.addresses.adopt(_local_subnets(zone), self.cache.all_copies())
            await self._garbage.start(zone, self._networks.items())
            await self._find_settled()
            self._started.set()
            await Periodic(self._sweep, self._settings.gc_period, clock=self._clock, wait_first=True).run()
        finally:
            self._started.clear()

    async def _find_settled(self) -> None:
        """Note the VMs whose rows are right. What changes meanwhile makes them unsettled."""
        self._settled.clear()
        rows = RowsByVm(await self._nb.read_rows())
        features = self._nb.read_features()
        vms = dict.fromkeys(copy.vm for copy in self.cache.all_copies())
        for number, vm in enumerate(vms, 1):
            assert vm is not None
            given = self._rows_input(vm, self.cache.copies_of(vm), {})
            in_fabric = any(one.network in self._settings.pods.evpn.networks for one in given.networks)
            is_plain = len(given.copies) == 1 and not in_fabric and not self.cache.pods_of(vm)[0].problems
            if is_plain and self._has_addresses(given.copies[0]) and is_settled(given, rows, features):
                self._settled[vm] = self._mark(vm)
                self._note_ports(vm, scope_of(given).ports)
            if number % START_STEP == 0:
                await self._clock.sleep(0)
        _log.info("network.settled", vms=len(vms), settled=len(self._settled))

    def _mark(self, vm: VmKey) -> tuple[object, ...]:
        """Equal as long as nothing that a VM's rows follow from has changed."""
        pods = self.cache.pods.list_by_index(BY_COPY, str(vm))
        versions = tuple((one.metadata.uid, one.metadata.resource_version) for one in pods)
        return (versions, self.read_zone(), self._attachments.get(), self._dns.addresses)

    async def _follow_rows(self) -> None:
        """Look again at VMs whose rows somebody else changed."""
        async for names in self._changes:
            if not names:
                self._settled.clear()
                for one in dict.fromkeys(copy.vm for copy in self.cache.all_copies() if copy.vm is not None):
                    self._add(one)
                self._runs[1].add(HOSTS_KEY)
            for name in names:
                vm = self._vm_of_port.get(name) or _vm_of(name)
                if vm is not None:
                    self._settled.pop(vm, None)
                if vm is not None and (name in self._vm_of_port or self.cache.copies_of(vm)):
                    self._add(vm)

    async def _sweep(self) -> None:
        await self._garbage.sweep(self.read_zone(), self._networks.items())

    async def _read_dns(self) -> None:
        """Look at the DNS service from time to time; where its addresses changed, all VMs are told."""
        if await self._dns.read():
            for copy in self.cache.all_copies():
                assert copy.vm is not None
                self._add(copy.vm)

    def read_zone(self) -> PodZone:
        """The zone as its nodes are now."""
        return self._zone.get()

    def _make_zone(self, nodes: Sequence[KubernetesNode]) -> PodZone:
        settings = self._settings
        return make_zone(map(node_facts, nodes), settings.zone_mode, settings.local_hypervisors, settings.pods)

    # Reconciling

    async def reconcile(self, key: str) -> Requeue | None:
        """Bring one VM's rows, or those of the zone's hypervisors, to what is wanted."""
        if key == HOSTS_KEY:
            await self._started.wait()
            await self.addresses.adopt(_local_subnets(self.read_zone()), self.cache.all_copies())
            return await self._hosts.reconcile(self.read_zone(), self.cache)
        return await self.reconcile_vm(key, "others")

    async def reconcile_vm(self, key: str, queue: str) -> Requeue | None:
        """One VM; one at a time, whichever queue it came from."""
        namespace, _, name = key.removeprefix(VM_PREFIX).partition("/")
        vm = VmKey(namespace, name)
        await self._started.wait()
        lock = self._locks.setdefault(vm, asyncio.Lock())
        try:
            async with lock:
                return await self._follow(vm, queue)
        finally:
            if not lock.locked() and not getattr(lock, "_waiters", None):
                self._locks.pop(vm, None)

    async def _follow(self, vm: VmKey, queue: str) -> Requeue | None:
        mark = self._settled.pop(vm, None)
        if mark is not None and mark == self._mark(vm):
            self._seen_s.pop(vm, None)
            return None
        problems: dict[str, OutliveError] = {}
        unreadable = {one.copy.id: one.unreadable for one in self.cache.pods_of(vm) if one.unreadable}
        copies = await self._assign_addresses(self.cache.copies_of(vm), unreadable, problems)
        given = self._rows_input(vm, copies, unreadable)
        plan, changed = await self._commit(given, queue, problems)
        problems |= plan.problems
        await self._switched.act(given, changed=changed, problems=problems)
        life = describe_lifecycle(CopyQuestion(asked=copies[-1].id, copies=tuple(copies))) if copies else None
        if life is not None and life.all_completed:
            for address in await self.addresses.release(copies):
                _log.info("network.released", vm=str(vm), address=address)
        if not problems:
            await self.addresses.keep_only(life.mac_owner if life is not None else str(vm), copies)
        if changed and not self._nb.read_features().arp_proxy_full:
            self._runs[1].add(HOSTS_KEY)  # its proxy answers for single addresses
        self.reports.tell(vm, copies, problems)
        for problem in problems.values():
            raise problem
        return None

    def _rows_input(self, vm: VmKey, copies: Sequence[Copy], unreadable: dict[str, tuple[str, ...]]) -> VmRowsInput:
        return VmRowsInput(
            vm=vm,
            copies=tuple(copies),
            networks=tuple(networks_of(copies, self._attachments.get())),
            zone=self.read_zone(),
            settings=self._settings.pods,
            dns=self._dns.addresses,
            unreadable=unreadable,
        )

    def _has_addresses(self, copy: Copy) -> bool:
        """True if the copy lacks no address, and each is its own."""
        if not self._needs_addresses(copy):
            return True
        return DEFAULT_NETWORK in copy.networks and self.addresses.rival_of(copy) is None

    def _needs_addresses(self, copy: Copy) -> bool:
        """True if the copy is to have an entry for the default network that this zone sees to."""
        is_own = not copy.completed and not copy.host_network and self.read_zone().is_local(copy)
        return is_own and follows_default(copy)

    async def _assign_addresses(
        self, copies: Sequence[Copy], unreadable: Mapping[str, tuple[str, ...]], problems: dict[str, OutliveError]
    ) -> list[Copy]:
        """The copies, each of this zone with its addresses on the default network as far as that can be."""
        found = list(copies)
        for number, copy in enumerate(copies):
            if not self._needs_addresses(copy):
                continue
            if is_unreadable(
                unreadable.get(copy.id, ()), DEFAULT_NETWORK
            ):  # which its pod was told; all copies of a VM have the same
                entry = next((one.networks[DEFAULT_NETWORK] for one in found if DEFAULT_NETWORK in one.networks), None)
                if entry is not None:
                    found[number] = set_entry(copy, entry)
                continue
            try:
                found[number] = await self.addresses.ensure(copy, found)
            except OutliveError as error:
                problems[f"{DEFAULT_NETWORK} of {copy.name}"] = error
                continue
            rival = self.addresses.rival_of(found[number])
            if rival is not None:
                problems[f"{DEFAULT_NETWORK} of {copy.name}"] = AddressTwice(
                    f"{rival.namespace}/{rival.name} has an address of {copy.namespace}/{copy.name}",
                    remedy=f"delete one of the two pods: {copy.name} gets no port",
                )
                others = {nad: one for nad, one in copy.networks.items() if nad != DEFAULT_NETWORK}
                found[number] = msgspec.structs.replace(found[number], networks=others)
        return found

    async def _commit(self, given: VmRowsInput, queue: str, problems: dict[str, OutliveError]) -> tuple[VmRows, bool]:
        """Plan the VM's rows and commit what differs; the plan, and whether it changed anything."""
        scope = scope_of(given)
        self._note_ports(given.vm, scope.ports if given.copies else ())
        last: list[VmRows] = [VmRows()]

        def plan(rows: Rows, features: OvnFeatures) -> Sequence[Op]:  # may run in the driver's thread
            last[0] = plan_vm_rows(given, rows, features)
            return last[0].ops

        began_s = self._clock.monotonic()
        seen_s = self._seen_s.pop(given.vm, None)
        if seen_s is not None:
            self._decide_s.labels(queue).observe(max(0.0, began_s - seen_s))
        try:
            receipt = await self._nb.transact(scope, plan, comment=f"vm {given.vm}", numbered=False)
        except LimitExceeded as error:
            problems[""] = PlanTooLarge(error.message, remedy=error.remedy)
            return last[0], False
        if receipt.ops:
            self._commit_s.observe(max(0.0, self._clock.monotonic() - began_s))
            for op in receipt.ops:
                self._ops.labels(op.op).inc()
            for decision, asked, answer in last[0].uses:
                self._keep(decision, asked, answer, str(given.vm))
            _log.info("network.programmed", vm=str(given.vm), operations=len(receipt.ops), why=last[0].why)
        return last[0], bool(receipt.ops)

    def _note_ports(self, vm: VmKey, ports: Sequence[str]) -> None:
        """Remember whose these ports are; none: the VM is gone."""
        for name in self._ports_of_vm.pop(vm, ()):
            self._vm_of_port.pop(name, None)
        if ports:
            self._ports_of_vm[vm] = tuple(ports)
            self._vm_of_port.update(dict.fromkeys(ports, vm))

    def _keep(self, decision: Any, asked: Any, answer: Any, subject: str) -> None:
        raw, found = msgspec.json.encode(asked), msgspec.json.encode(answer)
        self._decisions.keep(decision, raw, found, empty=False, subject=subject)


class _PodMoves:
    """The queue of migrations."""

    name = "network-pods-moves"

    def __init__(self, follower: PodFollower) -> None:
        self._follower = follower

    async def reconcile(self, key: str) -> Requeue | None:
        """As the follower."""
        return await self._follower.reconcile_vm(key, "moves")


def _local_subnets(zone: PodZone) -> dict[str, tuple[str, ...]]:
    """Hypervisors of this zone → their subnets."""
    return {name: zone.nodes[name].subnets for name in zone.local}


def _is_affected(copy: Copy, nodes: Sequence[Any]) -> bool:
    """True if the copy is on one of the nodes, or on a routed network, whose routes know all nodes."""
    return follows_default(copy) or any(copy.hypervisor == one.name for one in nodes)


def _vm_of(name: str) -> VmKey | None:
    namespace, slash, vm = name.partition("/")
    return VmKey(namespace, vm) if slash and vm and "/" not in vm else None
