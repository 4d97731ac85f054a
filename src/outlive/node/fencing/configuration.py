"""Whether the fencing settings of an imported node configuration can work, and what they add up to.

This keeps the rules of that configuration format, intervals and all. Outlive's own timing is a profile and is checked
by ``profile.validate``; nothing here makes an unsafe recovery safe
(docs/reference/node-decisions.md#configvalidate_fencing).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from outlive.node.numbers import Amount, Number, Positive

SHORT_DETECTION_S: Final = 30.0
"""A recovery that begins sooner than this is warned of: a pause would look like a death."""
SLACK_INTERVALS: Final = 2
"""Intervals between the moment a host should stop itself and the moment it certainly did, without the watchdog."""

Action = Literal["migrate", "none"]


class FencingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings. Times in seconds."""

    keepalive_interval: Positive
    fence_intervals: Amount
    saving_throws: Amount
    self_fence_intervals: Amount = 0
    watchdog_timeout: Amount = 15
    failed_fence: Action = "none"
    successful_fence: Action = "migrate"
    watchdog_mode: Literal["off", "automatic", "required"] = "automatic"


class FencingConfigResult(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, what is doubtful, and the two times that matter. Seconds."""

    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    safe_after: Number | None
    """After this much silence a host has stopped itself; null where it never does."""
    earliest_recovery: Number


def validate_fencing(given: FencingConfig) -> FencingConfigResult:
    """Check the settings; with fencing off there is nothing to check."""
    safe_after = safe_after_s(given)
    if given.fence_intervals == 0:
        return FencingConfigResult(
            errors=(), warnings=("fencing_disabled",), safe_after=safe_after, earliest_recovery=0
        )
    earliest = given.keepalive_interval * (given.fence_intervals + given.saving_throws)
    return FencingConfigResult(
        errors=tuple(sorted(_errors(given, safe_after, earliest))),
        warnings=tuple(sorted(_warnings(given, earliest))),
        safe_after=safe_after,
        earliest_recovery=earliest,
    )


def safe_after_s(config: FencingConfig) -> Number | None:
    """Silence after which a host that fences itself is harmless; ``None`` where it does not."""
    if config.self_fence_intervals == 0:
        return None
    intervals = config.self_fence_intervals + SLACK_INTERVALS
    return config.keepalive_interval * intervals + config.watchdog_timeout


def _errors(given: FencingConfig, safe_after: Number | None, earliest: Number) -> Iterator[str]:
    if given.failed_fence != "migrate":
        return
    if safe_after is None:
        yield "failed_fence_needs_self_fence"
        return
    if given.watchdog_mode != "required":
        yield "failed_fence_needs_watchdog"
    if safe_after > earliest:
        yield "self_fence_too_late"


def _warnings(given: FencingConfig, earliest: Number) -> Iterator[str]:
    if given.self_fence_intervals > given.fence_intervals:
        yield "self_fence_exceeds_fence"
    if earliest < SHORT_DETECTION_S:
        yield "short_detection"
    if given.successful_fence == "none":
        yield "no_recovery"
