"""OVN without OVN: databases and chassis on virtual time, with faults."""

from __future__ import annotations

from outlive.simulation.network.databases import SimulatedNorthbound, SimulatedSouthbound
from outlive.simulation.network.ovn import OvnFault, OvnFaults, SimulatedOvn

__all__ = ["OvnFault", "OvnFaults", "SimulatedNorthbound", "SimulatedOvn", "SimulatedSouthbound"]
