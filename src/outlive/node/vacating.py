"""Virtual machines leave this host by live moves while it degrades, if ``host.leave`` says so: a job of the drainer.

The other hosts are read only while this one degrades, and ever more seldom while nothing comes of it. Nobody is
stopped and nobody comes back by itself; home stays home, and whoever drains the host and makes it ready again has its
virtual machines back.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import UNSET

from outlive.base.clock import Clock
from outlive.base.errors import NotFound, OutliveError
from outlive.base.logging import get_logger
from outlive.node.decisions import LEAVE_HOST
from outlive.node.gauging import Gauge
from outlive.node.leaving import Answer, LeaveInput, Leaver, LeaveResult, Peer, stays
from outlive.node.others import Others
from outlive.node.reporting import Reporter
from outlive.node.vm.departing import Departures
from outlive.node.vm.shared import VmHost
from outlive.node.vm.states import active_move, assigned_to, state_of
from outlive.resources import Coverage, VirtualMachine
from outlive.resources.maintenance import cluster_maintenance, host_maintenance
from outlive.store import Store

IN_LINE_S: Final = 10.0
"""The wait of a host that stands in line."""
AGAIN_S: Final = 30.0
"""The wait after nothing came of it; it doubles …"""
AGAIN_CAP_S: Final = 300.0
"""… up to this."""
FAILING_S: Final = 600.0
"""How long the virtual machines stay after live moves failed one after the other."""
PEERS_S: Final = 30.0
"""How often the other hosts are looked at while virtual machines leave."""
EMPTY_RATHER: Final = (Answer.ALONE, Answer.LIKE_OTHERS, Answer.IN_LINE)
"""Reasons to stay that say nothing where nobody is there."""
ATTEMPTS_KEPT: Final = 10_000
"""Virtual machines of which it is remembered that they would not leave."""

_log = get_logger("node.vacating")


class Vacator:
    """See the module. The drainer asks ``due`` and carries ``run`` out, between its own jobs."""

    def __init__(
        self,
        store: Store,
        shared: VmHost,
        reporter: Reporter,
        gauge: Gauge,
        departures: Departures,
        *,
        clock: Clock,
    ) -> None:
        self._store = store
        self._shared = shared
        self._reporter = reporter
        self._gauge = gauge
        self._departures = departures
        self._clock = clock
        self._others = Others(shared.daemon, shared.host)
        self._not_before_s = 0.0
        self._wait_s = AGAIN_S
        self._failures = 0
        """Live moves in a row that failed."""
        self._failed_s = 0.0
        self._tried: dict[str, None] = {}
        """Virtual machines that would not leave in this time of degrading."""
        self._leaves = False
        self._answer: LeaveResult | None = None
        self._looked_s = 0.0

    def due(self) -> bool:
        """Whether there is something to look at."""
        if self._gauge.degrading_for_s is None:
            self._begin_anew()
            return False
        return self._clock.monotonic() >= self._not_before_s

    async def run(self) -> None:
        """Ask whether they leave; if so, let them, one after the other, until something says no."""
        answer = await self._ask(fresh=True)
        if not answer.go:
            nobody = answer.why in EMPTY_RATHER and not self._shared.here.present()
            self._wait(answer.why)
            self._say(go=False, why=Answer.LEFT if nobody else answer.why)
            return
        self._leaves = True
        self._say(go=True)
        _log.info("host.left", host=self._shared.host)
        try:
            why = await self._all()
        finally:
            self._leaves = False
        self._wait(why)
        self._say(go=False, why=why)

    def _begin_anew(self) -> None:
        self._not_before_s, self._wait_s = 0.0, AGAIN_S
        self._failures = 0
        self._tried.clear()
        self._answer = None

    def _say(self, *, go: bool, why: str = "") -> None:
        if self._gauge.leave(go=go, why=why):
            self._reporter.poke()

    def _wait(self, why: str) -> None:
        now, settle_s = self._clock.monotonic(), self._gauge.policy.settle_s
        if why == Answer.UNSETTLED:
            self._not_before_s = now + max(0.0, settle_s - (self._gauge.degrading_for_s or 0.0))
        elif why == Answer.IN_LINE:
            self._not_before_s = now + IN_LINE_S
        else:
            self._not_before_s = now + self._wait_s
            self._wait_s = min(2 * self._wait_s, AGAIN_CAP_S)

    # Asking

    async def _ask(self, *, fresh: bool = False) -> LeaveResult:
        """What the policy and the other hosts say."""
        now = self._clock.monotonic()
        if self._failures and now - self._failed_s > FAILING_S:
            self._failures = 0
            self._tried.clear()
        alone = self._decide(())
        if alone.why not in (Answer.GO, Answer.ALONE):
            return alone
        if self._answer is None or fresh or now - self._looked_s > PEERS_S:
            peers = await self._others.look(self._gauge.policy.common_share)
            self._answer, self._looked_s = self._decide(peers), now
            if self._answer.why is Answer.IN_LINE:
                self._answer = self._decide(await self._others.living(peers))
            self._gauge.together = self._answer.together
        return self._answer

    def _decide(self, peers: tuple[Peer, ...]) -> LeaveResult:
        shared, policy = self._shared, self._gauge.policy
        now, spec = self._clock.now(), shared.wishes.spec
        given = LeaveInput(
            host=shared.host,
            action=policy.action,
            degrading_for=self._gauge.degrading_for_s,
            settle=max(0.0, policy.settle_s),
            common_share=max(0.0, policy.common_share),
            leaving_share=max(0.0, policy.leaving_share),
            failures_limit=max(0, policy.failures),
            causes=self._gauge.standing.causes,
            scores=self._gauge.figures()[0],
            leaves=self._leaves,
            draining=spec.drain or self._reporter.domain_state not in ("", "ready"),
            maintenance=cluster_maintenance(shared.wishes.cluster_spec, now) or host_maintenance(spec.fencing, now),
            failures=self._failures,
            peers=peers,
        )
        return shared.decisions.use(LEAVE_HOST, given, subject=shared.host)

    # Leaving

    async def _all(self) -> str:
        """Every virtual machine that may leave, once; why that ended."""
        refused = False
        for name in await self._order():
            try:
                await self._shared.wishes.look()
            except OutliveError as error:
                _log.warning("host.wish_not_read", host=self._shared.host, error=str(error))
            if not self._shared.keeper.standing or self._departures.stopped:
                return Answer.UNSETTLED
            answer = await self._ask()
            if not answer.go:
                return answer.why
            match await self._one(name):
                case "failed":
                    self._failures += 1
                    self._failed_s = self._clock.monotonic()
                    if len(self._tried) < ATTEMPTS_KEPT:
                        self._tried[name] = None
                case "left":
                    self._failures = 0
                case "no room":
                    refused = True
                case "stays":
                    pass
        answer = await self._ask()
        if not answer.go:
            return answer.why
        return Answer.NO_ROOM if refused else Answer.LEFT

    async def _order(self) -> list[str]:
        """Those that are here, the ones that restart first first."""
        here = [one.vm for one in self._shared.here.present() if one.vm not in self._tried]
        vms = {name: await self._shared.find(name) for name in here}
        priorities = {name: vm.spec.restart_priority or 0 for name, vm in vms.items() if vm is not None}
        return sorted(priorities, key=lambda name: (-priorities[name], name))

    async def _one(self, name: str) -> Literal["left", "failed", "no room", "stays"]:
        vm = await self._departures.settled(name)
        if vm is None or name not in self._shared.here.domains or assigned_to(vm) != self._shared.host:
            return "stays"
        if stays(await self._leaver(vm)):
            return "stays"
        nodes = tuple(one for one in await self._departures.figures() if not one.degrading)
        step = self._departures.decide(vm, "flush", nodes, stay=True)
        if step is None or step.do != "migrate" or step.to is UNSET:
            return "no room"
        home = step.last_node if step.last_node is not UNSET else ""
        if not await self._departures.send(vm, step.to, home, live_only=True):
            return "stays"
        after = await self._departures.gone(name)
        return "failed" if after is not None and assigned_to(after) == self._shared.host else "left"

    async def _leaver(self, vm: VirtualMachine) -> Leaver:
        try:
            required: int | None = (await self._shared.daemon.get(Coverage, vm.name)).status.required
        except NotFound:
            required = None
        return Leaver(
            state=state_of(vm),
            power=vm.spec.power_state,
            method=vm.spec.migration_method,
            moving=active_move(vm) is not None,
            required=required,
        )
