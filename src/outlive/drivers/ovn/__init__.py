"""OVN: its databases, and the switch of a host (docs/how-to/network-controller.md).

``northbound.py`` is written, ``southbound.py`` is read; ``host_network.py`` is a host's side, ``cuts.py`` isolates
hosts. Settings and hosts without OVN do not load its library.
"""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.drivers.ovn.announcer import PacketAnnouncer, tag_frame
    from outlive.drivers.ovn.arrived_ports import ArrivedPorts
    from outlive.drivers.ovn.connection import JsonConnection
    from outlive.drivers.ovn.cuts import OvnCuts
    from outlive.drivers.ovn.host_network import OvnNetwork
    from outlive.drivers.ovn.neighbour_table import BridgeNeighbours
    from outlive.drivers.ovn.northbound import OvnNorthbound
    from outlive.drivers.ovn.pod_announcer import PodAnnouncer
    from outlive.drivers.ovn.replica import set_certificates
    from outlive.drivers.ovn.settings import HostNetworkSettings
    from outlive.drivers.ovn.southbound import OvnSouthbound
    from outlive.drivers.ovn.trace import OvnTracer
    from outlive.drivers.ovn.values import ColumnType, apply_change, column_type, decode, encode, encode_keys, is_empty
    from outlive.drivers.ovn.vswitch import LocalSwitch
else:
    __getattr__ = load_exports(__name__)
