"""The decisions of the network by name, for ``outlive decide`` (docs/reference/network-decisions.md)."""

from __future__ import annotations

from typing import Any, Final

from outlive.network.copies import ALLOWED, LIFECYCLE, MIGRATABLE
from outlive.network.dhcp import DHCP_COMPOSE, DHCP_DELETE, DHCP_ENSURE, DNS_SERVICE, NEEDS_DHCP
from outlive.network.status import STATUS, STATUS_CHANGED
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
)
"""All of them."""
