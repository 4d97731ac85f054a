"""Devices of a definition that a guest may be given or lose while it runs: disks and network interfaces. Pure.

A device is called by the target of its disk (``vdb``) or the MAC address of its interface. One on the PCI bus has its
address in the definition, so that a target of a live move makes the same machine as the one that runs. Addresses that
are not written are given by libvirt from the lowest slot on; those chosen here begin at the highest.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Final, NamedTuple

from outlive.base import BadInput, NotFound, Refused
from outlive.resources.definitions import disk_id, is_written, make_mac, parse, parse_xml
from outlive.resources.domain_elements import examine

PLACE: Final = "the device"
SLOTS: Final = range(0x1F, 0x0F, -1)
"""PCI slots of bus 0 that are chosen here, in this order."""
BUSES: Final = {"vd": "virtio", "sd": "scsi", "hd": "ide", "fd": "fdc"}
"""What libvirt takes a target for whose bus is not written."""
PLUGGABLE: Final = ("virtio", "scsi")
"""Buses of disks that guests accept while they run."""
NO_DISK: Final = "a disk is not given to a guest that runs"


class Device(NamedTuple):
    """One disk or interface."""

    name: str
    """Target of the disk, or MAC address."""
    disk: str
    """Id of the disk (``outlive.resources.definitions``); empty: it is an interface, or nothing is written to it."""
    element: ET.Element

    @property
    def bus(self) -> str:
        """``virtio``, ``scsi``, …; of an interface ``pci``."""
        if self.element.tag != "disk":
            return "pci"
        target = self.element.find("target")
        given = target.get("bus", "") if target is not None else ""
        return given or BUSES.get(self.name[:2], "")

    @property
    def on_pci(self) -> bool:
        """Whether it has a slot of its own there."""
        return self.bus in ("pci", "virtio")

    @property
    def addressed(self) -> bool:
        """Whether its address is written."""
        return self.element.find("address") is not None


def devices_of(domain: ET.Element, uuid: str) -> Iterator[Device]:
    """Disks and interfaces of a domain. ``BadInput`` for a disk without a target."""
    for disk in domain.iterfind("devices/disk"):
        target, source = disk.find("target"), disk.find("source")
        name = target.get("dev", "") if target is not None else ""
        if not name:
            raise BadInput("a disk has no target", place=PLACE, remedy="write <target dev='vdb' bus='virtio'/>")
        there = source is not None and bool(source.attrib) and is_written(disk)
        identity = disk_id(disk.get("type", "file"), source) if source is not None and there else ""
        yield Device(name, identity, disk)
    for index, interface in enumerate(domain.iterfind("devices/interface")):
        mac = interface.find("mac")
        name = mac.get("address", "").lower() if mac is not None else make_mac(uuid, index)
        yield Device(name, "", interface)


def devices_named(definition: str) -> dict[str, str]:
    """Its disks and interfaces by name, and the id of each disk. ``BadInput`` as ``parse``."""
    return {one.name: one.disk for one in devices_of(parse_xml(definition), parse(definition).uuid)}


def device_of(definition: str, name: str) -> Device:
    """The device of that name. ``NotFound``; ``BadInput`` as ``parse``."""
    return _find_device(parse_xml(definition), parse(definition).uuid, name)


def _find_device(domain: ET.Element, uuid: str, name: str) -> Device:
    devices = list(devices_of(domain, uuid))
    found = next((one for one in devices if one.name in (name, name.lower()) or one.disk == (name or None)), None)
    if found is None:
        names = ", ".join(one.name for one in devices) or "none"
        raise NotFound(f"the definition has no device {name[:80]!r}", remedy=f"it has {names}")
    return found


def with_device(definition: str, device: str) -> tuple[str, str]:
    """The definition with that device (an element of domain XML) as well, and the name of the device.

    One that is there already is named, and the definition stays. ``BadInput`` for what is malformed, cannot be given to
    a guest that runs, or contradicts what is there.
    """
    element, domain, uuid = parse_xml(device, PLACE), parse_xml(definition), parse(definition).uuid
    if element.tag not in ("disk", "interface"):
        raise _bad_device(f"<{element.tag[:64]}> is not given to a guest that runs", "write a <disk> or an <interface>")
    if element.tag == "interface" and element.find("mac") is None:
        interfaces = len(domain.findall("devices/interface"))
        ET.SubElement(element, "mac", {"address": make_mac(uuid, interfaces)})
    wrapper = ET.Element("domain")
    ET.SubElement(wrapper, "devices").append(element)
    (new,) = devices_of(wrapper, uuid)
    check_pluggable(new)
    there = next((one for one in devices_of(domain, uuid) if one.name == new.name), None)
    if there is not None and there.disk == new.disk:
        if (kind := _describe_source(there)) != _describe_source(new):
            raise _bad_device(
                f"{new.name} is there already, as {kind}", "detach that one first, or give it another name"
            )
        return definition, new.name
    if new.bus == "scsi" and domain.find("devices/controller[@type='scsi']") is None:
        raise _bad_device(
            f"{new.name} needs a SCSI controller", "define <controller type='scsi' model='virtio-scsi'/> first"
        )
    if new.on_pci and not new.addressed:
        element.append(_free_address(domain))
    devices = domain.find("devices")
    (ET.SubElement(domain, "devices") if devices is None else devices).append(element)
    text = ET.tostring(domain, encoding="unicode")
    parse(text)
    examine(domain)
    return text, new.name


def _describe_source(device: Device) -> str:
    """What it is of: its type and source, in one line."""
    source = device.element.find("source")
    words = sorted(f"{key}={value}" for key, value in (source.attrib if source is not None else {}).items())
    return " ".join((device.element.get("type", ""), *words)).strip() or device.element.tag


def check_pluggable(device: Device) -> None:
    """``BadInput`` where a guest that runs neither gets nor loses such a device."""
    element = device.element
    if element.tag == "interface":
        if element.get("type") == "hostdev":
            raise _bad_device(
                "a device of the host is not given to a guest that runs", "write another type of interface"
            )
        return
    kind = element.get("device", "disk")
    if kind not in ("disk", "lun") or not device.disk:
        what = kind if kind not in ("disk", "lun") else "read-only disk"
        raise _bad_device(f"a {what[:64]} is not given to a guest that runs", "define it with the VM")
    if device.bus not in PLUGGABLE:
        what = (
            f"disk {device.name} is on bus {device.bus[:64] or 'unknown'}, which nothing is plugged into while it runs"
        )
        raise _bad_device(what, "write bus='virtio', or scsi")


def _free_address(domain: ET.Element) -> ET.Element:
    """A free slot of the bus."""
    machine = domain.find("os/type")
    kind = machine.get("machine", "") if machine is not None else ""
    architecture = machine.get("arch", "x86_64") if machine is not None else "x86_64"
    if "q35" in kind or architecture not in ("x86_64", "i686"):
        remedy = "write its <address type='pci' …/>: the bus of a free pcie-root-port of the definition"
        raise _bad_device(f"for machine {(kind or architecture)[:64]} no PCI address is chosen", remedy)
    if domain.find("features/acpi") is None:
        remedy = "write <features><acpi/></features> into the definition, and start the VM again"
        raise _bad_device("without ACPI nothing is plugged into the PCI bus of a machine that runs", remedy)
    taken = set()
    for one in domain.iterfind("devices/*/address[@type='pci']"):
        if _parse_number(one.get("bus", "0")) == 0:
            taken.add(_parse_number(one.get("slot", "0")))
    free = next((slot for slot in SLOTS if slot not in taken), None)
    if free is None:
        raise _bad_device(
            f"{len(SLOTS)} PCI slots are taken", "take a device away, or write its <address type='pci' …/>"
        )
    place = {"domain": "0x0000", "bus": "0x00", "slot": f"0x{free:02x}", "function": "0x0"}
    return ET.Element("address", {"type": "pci", **place})


def _parse_number(text: str) -> int:
    """Of a part of an address, as libvirt reads it."""
    try:
        return int(text, 16 if text.lower().startswith("0x") else 10)
    except ValueError:
        raise _bad_device(f"{text[:64]!r} is no part of a PCI address", "write one such as slot='0x05'") from None


def without_device(definition: str, name: str, *, force: bool = False) -> str:
    """The definition without that device.

    ``Refused`` for a device on the PCI bus whose address is not written, without ``force``: what comes after it would
    have other addresses at the target of a live move, which then fails. ``NotFound``; ``BadInput`` as ``with_device``.
    """
    domain, uuid = parse_xml(definition), parse(definition).uuid
    gone = _find_device(domain, uuid, name)
    check_pluggable(gone)
    if gone.on_pci and not gone.addressed and not force:
        what = f"{gone.name} has no PCI address in the definition: without it those of others may change"
        raise Refused(what, remedy="add --force, and the VM does not move live until it is restarted")
    devices = domain.find("devices")
    assert devices is not None, "it has one"
    for index, interface in enumerate(devices.iterfind("interface")):
        if interface.find("mac") is None:  # made from its place, which may change
            ET.SubElement(interface, "mac", {"address": make_mac(uuid, index)})
    devices.remove(gone.element)
    return ET.tostring(domain, encoding="unicode")


def _bad_device(message: str, remedy: str) -> BadInput:
    return BadInput(message, place=PLACE, remedy=remedy)
