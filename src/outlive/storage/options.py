"""What the storage agent is told to do."""

from __future__ import annotations

from typing import Literal

import msgspec

from outlive.storage.mapping import SATELLITE_LABEL


class AgentOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Options that decisions read; times in seconds."""

    node_name: str = ""
    fail_over_timeout_s: float = 5.0
    operations_timeout_s: float = 30.0
    grace_period_s: int = 10
    reconcile_interval_s: float = 10.0
    satellite_pod_label: str = SATELLITE_LABEL
    fail_over_unsafe_pods: bool = False
    disable_node_taints: bool = False
    own_taint_delay_s: float | None = None
    drbd_command_timeout_s: float = 10.0
    drbd_stale_after_s: float = 30.0
    promotion_source: Literal["status", "events2"] = "status"
