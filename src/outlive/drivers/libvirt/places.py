"""What of this host its settings let guests have: files, devices, sockets that a VM names (``libvirt.diskPaths``, …).

A path is compared as it is written, and once more right before libvirt opens it, with every link in it followed: a link
below an allowed folder leads to nothing outside of one. Links in ``/dev`` are made by root's own tools, and lead to the
device that is meant. An image of type ``qcow2`` names further files by itself, of which the same is asked. The type of
a file with a firmware's variables may be that of the firmware, which libvirt finds, so its header alone counts.
"""

from __future__ import annotations

import os
import re
import struct
import xml.etree.ElementTree as ET
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Final

from outlive.base import BadInput, Refused
from outlive.drivers.libvirt.settings import LibvirtSettings
from outlive.resources import Outside, Setting, examine, lies_below, monitor_name

VOLUMES: Final = re.compile(r"/dev/(drbd/by-res/[^/]+/\d+|rbd/[^/]+/.+)")
"""Devices of storage that Outlive knows itself, which need no setting."""
IMAGES_LIMIT: Final = 16
"""Images of one chain."""
MAGIC: Final = b"QFI\xfb"
HEADER: Final = struct.Struct(">4sIQI")
"""Magic, version, where the name of the backing file is, and its length."""
HEADER_BYTES: Final = 104
EXTERNAL_DATA: Final = 1 << 2
"""Incompatible feature of version 3: the data is in another file."""


def check_settings(what: str, outside: Iterable[Outside], settings: LibvirtSettings) -> None:
    """``Refused`` for the first that the settings do not allow, as it is written; it names the setting."""
    for one in outside:
        if not _is_allowed(one, one.value, settings):
            raise _place_refusal(what, one, one.value)


def check_monitors(what: str, domain: ET.Element, monitors: Container[str]) -> None:
    """``Refused`` where an image of Ceph is asked for at a monitor that this host does not know: it would be given an
    answer to the challenge of a secret, and serve what it likes."""
    for host in domain.iterfind("devices/disk/source[@protocol='rbd']/host"):
        try:
            known = monitor_name(f"{host.get('name', '')}:{host.get('port') or 6789}") in monitors
        except BadInput:
            known = False
        if not known:
            raise Refused(
                f"{what}: a disk names {host.get('name', '')[:256]}, which is no monitor that this host knows",
                remedy="name it in storage.cephMonitors or storage.clusters of this host's node.yaml, or correct the "
                "definition",
            )


def check_paths(vm: str, xml: str, settings: LibvirtSettings) -> None:
    """``Refused`` where a path of this domain leads elsewhere. It follows links and reads images, and may hang."""
    domain = ET.fromstring(xml)  # noqa: S314 - the driver's own
    what = f"{vm} does not start"
    images = [disk for disk in domain.iterfind("devices/disk") if disk.find("driver[@type='qcow2']") is not None]
    variables = domain.findall("os/nvram")
    for path in _source_paths(images):
        _check_chain(what, path, settings)
    texts = [text for one in variables if (text := (one.text or "").strip())]
    for path in (*texts, *_source_paths(variables)):
        if os.path.lexists(path):  # else libvirt makes it, of a template of the firmware's
            _check_chain(what, path, settings)
    for tag in ("resource", "commandline"):
        for element in [one for one in domain if str(one.tag).endswith(tag)]:
            domain.remove(element)  # the driver's own
    for one in examine(domain).outside:
        if one.value.startswith("/"):
            real = os.path.realpath(one.value)
            of_kernel = one.value.startswith("/dev/") and real.startswith("/dev/")
            of_consoles = one.setting is Setting.CONSOLES and lies_below(one.value, (settings.console_folder,))
            # the driver logs consoles there itself
            if real != one.value and not (of_kernel or of_consoles or _is_allowed(one, real, settings)):
                raise _place_refusal(what, one, f"{one.value}, which leads to {real}")


def _source_paths(elements: Iterable[ET.Element]) -> list[str]:
    sources = [source for one in elements for source in one.iterfind("source")]
    return [path for one in sources for name in ("file", "dev") if (path := one.get(name, "").strip())]


def _check_chain(what: str, path: str, settings: LibvirtSettings) -> None:
    """Each backing file of an image is one that the guest may have as well."""
    for _ in range(IMAGES_LIMIT):
        backing = backing_file(path)
        if not backing:
            return
        path = os.path.realpath(Path(os.path.realpath(path)).parent / backing)
        one = Outside("devices/disk/backingStore", path, Setting.DISKS)
        if re.match(r"[A-Za-z0-9+]+:", backing) or not _is_allowed(one, path, settings):
            raise _place_refusal(what, one, backing)
    raise Refused(f"{what}: more than {IMAGES_LIMIT} images stand behind {path}", remedy="qemu-img rebase")


def backing_file(path: str) -> str:
    """What the header of an image names; empty: nothing, or it is no ``qcow2``. ``Refused``: its data is elsewhere, or
    it is not there."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(HEADER_BYTES)
            if len(head) < HEADER.size or not head.startswith(MAGIC):
                return ""
            _, version, offset, size = HEADER.unpack_from(head)
            features = struct.unpack_from(">Q", head, 72)[0] if version >= 3 and len(head) >= 80 else 0
            if features & EXTERNAL_DATA:
                raise Refused(f"image {path} keeps its data in another file", remedy="qemu-img convert it")
            if not offset or not 0 < size <= 1023:
                return ""
            file.seek(offset)
            return file.read(size).decode(errors="replace")
    except OSError as error:
        raise Refused(f"image {path} cannot be read: {error.strerror}", remedy="see its file system") from None


def _is_allowed(one: Outside, value: str, settings: LibvirtSettings) -> bool:
    match one.setting:
        case Setting.DISKS:
            return VOLUMES.fullmatch(value) is not None or lies_below(value, settings.disk_paths)
        case Setting.FIRMWARE:
            return lies_below(value, settings.firmware_paths)
        case Setting.CONSOLES:
            return lies_below(value, settings.console_paths)
        case Setting.SOCKETS:
            return lies_below(value, settings.socket_paths)
        case Setting.DEVICES:
            return value in settings.host_devices
    return True


def _place_refusal(what: str, one: Outside, value: str) -> Refused:
    element = one.element.rpartition("/")[2] if one.element.count("/") < 2 else "/".join(one.element.split("/")[1:])
    setting = f"libvirt.{one.setting.value}"
    remedy = f"name it or its folder in {setting} of this host's node.yaml, or correct the definition"
    return Refused(f"{what}: its <{element}> names {value[:512]}, which {setting} does not allow", remedy=remedy)
