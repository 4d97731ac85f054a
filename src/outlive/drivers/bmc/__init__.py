"""Power controllers of real hosts: IPMI, Redfish, and programs that operators bring (docs/operating/controllers.md).

``PowerControllers`` is the ``PowerPort``; which driver a host has is its ``spec.fencing.driver``.
"""

from outlive.drivers.bmc.controllers import DRIVERS, PowerControllers
from outlive.drivers.bmc.driver import Credential, CredentialSource

__all__ = ["DRIVERS", "Credential", "CredentialSource", "PowerControllers"]
