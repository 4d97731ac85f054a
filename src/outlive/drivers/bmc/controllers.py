"""The ``PowerPort`` of real hosts: a call goes to the driver of its host, with the credential in its secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from outlive.base import NotFound, OutliveError, Unavailable, join_parts
from outlive.drivers.bmc.driver import LIMIT_S, BmcTarget, Credential, CredentialSource, Driver, PowerOrder
from outlive.drivers.bmc.ipmi import IpmiDriver
from outlive.drivers.bmc.program import ProgramDriver
from outlive.drivers.bmc.redfish import RedfishDriver
from outlive.node.ports import PowerReading
from outlive.resources import Hypervisor

NONE: Final = frozenset({"", "none"})
"""Drivers of hosts without a controller."""
DRIVERS: Final[Mapping[str, Driver]] = {"ipmi": IpmiDriver(), "redfish": RedfishDriver(), "command": ProgramDriver()}


class PowerControllers:
    """See the module. ``limit_s``: how long a call may take whose caller sets no limit."""

    def __init__(
        self, credentials: CredentialSource, *, limit_s: float = LIMIT_S, drivers: Mapping[str, Driver] = DRIVERS
    ) -> None:
        self._credentials = credentials
        self._limit_s = limit_s
        self._drivers = drivers

    async def read(self, host: Hypervisor) -> PowerReading:
        """See ``PowerPort``."""
        reading = await self._send(PowerOrder.READ, host)
        assert reading is not None
        return reading

    async def power_off(self, host: Hypervisor) -> None:
        """See ``PowerPort``."""
        await self._send(PowerOrder.OFF, host)

    async def power_on(self, host: Hypervisor) -> None:
        """See ``PowerPort``."""
        await self._send(PowerOrder.ON, host)

    async def check(self, host: Hypervisor) -> str:
        """See ``PowerPort``."""
        driver, target = await self._find_driver(host)
        return await driver.check(target)

    async def _send(self, order: PowerOrder, host: Hypervisor) -> PowerReading | None:
        driver, target = await self._find_driver(host)
        return await driver.send(order, target)

    async def _find_driver(self, host: Hypervisor) -> tuple[Driver, BmcTarget]:
        """The driver of its BMC, and what the driver needs."""
        fencing = host.spec.fencing
        if fencing.driver in NONE:
            raise NotFound(f"{host.name} has no BMC", remedy="give it one in spec.fencing")
        driver = self._drivers.get(fencing.driver)
        if driver is None:
            why = f"driver {fencing.driver!r} is none of {join_parts(tuple(self._drivers))}"
            raise Unavailable(why, remedy="see spec.fencing.driver")
        if unknown := sorted(set(fencing.options) - driver.options):
            why = f"driver {fencing.driver} has no option {join_parts(unknown)}"
            raise Unavailable(why, remedy=f"its options are {join_parts(sorted(driver.options))}")
        credential = Credential()
        if fencing.secret:
            try:
                credential = await self._credentials(fencing.secret)
            except Unavailable:
                raise
            except OutliveError as error:  # nothing was sent yet, whatever is wrong with it
                raise Unavailable(error.message, remedy=error.remedy) from error
        if credential.addresses and fencing.address not in credential.addresses:
            why = f"secret {fencing.secret} is not for the controller at {fencing.address}"
            raise Unavailable(why, remedy=f"outlive secret set {fencing.secret} --address, once for each controller")
        target = BmcTarget(
            host=host.name,
            address=fencing.address,
            options=fencing.options,
            secret=fencing.secret,
            credential=credential,
            expected_uuid=fencing.system_uuid,
            limit_s=self._limit_s,
        )
        return driver, target
