"""A store that misbehaves as real ones do, within the contract, and the same way for the same seed."""

from outlive.store.faults.observation import FaultObservation, FaultRates, Network
from outlive.store.faults.store import FaultStore

__all__ = ["FaultObservation", "FaultRates", "FaultStore", "Network"]
