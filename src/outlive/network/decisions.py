"""The decisions of the network by name, for ``outlive decide`` (docs/design/network-decisions.md)."""

from __future__ import annotations

from typing import Any, Final

from outlive.network.addresses import COPY_ADDRESSES, RELEASE, RESERVE, SYNC_ADDRESSES, ZONE_CONTAINS
from outlive.network.admission import ADMIT
from outlive.network.annotation import ANNOTATION_DECODE, ANNOTATION_ENCODE
from outlive.network.announce import PREFIX_OPTION
from outlive.network.cleanup import ORPHAN, SWEEP
from outlive.network.copies import ALLOWED, LIFECYCLE, MIGRATABLE
from outlive.network.dhcp import DHCP_COMPOSE, DHCP_DELETE, DHCP_ENSURE, DNS_SERVICE, NEEDS_DHCP
from outlive.network.follow import FOLLOW
from outlive.network.follow_switch import FOLLOW_SWITCH
from outlive.network.gateway import ARP_PROXY, GATEWAY_ADVERTISEMENTS, GATEWAY_GARPS, MAC, ROUTER_PORT
from outlive.network.own_networks import RULE_ORDER
from outlive.network.own_vms import OWN_VM
from outlive.network.pod_announcements import POD_ANNOUNCEMENTS
from outlive.network.pods import COPY
from outlive.network.routes import CATCH_ALL
from outlive.network.stage_times import GAP
from outlive.network.status import NEIGHBOURS, STATUS, STATUS_CHANGED
from outlive.network.switch_ports import PORT_ROW, SWITCH_PORTS
from outlive.network.topology import TOPOLOGY
from outlive.runtime import Decision

DECISIONS: Final[tuple[Decision[Any, Any], ...]] = (
    COPY,
    ALLOWED,
    LIFECYCLE,
    MIGRATABLE,
    STATUS,
    STATUS_CHANGED,
    ANNOTATION_DECODE,
    ANNOTATION_ENCODE,
    COPY_ADDRESSES,
    ZONE_CONTAINS,
    RESERVE,
    SYNC_ADDRESSES,
    RELEASE,
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
    MAC,
    ARP_PROXY,
    ROUTER_PORT,
    GATEWAY_GARPS,
    GATEWAY_ADVERTISEMENTS,
    PREFIX_OPTION,
    ADMIT,
    NEIGHBOURS,
    GAP,
    OWN_VM,
    TOPOLOGY,
    POD_ANNOUNCEMENTS,
    FOLLOW_SWITCH,
    RULE_ORDER,
)
"""All of them."""
