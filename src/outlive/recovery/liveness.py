"""The server's word on hosts that it does not hear of: what it sees of renewals, and their condition ``Ready``.

As Kubernetes' node controller does it: ``Ready`` becomes ``Unknown`` when a host is silent for as long as its profile
allows, ``False`` when it is condemned or dead, and what the server wrote it takes back as soon as the host renews
again. Nothing of the safety protocol rests on it: fencers count by themselves (docs/concepts/safety.md#liveness).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from outlive.base import Clock, OutliveError, as_datetime, get_logger
from outlive.node import ClusterLiveness, observed_ready
from outlive.recovery.cluster_health import covered_by
from outlive.recovery.informers import RecoveryInformers
from outlive.recovery.view import RecoveryObserver
from outlive.resources import (
    CLUSTER,
    Cell,
    CoveredBy,
    Hypervisor,
    HypervisorStatus,
    Resource,
    observed_condition,
    to_builtins,
    with_condition,
)
from outlive.runtime import Periodic
from outlive.store import Store, change_status

LOOK_S: Final = 1.0
"""How often the conditions are compared with what is seen: silence makes no event."""
WRITES_AT_A_LOOK: Final = 500
"""Hosts whose condition one look writes; the others follow in the next."""
FRESH_S: Final = 0.5
"""How old what is shown may be: many tables in a row are worked out from one look."""
_replace = msgspec.structs.replace
_log = get_logger("liveness")


class LivenessController:
    """See the module. ``run`` while this process leads; the questions are answered by every process that watches."""

    def __init__(self, store: Store, informers: RecoveryInformers, observer: RecoveryObserver, clock: Clock) -> None:
        self._store = store
        self._informers = informers
        self._observer = observer
        self._clock = clock
        self._shown: tuple[float, ClusterLiveness] | None = None
        self._covered: tuple[float, dict[str, CoveredBy]] = (float("-inf"), {})

    def current_liveness(self) -> ClusterLiveness:
        """How hosts and VMs are."""
        informers = self._informers
        cluster = informers.clusters.get(CLUSTER)
        return ClusterLiveness(
            self._observer.observe_renewals(), cluster, informers.hypervisors.get, informers.memberships.get
        )

    def cells_of(self, obj: Resource) -> dict[str, Cell]:
        """What tables print of the object instead of what its document says."""
        at_s = self._clock.monotonic()
        if self._shown is None or at_s - self._shown[0] > FRESH_S:
            self._shown = (at_s, self.current_liveness())
        return {**self._shown[1].cells_of(obj)}

    def covered_by(self, host: str) -> CoveredBy:
        """By what the covered VMs of the host are covered; each host is worked out once in ``LOOK_S``."""
        at_s = self._clock.monotonic()
        if at_s - self._covered[0] > LOOK_S:
            self._covered = (at_s, {})
        found, informers = self._covered[1], self._informers
        if host not in found:
            cluster, member = informers.clusters.get(CLUSTER), informers.memberships.get(host)
            found[host] = covered_by(informers.hypervisors.get(host), member, cluster, self._clock.now())
        return found[host]

    async def answer_liveness(self, _query: object) -> Any:
        """The answer to ``/liveness``: ``RenewalSight``."""
        written_at = getattr(self._store, "written_at", None)
        written = as_datetime(written_at) if written_at is not None else None
        return to_builtins(_replace(self._observer.observe_renewals(), written=written))

    async def run(self) -> None:
        """Compare and write, for ever."""
        await Periodic(self.write_conditions, LOOK_S, clock=self._clock, wait_first=True).run()

    async def write_conditions(self) -> None:
        """Have the conditions say what is seen now. While this process sees nothing they stay."""
        life = self.current_liveness()
        if life.sight.blind:
            return
        written = 0
        for member in self._informers.memberships.items():
            name, host = member.name, self._informers.hypervisors.get(member.name)
            well = member.record.state == "Held" and name not in life.sight.silent
            if host is None or (well and observed_condition(host) is None):
                continue
            if observed_ready(host, life.liveness_of_host(name), life.sight.at) is None:
                continue
            await self._write(name, life)
            written += 1
            if written == WRITES_AT_A_LOOK:
                return

    async def _write(self, name: str, life: ClusterLiveness) -> None:
        def set_ready(found: Hypervisor) -> HypervisorStatus | None:
            ready = observed_ready(found, life.liveness_of_host(name), as_datetime(self._clock.now()))
            if ready is None:
                return None
            return _replace(found.status, conditions=with_condition(found.status.conditions, ready))

        try:
            await change_status(self._store, Hypervisor, name, set_ready, clock=self._clock)
        except OutliveError as error:  # the next look writes again
            _log.warning("liveness.not_written", host=name, error=str(error))
