"""What northd can do, by its version."""

from __future__ import annotations

import re
from typing import Final

from outlive.network.ports import OvnFeatures

_CHASSIS_LIST: Final = (22, 6)
_ARP_PROXY: Final = (23, 6)
_FQDN: Final = (23, 9)
_ALL_STRATEGIES: Final = (25, 9)
_VERSION: Final = re.compile(r"(\d+)\.(\d+)[.-]")


def ovn_features(version: str) -> OvnFeatures:
    """The features of a version as northd writes it (``23.03.1-20.27.0-70.6``); none of one that is not understood."""
    found = _VERSION.match(version + ".")
    number = (int(found[1]), int(found[2])) if found else (0, 0)
    strategies: tuple[str, ...] = ()
    if number >= _CHASSIS_LIST:
        strategies = ("rarp", "garp", "na") if number >= _ALL_STRATEGIES else ("rarp",)
    return OvnFeatures(
        version=version,
        arp_proxy_full=number >= _ARP_PROXY,
        dhcpv6_fqdn=number >= _FQDN,
        chassis_list=number >= _CHASSIS_LIST,
        strategies=strategies,
    )
