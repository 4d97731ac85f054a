"""OVN's databases (docs/roles/network.md): ``northbound.py`` is written, ``southbound.py`` is read."""

from __future__ import annotations

from outlive.drivers.ovn.northbound import OvnNorthbound
from outlive.drivers.ovn.replica import set_certificates
from outlive.drivers.ovn.southbound import OvnSouthbound
from outlive.drivers.ovn.vswitch import LocalSwitch

__all__ = ["LocalSwitch", "OvnNorthbound", "OvnSouthbound", "set_certificates"]
