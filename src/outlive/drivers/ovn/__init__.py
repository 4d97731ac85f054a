"""OVN: its databases, and the switch of a host (docs/roles/network.md).

``northbound.py`` is written, ``southbound.py`` is read; ``host_network.py`` is a host's side, ``cuts.py``
isolates hosts.
"""

from __future__ import annotations

from outlive.drivers.ovn.northbound import OvnNorthbound
from outlive.drivers.ovn.replica import set_certificates
from outlive.drivers.ovn.southbound import OvnSouthbound

__all__ = ["OvnNorthbound", "OvnSouthbound", "set_certificates"]
