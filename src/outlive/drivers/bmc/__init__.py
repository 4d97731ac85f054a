"""BMCs of real hosts: IPMI, Redfish, and programs that operators bring (docs/how-to/bmc.md).

``PowerControllers`` is the ``PowerPort``; which driver a host has is its ``spec.fencing.driver``.
"""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

from outlive.drivers.bmc.controllers import DRIVERS, PowerControllers
from outlive.drivers.bmc.driver import Credential, CredentialSource

if TYPE_CHECKING:
    from outlive.drivers.bmc.driver import uuid_of
    from outlive.drivers.bmc.program import ProgramDriver
    from outlive.drivers.bmc.redfish import RedfishDriver, reading_of
else:
    __getattr__ = load_exports(__name__)

__all__ = ["DRIVERS", "Credential", "CredentialSource", "PowerControllers"]
