"""Keeps a host's links as they have to be, whatever changes them.

One round reads what the kernel has, composes what has to be, plans the changes and makes them; rounds follow each other
every few seconds and whenever a network or the cluster changes. A change of what the host itself is reached by is
written down before with the way back, and undone where the store does not answer after it; also by the next daemon,
where this one was killed meanwhile. It runs before the host has joined: the store may be reached only through it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from outlive.base import Clock, NotFound, OutliveError, deadline, get_logger
from outlive.node.links.plan import (
    LINKS_CONFIRM,
    LINKS_PLAN,
    SYSTEM,
    ConfirmInput,
    LinkMemoryKeeper,
    LinkPlanInput,
    LinkStep,
    digest_of,
    ipv6_settings,
    placed_by,
    undo_ops,
)
from outlive.node.links.settings import LinkSettings
from outlive.node.links.wanted import ORDER, LinkFacts, WantedLinks, compose_links
from outlive.node.ports.links import FoundLinks, LinkPort
from outlive.resources import (
    CLUSTER,
    Cluster,
    Hypervisor,
    ObjectRef,
    SystemNetwork,
    SystemNetworkName,
    VirtualNetwork,
    is_made_by_hosts,
)
from outlive.resources.reasons import FaultCode
from outlive.runtime import DecisionLog, FaultSet, Informer, Periodic
from outlive.store import Store, list_all

LOOK_S: Final = 5.0
"""How often the kernel is compared with what has to be."""
HOSTS_S: Final = 15.0
"""How often the addresses of the other hosts are read, while there are managed networks."""
READ_S: Final = 3.0
"""How long one reading of the store may take."""
PAUSE_S: Final = 0.25
"""Pause between two questions whether the store answers."""
NAMED: Final = 4
"""Networks that one fault names."""

_log = get_logger("links")


class LinkReconciler:
    """See the module. ``cluster_address``: the host's own on the cluster network, where it does not make that itself.

    ``changed`` is called when what this reports has changed.
    """

    def __init__(
        self,
        store: Store,
        port: LinkPort,
        keeper: LinkMemoryKeeper,
        settings: LinkSettings,
        networks: Informer[VirtualNetwork],
        *,
        host: str,
        labels: Callable[[], dict[str, str]],
        guard_timeout_s: Callable[[], float],
        cluster_address: str,
        faults: FaultSet,
        decisions: DecisionLog,
        clock: Clock,
    ) -> None:
        self.changed: Callable[[], None] = lambda: None
        self.bridge_of: dict[str, str] = {}
        """System network → the bridge that the host is on it by."""
        self.addresses: dict[str, str] = {}
        """System network → the host's own address there."""
        self.made: dict[str, str] | None = None
        """Bridged and managed networks → why they are not made; empty: they are. ``None``: nobody has looked yet."""
        self.settings = settings
        self.wanted = WantedLinks()
        """As of the last round."""
        self.found = FoundLinks()
        """What the kernel had then."""
        self._store = store
        self._port = port
        self._keeper = keeper
        self._networks = networks
        self._host = host
        self._labels = labels
        self._guard_timeout_s = guard_timeout_s
        self._cluster_address = cluster_address
        self._faults = faults
        self._decisions = decisions
        self._clock = clock
        self._loop = Periodic(self.check_links, LOOK_S, clock=clock, wakes=True)
        self._others: tuple[str, ...] = ()
        self._others_due_s = 0.0
        self._cluster_read = False
        self._system_networks: dict[SystemNetworkName, SystemNetwork] = {}
        self._undone = ""
        """Why the last change was undone."""

    def notify(self) -> None:
        """Have a look soon."""
        self._loop.wake()

    async def run(self) -> None:
        """Until cancelled; whatever is made stays."""
        await self.start()
        end = self._networks.subscribe(lambda _old, _new: self.notify())
        try:
            await self._loop.run()
        finally:
            end()

    async def start(self) -> None:
        """Read what the daemon before has written down, and undo what it had changed and not confirmed."""
        await self._keeper.load()
        memory = self._keeper.memory
        if not memory.undo:
            await self._keeper.change(refused="")
            return
        given = ConfirmInput(answered=False, since_s=0.0, limit_s=self._limit_s(), restarted=True)
        if self._decisions.use(LINKS_CONFIRM, given, subject=self._host).verdict == "undo":
            self._undone = "the daemon ended before the store had answered after the change, so it was undone"
            await self._undo(memory.trying, self._undone, refuse=True)  # this daemon does not try it again

    async def check_links(self) -> None:
        """One round; what fails is tried again in the next one."""
        await self._read_cluster()
        facts, names = await self._collect_facts(), _sysctl_names(self.wanted)
        try:
            found = await self._port.read(names)
            wanted = compose_links(facts, found)
            if not _sysctl_names(wanted) <= names:
                found = await self._port.read(_sysctl_names(wanted))
        except OutliveError as error:
            self._report({}, str(error))
            return
        plan = self._decisions.use(LINKS_PLAN, LinkPlanInput(wanted=wanted, found=found), subject=self._host)
        problems = dict(plan.problems)
        for step in plan.actions:
            why = await (self._change_system(step, wanted, found) if step.subject == SYSTEM else self._make(step))
            if why:
                problems[step.subject] = why
        if not any(step.subject == SYSTEM for step in plan.actions):
            await self._remember(wanted, found)
        self.wanted, self.found = wanted, found
        self._report(problems, problems.get(SYSTEM, ""))

    async def _collect_facts(self) -> LinkFacts:
        labels = self._labels()
        networks = tuple(
            one
            for one in self._networks.items()
            if is_made_by_hosts(one) and one.reaches(labels) and one.metadata.deletion_timestamp is None
        )
        if any(one.spec.type == "managed" for one in networks) and not self.settings.evpn:
            await self._read_others()
        return LinkFacts(
            host=self._host,
            settings=self.settings,
            system_networks=self._system_networks,
            networks=networks,
            cluster_address=self._cluster_address,
            others=self._others,
            former=self._keeper.memory.placed,
            former_ports=self._keeper.memory.ports,
        )

    async def _read_cluster(self) -> None:
        """What the cluster says of system networks; while the store is away, what it said last."""
        try:
            with deadline(READ_S):
                cluster = await self._store.get(Cluster, CLUSTER)
            self._system_networks, self._cluster_read = dict(cluster.spec.system_networks), True
        except NotFound:
            self._system_networks, self._cluster_read = {}, True
        except (OutliveError, TimeoutError) as error:
            if not self._cluster_read:
                self._system_networks = self._keeper.memory.system_networks
            _log.info("links.cluster_not_read", why=str(error) or f"no answer within {READ_S:g} s")

    async def _read_others(self) -> None:
        """Addresses of the other hosts on the cluster network."""
        now_s = self._clock.monotonic()
        if now_s < self._others_due_s:
            return
        try:
            with deadline(READ_S):
                found = [
                    one.status.addresses.get("cluster", "")
                    async for one in list_all(self._store, Hypervisor)
                    if one.name != self._host
                ]
        except (OutliveError, TimeoutError) as error:
            self._others_due_s = now_s + LOOK_S
            _log.warning("links.hosts_not_read", why=str(error) or f"no answer within {READ_S:g} s")
            return
        self._others_due_s = now_s + HOSTS_S
        self._others = tuple(sorted({one for one in found if one}))

    async def _make(self, step: LinkStep) -> str:
        """Change the devices of one network of VMs; why that failed."""
        try:
            for op in step.ops:
                await self._port.carry_out(op)
        except OutliveError as error:
            return str(error)
        _log.info("links.made", network=step.subject, changes=len(step.ops))
        return ""

    # What the host itself is reached by

    async def _change_system(self, step: LinkStep, wanted: WantedLinks, found: FoundLinks) -> str:
        """Change it, and see that the store answers afterwards; why it is not as it has to be."""
        digest, memory = digest_of(wanted), self._keeper.memory
        if digest == memory.refused:
            return self._undone or "it was tried, and the store did not answer"
        is_new = digest != memory.confirmed
        try:
            if is_new:
                await self._keeper.change(undo=undo_ops(step.ops, found), trying=digest)
            for op in step.ops:
                await self._port.carry_out(op)
        except OutliveError as error:
            if is_new:
                await self._undo(digest, str(error), refuse=False)
            return str(error)
        _log.info("links.changed", host=self._host, changes=len(step.ops))
        if not is_new:
            return ""  # such as after a boot: it has been good before
        if await self._wait_confirmed():
            await self._keeper.change(undo=(), trying="", confirmed=digest, refused="")
            await self._remember(wanted, found)
            self.notify()
            return ""
        limit_s = self._limit_s()
        self._undone = f"the store did not answer within {limit_s:g} s of the change, so it was undone"
        await self._undo(digest, self._undone, refuse=True)
        return self._undone

    def _limit_s(self) -> float:
        return min(float(self.settings.confirm_timeout), self._guard_timeout_s() / 2)

    async def _wait_confirmed(self) -> bool:
        """Whether the store answers in time."""
        began_s, limit_s = self._clock.monotonic(), self._limit_s()
        while True:
            answered = await self._store_answers()
            since_s = self._clock.monotonic() - began_s
            given = ConfirmInput(answered=answered, since_s=since_s, limit_s=limit_s)
            verdict = self._decisions.use(LINKS_CONFIRM, given, subject=self._host).verdict
            if verdict != "wait":
                return verdict == "keep"
            await self._clock.sleep(PAUSE_S)

    async def _store_answers(self) -> bool:
        try:
            with deadline(min(READ_S, self._limit_s())):
                await self._store.get(Cluster, CLUSTER, fresh=True)
        except NotFound:
            return True
        except (OutliveError, TimeoutError):
            return False
        return True

    async def _undo(self, digest: str, why: str, *, refuse: bool) -> None:
        """Go back to what was before; every step is tried, whatever becomes of the others."""
        _log.error("links.undone", host=self._host, why=why)
        for op in self._keeper.memory.undo:
            try:
                await self._port.carry_out(op)
            except OutliveError as error:
                _log.warning("links.step_not_undone", op=op.op, device=op.device, why=str(error))
        await self._keeper.change(undo=(), trying="", refused=digest if refuse else self._keeper.memory.refused)

    async def _remember(self, wanted: WantedLinks, found: FoundLinks) -> None:
        """Write down what is in place now."""
        placed, ports = placed_by(wanted, found)
        changes: dict[str, object] = {"placed": placed, "ports": ports, "system_networks": self._system_networks}
        if wanted.bridges and not any(name in wanted.problems for name in ORDER):
            changes["confirmed"] = digest_of(wanted)
        try:
            await self._keeper.change(**changes)
        except OutliveError as error:
            _log.warning("links.not_remembered", why=str(error))

    # What is reported

    def _report(self, problems: dict[str, str], system: str) -> None:
        wanted = self.wanted
        own = {one: problems[one] for one in ORDER if one in problems}
        why = system or "; ".join(f"{name}: {text}" for name, text in own.items())
        self._report_fault(FaultCode.LINKS_NOT_MADE, why)
        names = {one.network for one in wanted.networks} | set(problems) - {SYSTEM, *ORDER}
        made = {name: problems.get(name, "") for name in sorted(names)}
        failed = [f"{name}: {text}" for name, text in made.items() if text]
        more = f" and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
        self._report_fault(FaultCode.NETWORKS_NOT_MADE, "; ".join(failed[:NAMED]) + more if failed else "")
        new = (made, dict(wanted.bridge_of), dict(wanted.own))
        if new != (self.made, self.bridge_of, self.addresses):
            self.made, self.bridge_of, self.addresses = new
            self.changed()

    def _report_fault(self, code: FaultCode, why: str) -> None:
        subject = ObjectRef(kind="Hypervisor", name=self._host)
        if why:
            self._faults.activate(code, subject, why=why)
        else:
            self._faults.clear(code, subject)


def _sysctl_names(wanted: WantedLinks) -> set[str]:
    """Settings of the kernel that the plan looks at."""
    return set(wanted.sysctls).union(*(ipv6_settings(one) for one in wanted.networks))
