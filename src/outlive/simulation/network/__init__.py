"""OVN without OVN: databases and chassis on virtual time, with faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

from outlive.simulation.network.databases import SimulatedNorthbound, SimulatedSouthbound
from outlive.simulation.network.ovn import OvnFault, OvnFaults, SimulatedOvn

if TYPE_CHECKING:
    from outlive.simulation.network.fabric import LAG_S, Fabric
    from outlive.simulation.network.processes import LoneNetworkController
else:
    __getattr__ = load_exports(__name__)

__all__ = ["OvnFault", "OvnFaults", "SimulatedNorthbound", "SimulatedOvn", "SimulatedSouthbound"]
