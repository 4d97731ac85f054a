"""The domain that is made of a VM: its definition, and what the driver decides whatever that says. Pure.

The driver owns: name (the VM's), UUID, what happens at poweroff, reboot and crash, the cgroup's partition, the cache of
disks, MAC addresses that are not written, where consoles are logged, address and password of screens, the metadata with
run and epoch, and the monitors by which it reaches QEMU. What of the host a VM names has to be allowed by the host's
settings (``outlive.drivers.libvirt.places``).
"""

from __future__ import annotations

import uuid
import xml.etree.ElementTree as ET
from collections.abc import Container, Mapping
from typing import Final, NamedTuple

from outlive.base import BadInput, NotFound, Refused
from outlive.drivers.libvirt.consoles import console_path
from outlive.drivers.libvirt.places import check_monitors, check_settings
from outlive.drivers.libvirt.processes import format_mark
from outlive.drivers.libvirt.settings import LibvirtSettings
from outlive.resources import (
    Outside,
    VirtualMachine,
    Vnc,
    cache_refusal,
    check_pluggable,
    device_of,
    disk_id,
    examine,
    is_written,
    parse,
    parse_xml,
)

METADATA: Final = "https://outlive.dev/libvirt/1"
QEMU: Final = "http://libvirt.org/schemas/domain/qemu/1.0"
PLAIN: Final = uuid.UUID("0b3c6d0e-3a57-5c1f-9a52-6f75746c6976")
"""Of names of VMs without a definition, whose UUIDs are made from it."""
ENDS: Final = {"on_poweroff": "destroy", "on_reboot": "restart", "on_crash": "destroy"}
ERROR_POLICIES: Final = ("error_policy", "rerror_policy")
"""What becomes of a guest whose disk fails while it writes, and reads, where its definition does not say: it is paused.
"""
ET.register_namespace("qemu", QEMU)
ET.register_namespace("outlive", METADATA)


class Start(NamedTuple):
    """One start of a VM."""

    vm: VirtualMachine
    run_id: str
    epoch: int
    incoming: bool
    sockets: Mapping[str, str]
    """Of its monitors, by their names."""
    password: str = ""
    """Of its screens; empty: none, or the one that an old definition still has."""


def domain_xml(start: Start, settings: LibvirtSettings, monitors: Container[str] = ()) -> str:
    """What libvirt is given; ``Refused`` for a VM that is not to start like this. ``monitors``: those of Ceph that a
    definition may name."""
    vm = start.vm
    if why := cache_refusal(vm.spec.disk_cache):
        raise Refused(f"{vm.name} does not start: {why}", remedy="change spec.diskCache")
    domain = _build_defined(vm) if vm.spec.definition else _build_plain(vm, settings)
    check_settings(f"{vm.name} does not start", _examine_host_names(vm.name, domain), settings)
    check_monitors(f"{vm.name} does not start", domain, monitors)
    _put(domain, "name", vm.name)
    for tag, what in ENDS.items():
        _put(domain, tag, what)
    if settings.partition:
        _put(_ensure_child(domain, "resource"), "partition", settings.partition)
    devices = _ensure_child(domain, "devices")
    _complete_disks(devices, vm.spec.disk_cache, settings)
    _log_console(devices, str(console_path(settings.console_folder, vm.name)))
    for graphics in devices.iterfind("graphics"):
        graphics.set("listen", settings.vnc_listen)
        graphics.set("autoport", "yes")
        graphics.attrib.pop("port", None)
        graphics.attrib.pop("tlsPort", None)
        if start.password:
            graphics.set("passwd", start.password)
        for listen in graphics.findall("listen"):
            graphics.remove(listen)
    metadata = _ensure_child(domain, "metadata")
    for old in metadata.findall(f"{{{METADATA}}}run"):
        metadata.remove(old)
    run = {"vm": vm.name, "runId": start.run_id, "epoch": str(start.epoch)}
    ET.SubElement(metadata, f"{{{METADATA}}}run", run)
    _add_arguments(domain, start)
    return ET.tostring(domain, encoding="unicode")


def device_xml(
    vm: VirtualMachine, name: str, settings: LibvirtSettings, monitors: Container[str] = ()
) -> tuple[str, str]:
    """One device of its definition as libvirt is given it while the VM runs, and the id of the disk; ``Refused``."""
    try:
        device = device_of(vm.spec.definition, name) if vm.spec.definition else None
        if device is not None:
            check_pluggable(device)
    except (BadInput, NotFound) as error:
        raise Refused(f"{vm.name}: {error.message}", remedy=error.remedy) from None
    if device is None:
        raise Refused(f"{vm.name} has no definition that has device {name}", remedy="outlive vm define")
    domain = ET.Element("domain")
    devices = ET.SubElement(domain, "devices")
    devices.append(device.element)
    check_settings(f"{vm.name} does not get {name}", _examine_host_names(vm.name, domain), settings)
    check_monitors(f"{vm.name} does not get {name}", domain, monitors)
    if device.disk:
        _complete_disks(devices, vm.spec.disk_cache, settings)
    elif device.element.find("mac") is None:
        ET.SubElement(device.element, "mac", {"address": device.name})
    return ET.tostring(device.element, encoding="unicode"), device.disk


def find_screen(domain: ET.Element) -> Vnc | None:
    """Where the VNC screen of a domain is, as libvirt describes one that runs."""
    graphics = domain.find("devices/graphics[@type='vnc']")
    if graphics is None:
        return None
    listen = graphics.get("listen") or next((one.get("address", "") for one in graphics.iterfind("listen")), "")
    port = graphics.get("port", "")
    return Vnc(listen=listen, port=int(port)) if listen and port.isdigit() and 0 < int(port) <= 65_535 else None


def _build_defined(vm: VirtualMachine) -> ET.Element:
    try:
        definition, domain = parse(vm.spec.definition), parse_xml(vm.spec.definition)
    except BadInput as error:
        raise Refused(f"{vm.name} does not start: {error.message}", remedy=error.remedy) from None
    for what, of_spec, defined in (
        ("disks", vm.spec.disks, definition.disk_ids),
        ("ports", vm.spec.ports, definition.port_ids),
    ):
        if sorted(of_spec) != sorted(defined) and (what, sorted(map(str.lower, of_spec))) != ("ports", sorted(defined)):
            remedy = "write the VM again with outlive apply, which reads them from the definition"
            has = ", ".join(defined) or "none"
            raise Refused(f"spec.{what} of {vm.name} is not what its definition has: {has}", remedy=remedy)
    unsaid = next((one.id for one in definition.disks if one.shareable and one.id not in vm.spec.shared_disks), "")
    if unsaid:
        remedy = "name it in spec.sharedDisks of each VM that has it, or leave <shareable/> out"
        raise Refused(f"{vm.name} does not start: its disk {unsaid} is shareable", remedy=remedy)
    for interface, port in zip(domain.iterfind("devices/interface"), definition.ports, strict=True):
        _ensure_child(interface, "mac").set("address", port.mac)
    return domain


def _examine_host_names(vm: str, domain: ET.Element) -> tuple[Outside, ...]:
    """What it names of the host; what libvirt makes by itself is left out. ``Refused`` for what no host accepts."""
    try:
        examined = examine(domain)
    except BadInput as error:
        raise Refused(f"{vm} does not start: {error.message}", remedy=error.remedy) from None
    examined.strip()
    for loader in domain.iterfind("os/loader"):
        if (loader.text or "").strip():
            loader.set("readonly", "yes")
    for variables in domain.iterfind("os/nvram"):
        source = variables.find("source")
        if source is not None and not source.attrib:
            variables.remove(source)
            variables.attrib.pop("type", None)
    return examined.outside


def _build_plain(vm: VirtualMachine, settings: LibvirtSettings) -> ET.Element:
    """A machine of ``spec.resources`` and ``spec.disks``."""
    if vm.spec.ports:
        remedy = "write spec.definition, which says to what they are plugged"
        raise Refused(f"{vm.name} has ports ({', '.join(vm.spec.ports)}) and no definition", remedy=remedy)
    domain = ET.Element("domain", {"type": settings.kind})
    try:
        identity = uuid.UUID(vm.name)
    except ValueError:
        identity = uuid.uuid5(PLAIN, vm.name)
    _put(domain, "uuid", str(identity))
    _put(domain, "memory", str(max(1, -(-vm.spec.resources.memory_bytes // 1024))))
    _put(domain, "vcpu", str(max(1, -(-vm.spec.resources.cpu_milli // 1000))))
    _put(_ensure_child(domain, "os"), "type", "hvm")
    ET.SubElement(_ensure_child(domain, "features"), "acpi")
    if settings.kind == "kvm":
        domain.append(ET.Element("cpu", {"mode": "host-model"}))
    devices = _ensure_child(domain, "devices")
    for index, disk in enumerate(vm.spec.disks):
        element = _plain_disk(vm.name, disk, f"vd{chr(ord('a') + index)}")
        if disk in vm.spec.shared_disks:
            ET.SubElement(element, "shareable")
        devices.append(element)
    ET.SubElement(devices, "graphics", {"type": "vnc"})
    ET.SubElement(ET.SubElement(devices, "video"), "model", {"type": "vga"})
    return domain


def _plain_disk(vm: str, identity: str, target: str) -> ET.Element:
    kind, _, place = identity.partition(":")
    sources = {
        "file": ("file", {"file": place}),
        "block": ("block", {"dev": place}),
        "drbd": ("block", {"dev": f"/dev/drbd/by-res/{place}/0"}),
        "rbd": ("network", {"protocol": "rbd", "name": place}),
    }
    if kind not in sources or not place or target > "vdz":
        remedy = "write file:/PATH, rbd:POOL/IMAGE, drbd:RESOURCE or block:/dev/…"
        raise Refused(f"disk {identity!r} of {vm} is of no kind that is known here", remedy=remedy)
    of_kind, source = sources[kind]
    disk = ET.Element("disk", {"type": of_kind, "device": "disk"})
    ET.SubElement(disk, "driver", {"name": "qemu", "type": "raw"})
    try:
        named = disk_id(of_kind, ET.SubElement(disk, "source", source))
    except BadInput as error:
        raise Refused(f"{vm} does not start: {error.message}", remedy=error.remedy) from None
    if named != identity:
        raise Refused(f"disk {identity!r} of {vm} is {named} in truth", remedy="write that")
    ET.SubElement(disk, "target", {"dev": target, "bus": "virtio"})
    return disk


def _complete_disks(devices: ET.Element, cache: str, settings: LibvirtSettings) -> None:
    """Writes end with the process; images of Ceph are opened by the host's user, unless they name their own."""
    for disk in devices.iterfind("disk"):
        source = disk.find("source[@protocol='rbd']")
        if source is not None and settings.ceph_user and disk.find(".//auth") is None:
            auth = ET.SubElement(source, "auth", {"username": settings.ceph_user})
            ET.SubElement(auth, "secret", {"type": "ceph", "uuid": settings.ceph_secret})
        if is_written(disk):
            driver = _ensure_child(disk, "driver")
            written = driver.get("cache", "")
            driver.set("cache", cache or (written if written == "directsync" else "none"))
            for policy in ERROR_POLICIES:  # a guest that sees an error remounts its file system read-only, for good
                driver.set(policy, driver.get(policy, "stop"))


def _log_console(devices: ET.Element, path: str) -> None:
    """The first serial port is logged there; what is written to a file is never emptied by a new start or a move."""
    for kind in ("serial", "console"):
        for one in devices.iterfind(kind):
            if one.get("type") == "file" and (source := one.find("source")) is not None:
                source.set("append", "on")
    first = devices.find("serial")
    if first is None:
        first = ET.SubElement(devices, "serial", {"type": "pty"})
    _ensure_child(first, "log").set("file", path)
    for log in devices.iterfind("*/log"):
        log.set("append", "on")


def _add_arguments(domain: ET.Element, start: Start) -> None:
    """The monitors, of which the first carries the mark; and no bytes after the end of a guest's state.

    The last byte that a source sends is then the end of the state: where writing it failed, no target has all of it.
    """
    name = format_mark(start.vm.name, start.run_id, start.epoch)
    words = []
    for number, path in enumerate(start.sockets.values()):
        identity = name if number == 0 else f"outlive-{number}"
        words += ["-chardev", f"socket,id={identity},path={path},server=on,wait=off"]
        words += ["-mon", f"chardev={identity},mode=control"]
    words += ["-machine", "suppress-vmdesc=on"]
    words += ["-incoming", "defer"] if start.incoming else []
    commandline = ET.SubElement(domain, f"{{{QEMU}}}commandline")
    for word in words:
        ET.SubElement(commandline, f"{{{QEMU}}}arg", {"value": word})


def _ensure_child(parent: ET.Element, tag: str) -> ET.Element:
    found = parent.find(tag)
    return ET.SubElement(parent, tag) if found is None else found


def _put(parent: ET.Element, tag: str, text: str) -> None:
    child = _ensure_child(parent, tag)
    child.text = text
