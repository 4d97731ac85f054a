"""How long the stages of switch-overs take: measured in the background, so that no move waits for it.

Stages of one switch-over: ``prepare`` (from the move to a target that can take over), ``decide`` (from the event to the
transaction), ``commit``, ``northd`` (to the southbound rows) and ``flows`` (to the flows of the target's chassis). Of a
shared port also ``activation``: from the event until the guest's own announcement had the target's chassis take over,
which is 0 where that was before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Final, NamedTuple

import msgspec

from outlive.base import BadInput, Unavailable, Unknown, get_logger
from outlive.network.events import NetworkEvents
from outlive.network.informers import PortChange, StatusWriter
from outlive.network.ports import NorthboundDb, Receipt
from outlive.resources import VirtualMachinePortStatus
from outlive.runtime import Decision, DecisionLog, Metrics, OrderedTaskGroup

# How long a guest was not heard while it moved, from probes (docs/design/network-decisions.md#networkgap).


class ProbesMissing(BadInput):
    """Nobody probed the guest in the time that is asked about."""

    code = "probes-missing"


class GuestProbe(msgspec.Struct, frozen=True, kw_only=True):
    """One probe."""

    at: Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
    """When it was sent, in seconds."""
    answered: bool = False


class GapInput(msgspec.Struct, frozen=True, kw_only=True):
    """Probes of a guest, and from when on they count."""

    start: float | None = msgspec.field(default=None, name="from")
    """In seconds; ``None``: from the first one."""
    probes: tuple[GuestProbe, ...] = ()


class GapResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Two measures of one silence, in whole milliseconds; both ``None`` while the guest is down."""

    gap_ms: int | None
    """The longest time from one answer to the next."""
    silent_ms: int | None
    """The longest time from the first of some unanswered probes to the next answer."""
    down: bool
    """The last probe has no answer."""


def measure_gap(given: GapInput) -> GapResult:
    """The longest silence of the guest; ``ProbesMissing`` for none at or after the start."""
    counted = [one for one in given.probes if given.start is None or one.at >= given.start]
    probes = sorted(counted, key=lambda one: one.at)
    if not probes:
        raise ProbesMissing("no probe was sent since then", remedy="probe until the move is over")
    if not probes[-1].answered:
        return GapResult(gap_ms=None, silent_ms=None, down=True)
    answers = [one.at for one in probes if one.answered]
    gap = max((later - earlier for earlier, later in pairwise(answers)), default=0.0)
    longest, since = 0.0, None
    for probe in probes:
        if not probe.answered:
            since = probe.at if since is None else since
        elif since is not None:
            longest, since = max(longest, probe.at - since), None
    return GapResult(gap_ms=round(gap * 1000), silent_ms=round(longest * 1000), down=False)


GAP: Final = Decision(
    "network.gap",
    measure_gap,
    GapInput,
    GapResult,
    "How long a guest was not heard",
    nulls_are_absent=True,
)


WAIT_S: Final = 10.0
"""How long a chassis may take; a stage that took longer is not told."""
WAITING_LIMIT: Final = 1000
"""Switch-overs that wait to be measured; further ones are not."""
WORKERS: Final = 8
"""Switch-overs that are measured at once."""
_replace = msgspec.structs.replace
_log = get_logger("network")


class SwitchOver(NamedTuple):
    """One transaction by which ports of a VM got another place."""

    vm: str
    move: str
    """Id of the migration; empty: there was none, so that no guest was silent for it."""
    ports: tuple[str, ...]
    activated_s: Mapping[str, float]
    """Of these, ports that the guest's own announcement switched over → when, in seconds after the event, or before."""
    chassis: str
    receipt: Receipt
    decide_s: float
    commit_s: float


class StageTimes:
    """See the module. ``run`` until cancelled."""

    def __init__(
        self,
        northbound: NorthboundDb,
        writer: StatusWriter,
        metrics: Metrics,
        *,
        events: NetworkEvents,
        decisions: DecisionLog,
    ) -> None:
        self._nb = northbound
        self._writer = writer
        self._events = events
        self._decisions = decisions
        self._waiting: asyncio.Queue[SwitchOver] = asyncio.Queue(WAITING_LIMIT)
        self._stage_s = metrics.add_histogram(
            "network_stage_seconds", "Stages of switch-overs, from the event to the flows of the target", ("stage",)
        )
        self._dropped = metrics.add_counter(
            "network_unmeasured_total", "Switch-overs whose stages were not measured", ()
        )

    def count_prepared(self, took_s: float) -> None:
        """Count how long it took until a target could take over."""
        self._stage_s.labels("prepare").observe(took_s)

    def measure(self, one: SwitchOver) -> None:
        """Measure it soon."""
        try:
            self._waiting.put_nowait(one)
        except asyncio.QueueFull:
            self._dropped.inc()

    async def run(self) -> None:
        """Until cancelled."""
        async with OrderedTaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            one = await self._waiting.get()
            try:
                await self._measure(one)
            except (Unavailable, Unknown) as error:
                self._dropped.inc()
                _log.info("network.not_measured", vm=one.vm, why=str(error))

    async def _measure(self, one: SwitchOver) -> None:
        applied = await self._nb.wait_applied(one.receipt, on=[one.chassis], limit_s=WAIT_S)
        if not applied.done:
            self._dropped.inc()
            return
        times_ms = {"decide": 1000 * one.decide_s, "commit": 1000 * one.commit_s}
        if applied.northd_ms is not None:
            times_ms["northd"] = applied.northd_ms
        if applied.chassis_ms is not None:
            times_ms["flows"] = applied.chassis_ms
        for stage, took_ms in times_ms.items():
            self._stage_s.labels(stage).observe(took_ms / 1000)
        for port in one.ports if one.move else ():
            stages_ms = times_ms
            if port in one.activated_s:
                stages_ms = {**times_ms, "activation": 1000 * max(0.0, one.activated_s[port])}
                self._stage_s.labels("activation").observe(stages_ms["activation"] / 1000)
            gap_ms = self._decisions.use(GAP, probes_of(stages_ms), subject=port).gap_ms
            await self._writer.write_port(port, _record_times(one.move, stages_ms, gap_ms))
            if gap_ms is not None:
                self._events.report_gap(port, gap_ms)


def probes_of(stages_ms: Mapping[str, float]) -> GapInput:
    """What was heard of a guest while it was switched over: at the event the last of the source, then the target.

    The target is heard once its chassis has the flows; of a shared port also once the guest has announced itself there.
    """
    silent_ms = sum(took_ms for stage, took_ms in stages_ms.items() if stage != "activation")
    back_s = min(silent_ms, stages_ms.get("activation", silent_ms)) / 1000
    return GapInput(probes=(GuestProbe(at=0.0, answered=True), GuestProbe(at=back_s, answered=True)))


def _record_times(id: str, stages_ms: Mapping[str, float], gap_ms: int | None) -> PortChange:
    rounded = {stage: round(took_ms, 3) for stage, took_ms in stages_ms.items()}

    def change(now: VirtualMachinePortStatus) -> VirtualMachinePortStatus:
        move = now.migration
        if move is not None and move.id == id:
            move = _replace(move, times_ms={**move.times_ms, **rounded})
        return _replace(now, migration=move, gap_ms=gap_ms)

    return change
