"""The fencer: watches all hosts, condemns the silent ones, and sees every open fence through.

Every coordinator runs one, and all are equal: each step is a compare-and-swap on what was seen, so two that race do no
harm, and what one leaves lying another takes up. One loop looks at those whose time has come, a few times a
second at most; each host under suspicion is looked at again for as many times as its profile says; each condemned host
is a task of its own, so that a rack takes no longer than one host (docs/concepts/safety.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec

from outlive.base import Ids, OutliveError, as_datetime, get_logger, natural_key, new_global_request_id, request_context
from outlive.node.fencing.context import FencerContext
from outlive.node.fencing.faults import FenceFaults, Holds
from outlive.node.fencing.fence import Fence, Opening
from outlive.node.fencing.isolation import Isolations
from outlive.node.fencing.peer_confirmation import Agreed, AgreeResult, PeerConfirmation
from outlive.node.fencing.policy import fence_order
from outlive.node.fencing.power import switch_on_hosts
from outlive.node.fencing.rules import RateRule
from outlive.node.fencing.states import TRUST_AGAIN, TrustView, is_open
from outlive.node.fencing.suspicion import SuspicionHold, evaluate
from outlive.node.fencing.watcher import HAIR_S, Ripe, SeenHost, Suspicions
from outlive.resources import Cluster, FenceRecord, Hypervisor, HypervisorStatus, Membership, Spared
from outlive.resources import PowerOn as PowerOnRecord
from outlive.resources.reasons import FaultCode, Value
from outlive.runtime import FaultRecorder, Metrics, OrderedTaskGroup, Periodic
from outlive.store import change_status

ROUND_S: Final = 0.25
"""Two looks at the silent hosts lie at least so far apart."""
IDLE_S: Final = 1.0
"""And at most so far."""
TASKS_LIMIT: Final = 1_000
"""Fences that one fencer carries on at the same time; the others wait, or another fencer takes them."""
ASKED_AGAIN_S: Final = 5.0
"""Pause before a fence that somebody asks for is tried again."""
RETRY_S: Final = 1.0
"""Pause before a fence is looked at again whose task failed."""
TRUST_S: Final = 2.0
"""How often is looked whether an operator wants distrusted kinds of proof trusted again."""
FAULTS_S: Final = 2.0
"""How often the faults are compared."""
ISOLATIONS_S: Final = 2.0
"""How often is looked for isolations that may end."""
POWER_ON_S: Final = 5.0
"""How often is looked for hosts to be switched on."""
FORECAST_S: Final = 1.0
"""How often is looked who would have been condemned, while anything is in maintenance."""

_log = get_logger("fencing")


class Fencer:
    """See the module. ``run`` may be called once."""

    def __init__(
        self,
        context: FencerContext,
        *,
        ids: Ids,
        faults: FaultRecorder,
        metrics: Metrics,
    ) -> None:
        self.context = context
        self.me = context.me
        self._clock = context.clock
        self._ids = ids
        self._rules = context.rules
        self._holds = Holds()
        self._isolations = Isolations(context)
        self._faults = FenceFaults(context, self._holds, self._isolations, faults)
        self._suspicions = Suspicions(context.watcher, context.rules.decide_looks)
        self._opening = Opening(context)
        self._confirmation = PeerConfirmation(context)
        self._asked: dict[str, float] = {}
        """Hosts that somebody asks to have fenced, and when that is tried next."""
        self._tasks: dict[str, Fence | None] = {}
        """Hosts that a task of mine works on; its fence once there is one."""
        self._group: OrderedTaskGroup | None = None
        self._fences = metrics.add_counter(
            "fences_total", "Hosts condemned by this fencer, by what became of it", ("result",)
        )
        self._took = metrics.add_histogram("fence_seconds", "From the last renewal seen to the proof", ())

    async def run(self) -> None:
        """Watch and fence until cancelled."""
        async with OrderedTaskGroup() as group:
            self._group = group
            context = self.context
            informers = (context.clusters, context.hypervisors, context.memberships)
            for informer in informers:
                group.create_task(informer.run(), name=f"fencer follows {informer.name}")
            for informer in informers:
                await informer.wait_synced()
            context.memberships.subscribe(self._membership_changed)
            context.hypervisors.subscribe(self._hypervisor_changed)
            context.clusters.subscribe(self._cluster_changed)
            group.create_task(context.rehearsals.run(), name="fencer rehearses")
            for seconds, name, look in (
                (FAULTS_S, "reports faults", self._faults.compare),
                (TRUST_S, "trusts again", self._trust),
                (ISOLATIONS_S, "ends isolations", self._isolations.end),
                (POWER_ON_S, "switches on", partial(switch_on_hosts, context, group)),
                (FORECAST_S, "forecasts", FenceForecast(context).write_forecast),
            ):
                group.create_task(self._repeat(seconds, name, look), name=f"fencer {name}")
            try:
                await Periodic(self._inspect_hosts, ROUND_S, clock=self._clock).run()
            finally:
                self._confirmation.end()

    async def _inspect_hosts(self) -> float:
        """Look at all hosts; in how many seconds again. A crash costs no more than a moment: what was seen of hosts
        stays known, and a fencer that began anew would see each silence from its start."""
        part = "its fencer, which looks at hosts"
        try:
            with request_context(greq=new_global_request_id(self._ids, "fencer"), req=""):
                self._round()
            self.context.report_success(part)
        except Exception as error:  # noqa: BLE001 - a fault says so
            return min(RETRY_S, self.context.report_crash(part, error))
        return self._pause_s()

    async def _repeat(self, seconds: float, name: str, look: Callable[[], Awaitable[None]]) -> None:
        """What the store does not answer is looked at again the next time."""
        part = f"its fencer, which {name}"

        async def act() -> None:
            await look()
            self.context.report_success(part)

        def put_off(error: Exception) -> None:
            _log.info("fence.look_put_off", part=name, error=str(error))

        await Periodic(
            act,
            seconds,
            clock=self._clock,
            failed=put_off,
            crashed=partial(self.context.report_crash, part),  # fencing must not end with its reports
        ).run()

    # What changes

    def _membership_changed(self, old: Membership | None, new: Membership | None) -> None:
        self.context.watcher.on_membership(old, new)
        host = new.name if new is not None else old.name if old is not None else ""
        record = None if new is None else new.record
        fence = self._tasks.get(host)
        if fence is not None:
            fence.update_record(record)
        if record is None or not record.fence.id:
            return
        # a fence was opened, went on, or ended in a proof; not what was done to have the host back since
        progressed = is_open(record)
        if old is not None:
            before, now = _without_power_on(old.record.fence), _without_power_on(record.fence)
            progressed = record.state == "Revoked" and before != now
        if progressed:
            self._rules.rate.count(self._rules.rate_unit(host), self._clock.monotonic())

    def _hypervisor_changed(self, old: Hypervisor | None, new: Hypervisor | None) -> None:
        name = new.name if new is not None else old.name if old is not None else ""
        self.context.others.pop(name, None)
        if new is not None and new.spec.mode == "coordinator" and name != self.me:
            self.context.others[name] = None
        if new is None or (old is not None and old.spec.fencing == new.spec.fencing):
            return
        if new.spec.fencing.requested:
            self._asked[new.name] = 0.0
        fence = self._tasks.get(new.name)
        if fence is not None:
            fence.wake()

    def _cluster_changed(self, old: Cluster | None, new: Cluster | None) -> None:
        for fence in self._tasks.values():
            if fence is not None:
                fence.wake()

    # One round

    def _pause_s(self) -> float:
        now = self._clock.monotonic()
        next_at = min(self.context.watcher.next_at(), self._suspicions.next_at())
        next_at = now if self.context.identities.awaited else next_at
        return min(IDLE_S, max(ROUND_S, next_at - now + HAIR_S))

    def _round(self) -> None:
        now = self._clock.monotonic()
        self._rules.observe()
        if self._rules.check_release():
            self._holds.clear_holds(FaultCode.STORM_HOLD, FaultCode.RATE_HOLD)
        self._carry_out_requests(now)
        for host in self.context.watcher.find_due(now, self._rules.silence_s):
            self._suspicions.begin(host, now)
            if self._group is not None:
                self.context.identities.ask(host, self._group, self._suspicions.note_answer)
        self._suspicions.drop_the_living()
        self.context.identities.forget_except((*self._suspicions, *self._tasks))
        self._confirmation.publish(self._suspicions)
        takeable: list[str] = []  # hosts whose open fences nobody carries on
        for host in list(self.context.watcher.open):
            seen = self.context.watcher.get(host)
            if seen is None or host in self._tasks:
                continue
            if seen.record.fence.by == self.me:
                self._start(host, partial(self._resume, host, seen))
            elif self._rules.is_orphaned(host, seen, now):
                takeable.append(host)
        if takeable or self._suspicions.next_at() <= now:
            self._judge(now, takeable)

    def _carry_out_requests(self, now: float) -> None:
        """Try until any fencer has condemned the host, or an operator changes the order: answers may be lost.

        Requests about my own host are left to another: a host that switches itself off does not live to prove it.
        """
        mine = self._carries_out_orders()
        for host, due in list(self._asked.items()):
            seen = self.context.watcher.get(host)
            uid = seen.membership.metadata.uid if seen is not None else ""
            asked = fence_order(self._rules.settings_of(host).fencing.requested, uid)
            if seen is None or asked is None or asked[0] != seen.record.epoch or seen.record.state != "Held":
                del self._asked[host]
            elif not mine or host == self.me:
                continue
            elif due <= now and self._start(host, partial(self._opening.condemn, host, seen, ordered=True)):
                self._asked[host] = now + ASKED_AGAIN_S
        self._holds.waits = self.me in self._asked and not any(map(self.context.is_heard, self.context.others))

    def _carries_out_orders(self) -> bool:
        """Whether I live to see it through: of coordinators that are to be fenced all, the first one does the others.

        Two that switched each other off would leave nobody to prove it.
        """
        me = self.context.watcher.get(self.me)
        if me is None or me.record.state != "Held":
            return False
        if self.me not in self._asked:
            return True
        mine, context = natural_key(self.me), self.context
        return not any(
            (host not in self._asked or natural_key(host) < mine) and context.is_heard(host) for host in context.others
        )

    def _judge(self, now: float, takeable: list[str]) -> None:
        result = self._opening.evaluate()
        for host in result.adopt:
            seen = self.context.watcher.get(host)
            if host in takeable and seen is not None:
                self._start(host, partial(self._opening.take_over, host, seen))
        if result.reason is not None:
            # nobody is suspected now: a fresh observer goes on where it was; after a storm it begins anew
            at = self._clock.monotonic()
            if result.reason in (SuspicionHold.STORM, SuspicionHold.MAINTENANCE):
                self._suspicions.clear()
            else:
                self._suspicions.put_off(at + ROUND_S)
            if result.reason is SuspicionHold.STORM:
                self._holds.note_hold(FaultCode.STORM_HOLD, at)
            elif result.reason in (SuspicionHold.OBSERVER_STALE, SuspicionHold.OBSERVER_GRACE):
                self._holds.extend_holds(at)
            return
        self._holds.clear_holds(FaultCode.STORM_HOLD)
        for ripe in self._suspicions.find_ripe(result.suspects, now):
            if ripe.host in self._tasks:
                continue
            agreed = self._confirmation.ask(ripe.host, ripe.seen, ripe.waited_s)
            if agreed.go:
                self._condemn_if_allowed(ripe, agreed, now)
                continue
            self._suspicions.postpone(ripe.host, now + ROUND_S)
            if ripe.waited_s == 0.0:
                _log.info("fence.asks_another", host=ripe.host, why=agreed.why)

    def _condemn_if_allowed(self, ripe: Ripe, agreed: AgreeResult, now: float) -> None:
        host = ripe.host
        policy, unit = self._rules.cluster_spec().fencing, self._rules.rate_unit(host)
        if not self._rules.rate.reserve(unit, now, limit=policy.fences_limit, window_s=policy.fences_window_s):
            fields: dict[str, Value] = {
                "host": host,
                "limit": policy.fences_limit,
                "window_s": policy.fences_window_s,
            }
            self._holds.note_hold(FaultCode.RATE_HOLD, now, fields)
            return
        if agreed.reason is Agreed.NO_ANSWER:
            _log.warning("fence.judged_alone", host=host, why=agreed.why)
        if not self._start(host, partial(self._condemn, ripe, agreed.why, unit)):
            self._rules.rate.release(unit)

    # One host

    def _start(self, host: str, opening: Callable[[], Awaitable[Fence | None]]) -> bool:
        """Open a fence and see it through; whether there is a task for it."""
        if self._group is None or host in self._tasks or len(self._tasks) >= TASKS_LIMIT:
            return False
        self._tasks[host] = None
        self._group.create_task(self._see_through(host, opening), name=f"fence {host}")
        return True

    async def _see_through(self, host: str, opening: Callable[[], Awaitable[Fence | None]]) -> None:
        part = f"its fencer, of {host}"
        try:
            with request_context(greq=new_global_request_id(self._ids, "fence"), req=host):
                fence = await opening()
                if fence is not None:
                    self._tasks[host] = fence
                    await fence.run()
                    if fence.dead:
                        took_s = self._clock.monotonic() - fence.quiet_since
                        self._took.labels().observe(took_s)
                        self._fences.labels("proven").inc()
                        took_s = round(took_s, 3)
                        _log.warning("fence.proven", host=host, fence=fence.id, epoch=fence.epoch, took_s=took_s)
            self.context.report_success(part)
        except OutliveError as error:
            _log.warning("fence.put_off", host=host, error=str(error))
            await self._clock.sleep(RETRY_S)
        except Exception as error:  # noqa: BLE001 - a fault says so; one host's fence must not end the others'
            await self._clock.sleep(max(RETRY_S, self.context.report_crash(part, error)))
        finally:
            self._tasks.pop(host, None)

    async def _condemn(self, ripe: Ripe, observers: str, unit: str) -> Fence | None:
        try:
            fence = await self._opening.condemn(ripe.host, ripe.seen, observers=observers, looks=ripe.looks)
        finally:
            self._rules.rate.release(unit)
        self._fences.labels("lives" if fence is None else "condemned").inc()
        return fence

    async def _resume(self, host: str, seen: SeenHost) -> Fence:
        return Fence(self.context, host, seen.record, seen.quiet_since)

    # Trust

    async def _trust(self) -> None:
        """Trust kinds of proof again that turned out wrong for a host, once an operator says so."""
        for host, seen in list(self.context.watcher) if self.context.is_leader() else ():
            word = self._rules.settings_of(host).fencing.trust_again
            if seen.record.distrusted and word not in ("", seen.record.trust_word):
                try:
                    await self._trust_proofs(host)
                except OutliveError as error:
                    _log.info("fence.trust_put_off", host=host, error=str(error))

    async def _trust_proofs(self, host: str) -> None:
        word = (await self.context.read_settings(host)).fencing.trust_again
        written = await self.context.take(
            host,
            TRUST_AGAIN,
            lambda record: TrustView(host=host, record=record, word=word),
            lambda record: not record.distrusted,
        )
        if written.refused is None:
            _log.info("fence.trusted_again", host=host, word=word)


def _without_power_on(fence: FenceRecord) -> FenceRecord:
    return msgspec.structs.replace(fence, power_on=PowerOnRecord())


SPARED_KEPT: Final = 8
"""Entries of one host; the oldest goes first."""

_replace = msgspec.structs.replace


class FenceForecast:
    """What would have been condemned but for maintenance: written to ``Hypervisor.status.spared``, never acted on.

    The rules that suspect hosts go on in maintenance, on the same peers and the same silence, as if nobody were in it;
    only a second observer is not asked. It does not know which of these hosts would have been proven dead, and while
    the store is away nothing is written (docs/how-to/fencing.md#maintenance).
    """

    def __init__(self, context: FencerContext) -> None:
        self._context = context
        self._suspicions = Suspicions(context.watcher, context.rules.decide_looks)
        self._rate = RateRule()
        self._written: dict[str, tuple[int, int]] = {}
        """Host → epoch and renewal of the silence that was written down."""

    async def write_forecast(self) -> None:
        """Write down who would have been condemned since the last look."""
        now, wall = self._context.clock.monotonic(), self._context.clock.now()
        rules = self._context.rules
        under = {
            host: why for host, _ in self._context.watcher if (why := rules.settings_of(host).active_maintenance(wall))
        }
        self._written = {host: found for host, found in self._written.items() if host in under}
        if not under:
            self._suspicions.clear()
            self._rate.clear()
            return
        self._suspicions.drop_the_living()
        result = evaluate(rules.evaluation_input(resting=False))
        if result.reason is not None:
            self._suspicions.put_off(now + FORECAST_S)
            return
        spared: list[tuple[str, Spared]] = []
        for ripe in self._suspicions.find_ripe(result.suspects, now):
            host, seen = ripe.host, ripe.seen
            silence = (seen.record.epoch, seen.record.seq)
            if host not in under or self._written.get(host) == silence:
                continue
            policy, unit = rules.cluster_spec().fencing, rules.rate_unit(host)
            why = f"not renewed for {now - seen.since:.1f} s (limit {rules.silence_s(host, seen):g} s)"
            if self._rate.reserve(unit, now, limit=policy.fences_limit, window_s=policy.fences_window_s):
                self._rate.count(unit, now)
                self._rate.release(unit)
            else:
                why = f"{why}, and then only after a release: {policy.fences_limit} failure domains came before it"
            self._written[host] = silence
            if self._context.is_leader():
                one = Spared(at=as_datetime(wall), epoch=silence[0], seq=silence[1], why=why, under=under[host])
                spared.append((host, one))
        for host, one in spared:
            await self._write(host, one)

    async def _write(self, name: str, one: Spared) -> None:
        def add_spared(host: Hypervisor) -> HypervisorStatus | None:
            kept = host.status.spared
            if any((old.epoch, old.seq) == (one.epoch, one.seq) for old in kept):
                return None
            return _replace(host.status, spared=(*kept, one)[-SPARED_KEPT:])

        try:
            await change_status(self._context.store, Hypervisor, name, add_spared, clock=self._context.clock)
        except OutliveError as error:
            self._written.pop(name, None)
            _log.warning("fence.forecast_not_written", host=name, why=one.why, error=str(error))
        else:
            _log.warning("fence.spared", host=name, why=one.why, under=one.under)
