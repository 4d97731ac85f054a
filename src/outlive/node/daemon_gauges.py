"""Metrics of one daemon: its membership, its guard, the domains of its host, and the faults that it finds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from outlive.base.clock import Clock
from outlive.node.membership.lease import LeaseRenewer
from outlive.node.vm.domains import LocalDomains
from outlive.runtime.faults import FaultSet

CODES: Final = 100
"""Codes of faults that are told apart."""


class DaemonGauges:
    """See the module; worked out at each scrape, without asking anybody."""

    def __init__(self, lease: LeaseRenewer, domains: LocalDomains, faults: FaultSet, clock: Clock) -> None:
        self._lease = lease
        self._domains = domains
        self._faults = faults
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        """Names are without the prefix."""
        lease, age_s = self._lease, self._lease.own_age_s
        held = GaugeMetricFamily("node_member", "1 while this host holds its membership")
        held.add_metric([], float(lease.held))
        epoch = GaugeMetricFamily("node_epoch", "The epoch of this host's membership")
        epoch.add_metric([], float(lease.me.epoch))
        renewed = GaugeMetricFamily(
            "node_renewed_timestamp_seconds",
            "When the last renewal was sent that the store acknowledged, seconds since 1970",
        )
        if math.isfinite(age_s):
            renewed.add_metric([], self._clock.now() - age_s)
        armed = GaugeMetricFamily("node_guard_armed", "1 while fencers may count on the guard of this host")
        armed.add_metric([], float(lease.counts_as_armed))
        domains = GaugeMetricFamily("node_domains", "Domains that the daemon last saw, by state", labels=["state"])
        for state, count in sorted(Counter(str(one.state) for one in self._domains.present()).items()):
            domains.add_metric([state], count)
        faults = GaugeMetricFamily("node_faults", "Faults that this daemon finds", labels=["code", "severity"])
        found = Counter((str(one.code), str(one.code.severity)) for one in self._faults.active)
        for labels, count in sorted(found.items())[:CODES]:
            faults.add_metric(list(labels), count)
        return [held, epoch, renewed, armed, domains, faults]
