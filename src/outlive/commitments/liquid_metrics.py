"""What the LIQUID interface counts (docs/reference/commitments.md#liquid-metrics).

Series that alerts look at exist from the start, so that a rate over them is 0 and not absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from outlive.runtime import Counter, Histogram, Metrics

Call = Literal["info", "change", "usage", "capacity", "quota"]
Result = Literal["accepted", "rejected", "error"]

PREFIX: Final = "committed_resource_"
CHANGE_SECONDS: Final = (0.5, 1.0, 2.5, 5.0, 7.5, 10.0, 12.5, 15.0, 20.0, 30.0)
REPORT_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
QUOTA_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
CODES: Final[Mapping[Call, tuple[int, ...]]] = {
    "info": (200, 405, 500, 503),
    "change": (200, 400, 405, 409, 500, 503),
    "usage": (200, 400, 405, 500, 503),
    "capacity": (200, 500, 503),
    "quota": (204, 400, 405, 500, 503),
}
"""Status codes whose series exist from the start."""
RESULTS: Final[tuple[Result, ...]] = ("accepted", "rejected", "error")

_SECONDS: Final[Mapping[Call, tuple[float, ...]]] = {
    "info": REPORT_SECONDS,
    "usage": REPORT_SECONDS,
    "capacity": REPORT_SECONDS,
    "quota": QUOTA_SECONDS,
}


class LiquidMetrics:
    """Counters and durations of the five calls, and the capacity that was reported last."""

    def __init__(self, metrics: Metrics) -> None:
        self._requests: dict[Call, Counter] = {}
        self._durations: dict[Call, Histogram] = {}
        for call, buckets in _SECONDS.items():
            name = f"{PREFIX}{call}_api"
            self._requests[call] = metrics.add_counter(
                f"{name}_requests_total", f"LIQUID requests: {call}", ("status_code",)
            )
            self._durations[call] = metrics.add_histogram(
                f"{name}_request_duration_seconds",
                f"Time of LIQUID requests: {call}",
                ("status_code",),
                buckets=buckets,
            )
            for code in CODES[call]:
                self._requests[call].labels(str(code))
                self._durations[call].labels(str(code))
        change = f"{PREFIX}change_api"
        self._change_requests = metrics.add_counter(
            f"{change}_requests_total", "LIQUID requests: change", ("status_code", "dry_run", "result")
        )
        self._change_durations = metrics.add_histogram(
            f"{change}_request_duration_seconds",
            "Time of LIQUID requests: change",
            ("status_code", "dry_run"),
            buckets=CHANGE_SECONDS,
        )
        self._changes = metrics.add_counter(
            f"{change}_commitment_changes_total", "Commitments in change requests", ("result", "az", "dry_run")
        )
        self._timeouts = metrics.add_counter(
            f"{change}_timeouts_total", "Change requests that were not decided in time", ("dry_run",)
        )
        self.reported = metrics.add_gauge(
            f"{PREFIX}reported_capacity", "Capacity as it was reported last", ("resource", "az", "unit_size")
        )
        self._create_change_series()

    def _create_change_series(self) -> None:
        for flag in ("true", "false"):
            self._timeouts.labels(flag)
            for code in CODES["change"]:
                self._change_durations.labels(str(code), flag)
                for result in RESULTS:
                    self._change_requests.labels(str(code), flag, result)
            for result in RESULTS:
                self._changes.labels(result, "", flag)

    def observe(self, call: Call, status: int, seconds: float) -> None:
        """Count one request other than a change."""
        self._requests[call].labels(str(status)).inc()
        self._durations[call].labels(str(status)).observe(seconds)

    def observe_change(
        self, status: int, seconds: float, *, result: Result, dry_run: bool, zone: str, commitments: int
    ) -> None:
        """Count one change request with so many commitments."""
        flag = str(dry_run).lower()
        self._change_requests.labels(str(status), flag, result).inc()
        self._change_durations.labels(str(status), flag).observe(seconds)
        self._changes.labels(result, zone, flag).inc(commitments)

    def count_timeout(self, *, dry_run: bool) -> None:
        """Count a change that was not decided in time."""
        self._timeouts.labels(str(dry_run).lower()).inc()
