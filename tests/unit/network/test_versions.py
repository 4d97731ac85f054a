from __future__ import annotations

import pytest

from outlive.network import ovn_features


@pytest.mark.parametrize(
    ("version", "chassis_list", "arp_proxy_full", "dhcpv6_fqdn", "strategies"),
    [
        ("21.12.1-20.21.0-61.4", False, False, False, ()),
        ("22.06.0-20.23.0-64.3", True, False, False, ("rarp",)),
        ("23.03.1-20.27.0-70.6", True, False, False, ("rarp",)),
        ("23.06.0-20.27.2-71.0", True, True, False, ("rarp",)),
        ("23.09.0-20.28.0-72.3", True, True, True, ("rarp",)),
        ("25.03.0-20.41.0-77.6", True, True, True, ("rarp",)),
        ("25.09.0-21.3.0-80.3", True, True, True, ("rarp", "garp", "na")),
        ("26.03.0-21.3.0-80.3", True, True, True, ("rarp", "garp", "na")),
        ("", False, False, False, ()),
        ("next", False, False, False, ()),
    ],
)
def test_features_come_with_their_versions_and_an_unknown_one_is_old(
    version: str, chassis_list: bool, arp_proxy_full: bool, dhcpv6_fqdn: bool, strategies: tuple[str, ...]
) -> None:
    features = ovn_features(version)
    assert features.version == version
    assert features.chassis_list == chassis_list
    assert features.arp_proxy_full == arp_proxy_full
    assert features.dhcpv6_fqdn == dhcpv6_fqdn
    assert features.strategies == strategies
