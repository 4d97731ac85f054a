"""The decisions of the network by name, for ``outlive decide`` (docs/reference/network-decisions.md)."""

from __future__ import annotations

from typing import Any, Final

from outlive.network.copies import ALLOWED, LIFECYCLE, MIGRATABLE
from outlive.network.dhcp import DHCP_COMPOSE, DHCP_DELETE, DHCP_ENSURE, DNS_SERVICE, NEEDS_DHCP
from outlive.network.follow import FOLLOW
from outlive.network.garbage import ORPHAN, SWEEP
from outlive.network.routes import CATCH_ALL
from outlive.network.status import STATUS, STATUS_CHANGED
from outlive.network.switch_ports import PORT_ROW, SWITCH_PORTS
from outlive.runtime.decisions import Decision

DECISIONS: Final[tuple[Decision[Any, Any], ...]] = (
    ALLOWED,
    LIFECYCLE,
    MIGRATABLE,
    STATUS,
    STATUS_CHANGED,
    DHCP_COMPOSE,
    DHCP_ENSURE,
    DHCP_DELETE,
    DNS_SERVICE,
    NEEDS_DHCP,
    FOLLOW,
    CATCH_ALL,
    ORPHAN,
    SWEEP,
    SWITCH_PORTS,
    PORT_ROW,
)
"""All of them."""
