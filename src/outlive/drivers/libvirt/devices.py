"""Devices of a domain that runs: which it has, and how libvirt gives it another one or takes one away."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Container
from typing import Final

import libvirt

from outlive.base import BadInput, OutliveError, Refused
from outlive.drivers.libvirt.places import check_paths
from outlive.drivers.libvirt.service import LibvirtService, text_of
from outlive.drivers.libvirt.settings import LibvirtSettings
from outlive.drivers.libvirt.xml import METADATA, device_xml
from outlive.resources import Device, VirtualMachine, devices_of

LIVE: Final = libvirt.VIR_DOMAIN_AFFECT_LIVE


class Devices:
    """Of the domains of one host; see ``HypervisorPort`` for each."""

    def __init__(self, service: LibvirtService, settings: LibvirtSettings, monitors: Container[str] = ()) -> None:
        self._service = service
        self._monitors = monitors
        self._settings = settings
        self._limit_s = float(settings.create_limit)

    async def list_disks(self, vm: str, run_id: str) -> dict[str, str]:
        """By name, with the id of each disk."""
        found = await self._service.ask(lambda connection: _read_devices(connection, vm, run_id))
        if found is None:
            raise Refused(f"{vm} has no run {run_id} here that libvirt knows of", remedy="look at its state")
        return {one.name: one.disk for one in found}

    async def attach(self, vm: VirtualMachine, name: str, run_id: str) -> None:
        """By its definition."""
        xml, wanted = device_xml(vm, name, self._settings, self._monitors)
        if await self._has(vm.name, name, run_id, wanted):
            return
        described = f"<domain><devices>{xml}</devices></domain>"

        def work(connection: libvirt.virConnect) -> None:
            check_paths(vm.name, described, self._settings)  # here, since a disk may hang
            _attach(connection, vm.name, run_id, xml)

        try:
            await self._service.call(work, self._limit_s)
        except libvirt.libvirtError as error:
            if not await self._has(vm.name, name, run_id, wanted):  # an earlier call may have come through meanwhile
                raise Refused(f"{vm.name} does not get {name}: {text_of(error)}", remedy="see libvirt's log") from None

    async def _has(self, vm: str, name: str, run_id: str, wanted: str) -> bool:
        found = (await self.list_disks(vm, run_id)).get(name)
        if found not in (None, wanted):
            raise Refused(f"{vm} has another disk as {name}: {found}", remedy="take that away first")
        return found is not None

    async def detach(self, vm: str, name: str, run_id: str) -> None:
        """Ask the guest; libvirt waits a few seconds for it."""
        if name not in await self.list_disks(vm, run_id):
            return
        try:
            await self._service.call(lambda connection: _detach(connection, vm, run_id, name), self._limit_s)
        except libvirt.libvirtError as error:
            raise Refused(f"{vm} keeps {name}: {text_of(error)}", remedy="check its guest, and repeat") from None


def _read_devices(connection: libvirt.virConnect, vm: str, run_id: str) -> list[Device] | None:
    """Devices of that run; ``None`` where libvirt has none of it."""
    try:
        domain = connection.lookupByName(vm)
        described = ET.fromstring(domain.XMLDesc(0))  # noqa: S314 - libvirt's own
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise
    run = described.find(f"metadata/{{{METADATA}}}run")
    if run is None or run.get("runId") != run_id:
        return None
    try:
        return list(devices_of(described, described.findtext("uuid", "")))
    except (BadInput, OutliveError) as error:
        raise libvirt.libvirtError(f"{vm} is described as nothing that is known: {error.message}") from None


def _attach(connection: libvirt.virConnect, vm: str, run_id: str, xml: str) -> None:
    if _read_devices(connection, vm, run_id) is not None:
        connection.lookupByName(vm).attachDeviceFlags(xml, LIVE)


def _detach(connection: libvirt.virConnect, vm: str, run_id: str, name: str) -> None:
    found = next((one for one in _read_devices(connection, vm, run_id) or () if one.name == name), None)
    if found is not None:
        connection.lookupByName(vm).detachDeviceFlags(ET.tostring(found.element, encoding="unicode"), LIVE)
