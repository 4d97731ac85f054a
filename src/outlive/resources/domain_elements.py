"""What a definition may say: every element and attribute of libvirt's domain XML that is allowed, as a table. Pure.

What no line names is refused, so that a definition reaches nothing outside of its VM. Three things happen to what is
named: it is inert and passed on; it names something of the host (a file, a device, a socket), which each host allows
by a setting of its own; or ``virsh dumpxml`` prints it and libvirt makes it anew at each start, then it is left out on
the way to the host. The server refuses what no host may ever accept, and the host what its settings do not allow.
"""

from __future__ import annotations

import itertools
import posixpath
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from outlive.base import BadInput

PLACE: Final = "spec.definition"
PAGE: Final = "docs/reference/definitions.md#allowed"

_DEVICE: Final = {
    "alias": "name",
    "address": "base bus chassis controller cssid devno domain function iobase irq multifunction port reg slot ssid"
    " target type unit uuid",
    "address/zpci": "fid uid",
    "acpi": "index nodeset",
    "boot": "order loadparm",
}
"""Children that every device may have."""
_VIRTIO: Final = "iommu ats packed page_per_vq name=qemu"

ALLOWED: Final[Mapping[str, str]] = {
    # The machine. ``**``: everything below it that is in no namespace.
    "": "type id-",
    "name": "#",
    "uuid": "#",
    "genid": "#",
    "title": "#",
    "description": "#",
    "metadata/**": "",
    "memory": "# unit dumpCore=on|off",
    "currentMemory": "# unit",
    "maxMemory": "# unit slots",
    "memoryBacking": "",
    "memoryBacking/hugepages/**": "",
    "memoryBacking/nosharepages|locked|discard": "",
    "memoryBacking/source": "type=anonymous|memfd",
    "memoryBacking/access": "mode",
    "memoryBacking/allocation": "mode threads",
    "memtune|numatune|blkiotune|perf|pm|keywrap|cpu|clock|features|vcpus|iothreadids/**": "",
    "vcpu": "# placement cpuset current",
    "cputune": "",
    "cputune/shares|period|quota|global_period|global_quota|emulator_period|emulator_quota|iothread_period"
    "|iothread_quota": "#",
    "cputune/vcpupin|emulatorpin|iothreadpin": "vcpu iothread cpuset",
    "cputune/vcpusched|emulatorsched|iothreadsched": "vcpus iothreads scheduler=batch|idle priority",
    "cputune/cachetune|memorytune/**": "",
    "iothreads": "#",
    "defaultiothread": "thread_pool_min thread_pool_max",
    "on_poweroff|on_reboot|on_crash": "#",
    "resource": "-",
    "seclabel": "- type=dynamic model relabel=yes",
    "launchSecurity": "type kernelHashes authorKey vcek",
    "launchSecurity/cbitpos|reducedPhysBits|policy|handle|dhCert|session|guestVisibleWorkarounds|idBlock|idAuth"
    "|hostData|mrConfigId|mrOwner|mrOwnerConfig": "#",
    "sysinfo": "type=smbios|fwcfg",
    "sysinfo/bios|system|baseBoard|chassis|oemStrings": "",
    "sysinfo/bios|system|baseBoard|chassis|oemStrings/entry": "# name",
    "sysinfo/entry": "# name",
    # Its firmware
    "os": "firmware=efi|bios",
    "os/type": "# arch machine",
    "os/firmware/**": "",
    "os/boot": "dev",
    "os/bootmenu": "enable timeout",
    "os/bios": "useserial rebootTimeout",
    "os/smbios": "mode",
    "os/loader": "#:firmware readonly=yes secure stateless type=rom|pflash format",
    "os/nvram": "#:variables template:firmware templateFormat format=raw|qcow2 type=file",
    "os/nvram/source": "file:variables",
    "os/varstore": "path- template:firmware",
    "os/kernel|initrd|dtb": "#:firmware",
    "os/cmdline": "#",
    "os/acpi": "",
    "os/acpi/table": "#:firmware type",
    # Disks
    "devices": "",
    "devices/emulator": "- #:emulator",
    "devices/disk": "type=file|block|network device=disk|cdrom|floppy|lun model snapshot rawio=no sgio=filtered",
    "devices/disk/driver": "name=qemu type:format cache io error_policy rerror_policy ioeventfd event_idx"
    " copy_on_read discard discard_no_unref detect_zeroes iothread queues queue_size iommu ats packed page_per_vq",
    "devices/disk/driver/metadata_cache|iothreads/**": "",
    "devices/disk/source": "file:disk dev:disk protocol=rbd name startupPolicy index",
    "devices/disk/source/host": "name port transport=tcp",
    "devices/disk/source/snapshot": "name",
    "devices/disk/source/slices/**": "",
    "devices/disk/source/auth|encryption/**": "",
    "devices/disk/auth|encryption|iotune|throttlefilters|blockio|geometry/**": "",
    "devices/disk/target": "dev bus tray removable rotation_rate dpofua",
    "devices/disk/readonly|shareable": "",
    "devices/disk/serial|wwn|vendor|product": "#",
    "devices/disk/backingStore|mirror|privateData": "-",
    "devices/controller": "type index model ports vectors maxGrantFrames maxEventChannels",
    "devices/controller/driver": f"{_VIRTIO} iothread queues cmd_per_lun max_sectors ioeventfd",
    "devices/controller/driver/iothreads/**": "",
    "devices/controller/model": "name",
    "devices/controller/target": "chassis chassisNr port busNr index hotplug memReserve",
    "devices/controller/target/node": "#",
    "devices/controller/pcihole64": "# unit",
    "devices/controller/master": "startport",
    "devices/filesystem": "type=mount accessmode fmode dmode model multidevs",
    "devices/filesystem/driver": "type=path wrpolicy",
    "devices/filesystem/source": "dir:folder",
    "devices/filesystem/target": "dir",
    "devices/filesystem/readonly": "",
    "devices/memory": "model=dimm|nvdimm|virtio-pmem|virtio-mem|sgx-epc access discard",
    "devices/memory/uuid": "#",
    "devices/memory/source": "",
    "devices/memory/source/path": "#:kept",
    "devices/memory/source/alignsize|pagesize": "# unit",
    "devices/memory/source/nodemask": "#",
    "devices/memory/source/pmem": "",
    "devices/memory/target": "dynamicMemslots",
    "devices/memory/target/size|requested|current|block": "# unit",
    "devices/memory/target/node": "#",
    "devices/memory/target/readonly": "",
    "devices/memory/target/label": "",
    "devices/memory/target/label/size": "# unit",
    "devices/memory/target/address": "base",
    # Networks
    "devices/interface": "type:network managed trustGuestRxFilters",
    "devices/interface/mac": "address type check",
    "devices/interface/source": "network bridge portgroup portid- connectionid dev:device mode type=unix path:socket",
    "devices/interface/source/address": "@device type domain bus slot function",
    "devices/interface/source/reconnect": "enabled timeout",
    "devices/interface/target": "dev managed=yes",
    "devices/interface/model": "type",
    "devices/interface/driver": f"{_VIRTIO}|vhost txmode ioeventfd event_idx queues rx_queue_size tx_queue_size rss"
    " rss_hash_report",
    "devices/interface/driver/host|guest": "csum gso tso4 tso6 ecn ufo mrg_rxbuf",
    "devices/interface/backend": "type=default|passt tap=/dev/net/tun vhost=/dev/vhost-net",
    "devices/interface/virtualport|vlan|bandwidth|filterref|coalesce|tune|teaming/**": "",
    "devices/interface/ip|route": "family address prefix gateway metric netmask peer",
    "devices/interface/link": "state",
    "devices/interface/mtu": "size",
    "devices/interface/port": "isolated",
    "devices/interface/rom": "bar enabled file:firmware",
    # Ports and screens
    "devices/serial|console|parallel|channel": "type=pty|null|file|unix|spicevmc|spiceport|qemu-vdagent tty-",
    "devices/serial|console|parallel|channel/source": "path:port append mode channel",
    "devices/serial|console|parallel|channel/source/reconnect": "enabled timeout",
    "devices/serial|console|parallel|channel/source/clipboard": "copypaste",
    "devices/serial|console|parallel|channel/source/mouse": "mode",
    "devices/serial|console|parallel|channel/target": "type=isa-serial|usb-serial|pci-serial|spapr-vio-serial"
    "|system-serial|sclp-serial|isa-debug|serial|virtio|sclp|sclplm port name state-",
    "devices/serial|console|parallel|channel/target/model": "name",
    "devices/serial|console|parallel|channel/log": "file:console append",
    "devices/graphics": "type=vnc|spice port autoport tlsPort websocket- listen socket- passwd passwdValidTo"
    " connected keymap:keymap sharePolicy powerControl defaultMode multiUser",
    "devices/graphics/listen": "-",
    "devices/graphics/channel": "name mode",
    "devices/graphics/image|jpeg|zlib|playback": "compression",
    "devices/graphics/streaming|mouse": "mode",
    "devices/graphics/clipboard": "copypaste",
    "devices/graphics/filetransfer": "enable",
    "devices/graphics/audio": "id",
    "devices/graphics/gl": "enable=no",
    "devices/video": "",
    "devices/video/driver": f"{_VIRTIO} vgaconf",
    "devices/video/model": "type heads ram vram vram64 vgamem primary blob edid",
    "devices/video/model/acceleration": "accel2d accel3d rendernode:device",
    "devices/video/model/resolution": "x y",
    "devices/audio": "id type=none|spice timerPeriod",
    "devices/audio/input|output": "mixingEngine fixedSettings voices bufferLength",
    "devices/audio/input|output/settings": "frequency channels format",
    "devices/sound": "model streams multichannel",
    "devices/sound/codec": "type",
    "devices/sound/audio": "id",
    "devices/sound/driver": _VIRTIO,
    # Other devices
    "devices/input": "type=tablet|mouse|keyboard|passthrough|evdev bus model",
    "devices/input/driver": _VIRTIO,
    "devices/input/source": "dev:device evdev:device repeat grab grabToggle",
    "devices/hostdev": "mode=subsystem type=pci|usb|mdev managed model=vfio-pci|vfio-ccw|vfio-ap display=off ramfb=off",
    "devices/hostdev/driver": "name=vfio",
    "devices/hostdev/source": "@device startupPolicy guestReset writeFiltering",
    "devices/hostdev/source/address": "domain bus slot function device uuid type",
    "devices/hostdev/source/vendor|product": "id",
    "devices/hostdev/rom": "bar enabled file:firmware",
    "devices/hostdev/teaming": "type persistent",
    "devices/hub": "type=usb",
    "devices/iommu": "model",
    "devices/iommu/driver": "intremap caching_mode eim iotlb aw_bits dma_translation passthrough xtsup pt granule",
    "devices/memballoon": "model autodeflate freePageReporting",
    "devices/memballoon/stats": "period",
    "devices/memballoon/driver": _VIRTIO,
    "devices/panic": "model",
    "devices/nvram": "",
    "devices/redirdev": "bus=usb type=spicevmc",
    "devices/redirfilter/**": "",
    "devices/rng": "model",
    "devices/rng/rate": "bytes period",
    "devices/rng/driver": _VIRTIO,
    "devices/rng/backend": "#=/dev/urandom|/dev/random|/dev/hwrng model=random|builtin",
    "devices/crypto": "model type=qemu",
    "devices/crypto/backend": "model=builtin queues",
    "devices/smartcard": "mode=passthrough type=spicevmc",
    "devices/smartcard/protocol": "type=raw",
    "devices/tpm": "model=tpm-tis|tpm-crb|tpm-spapr",
    "devices/tpm/backend": "type=emulator|passthrough version persistent_state debug",
    "devices/tpm/backend/device": "path:device",
    "devices/tpm/backend/encryption": "secret",
    "devices/tpm/backend/profile": "source name removeDisabled",
    "devices/tpm/backend/active_pcr_banks/**": "",
    "devices/vsock": "model",
    "devices/vsock/cid": "auto address",
    "devices/vsock/driver": _VIRTIO,
    "devices/watchdog": "model action=reset|shutdown|poweroff|pause|none|inject-nmi",
}
"""Element (alternatives with ``|``) and what it may have, by words: ``NAME`` an attribute of any value, ``NAME=A|B`` of
one of these values, ``NAME:RULE`` of what a rule says, ``NAME-`` left out on the way to the host; ``#`` in the place of
a name is its text, ``@device`` the whole element names a device of the host, ``-`` the whole element is left out."""
SEVERAL: Final = frozenset(
    {
        "seclabel",
        "sysinfo/entry",
        *(f"cputune/{one}" for one in ("vcpupin", "iothreadpin", "vcpusched", "iothreadsched")),
        *(f"cputune/{one}" for one in ("cachetune", "memorytune")),
        "os/boot",
        "os/acpi/table",
        "devices/disk/source/host",
        "devices/interface/ip",
        "devices/interface/route",
        "devices/graphics/channel",
        "devices/graphics/listen",
        *(f"sysinfo/{one}/entry" for one in ("bios", "system", "baseBoard", "chassis", "oemStrings")),
    }
)
"""What may be there more than once beside the devices: of all else libvirt and this reader might take another one."""


class Setting(StrEnum):
    """The setting of a host, in section ``libvirt``, that allows what a definition names outside of its VM."""

    DISKS = "diskPaths"
    FIRMWARE = "firmwarePaths"
    CONSOLES = "consolePaths"
    SOCKETS = "socketPaths"
    DEVICES = "hostDevices"
    NOTHING = ""
    """It names nothing outside of the VM."""


class Outside(NamedTuple):
    """Something of the host that a definition names."""

    element: str
    """Where: ``devices/disk/source``."""
    value: str
    """A path, or the name of a device (docs/reference/definitions.md#host-devices)."""
    setting: Setting


class Examined(NamedTuple):
    """A definition of which all elements are allowed."""

    outside: tuple[Outside, ...]
    made_again: tuple[tuple[ET.Element, ET.Element | str], ...]
    """Elements, and of each the child, attribute or text (``#``) that is left out on the way to the host."""

    def strip(self) -> None:
        """Leave out of the elements what libvirt makes by itself."""
        for element, what in self.made_again:
            if isinstance(what, ET.Element):
                element.remove(what)
            elif what == "#":
                element.text = None
            else:
                element.attrib.pop(what, None)


EMULATOR: Final = re.compile(r"/usr/(local/)?(bin|libexec|lib/xen/bin)/(qemu-system-[a-z0-9_]+|qemu-kvm|kvm|kvm-spice)")
KEYMAP: Final = re.compile(r"[a-z]{2}[a-z-]{0,30}")
"""QEMU takes anything else for the path of a file."""
OWN_VARIABLES: Final = "/var/lib/libvirt/qemu/nvram/"
"""Where libvirt keeps the variables of firmwares: it finds the file by the name of the domain."""
OWN_SOCKETS: Final = ("/var/lib/libvirt/qemu/", "/run/libvirt/qemu/", "/var/run/libvirt/qemu/")
"""Where libvirt makes the sockets of channels and screens by itself."""

REMEDIES: Final = {
    "devices/filesystem": "use a disk: a folder of the host is locked and cut off by nobody",
    "devices/filesystem/source": "add <readonly/>, or use a disk: a folder of the host is locked and cut off by nobody",
    "devices/hostdev": "use a disk of type block: what the device holds is locked and cut off by nobody",
    "devices/disk/source": "use a file, a block device or an RBD image: others are locked and cut off by nobody",
    "devices/memory/source/path": "add <readonly/> to its target, or use a disk: its file is locked by nobody",
    **{
        f"cputune/{one}": "leave it out: a guest that runs before everything else stops the host's own daemons"
        for one in ("vcpusched", "emulatorsched", "iothreadsched")
    },
    "devices/emulator": "leave it out: the emulator is the host's own",
    "seclabel": "leave it out: labels are given by the host's libvirt",
}
"""What to do instead, where there is something; the element is named in the message."""

Rule = Callable[[str, ET.Element, ET.Element], Setting | None]
"""Of a value, its element and the device that it is in: the setting that allows it; ``None``: it is left out on the way
to the host. ``ValueError`` says why no host may accept it."""


def _check_folder(_value: str, _element: ET.Element, device: ET.Element) -> Setting:
    if device.find("readonly") is None:
        raise ValueError("is a folder of the host that the guest may write to")
    return Setting.DISKS


def _check_kept(_value: str, _element: ET.Element, device: ET.Element) -> Setting:
    if device.find("target/readonly") is None:
        raise ValueError(f"is memory of model {device.get('model', '')} that is kept, and that the guest may write to")
    return Setting.DISKS


def _check_variables(value: str, _element: ET.Element, _device: ET.Element) -> Setting | None:
    return None if value.startswith(OWN_VARIABLES) else Setting.DISKS


def _check_format(value: str, _element: ET.Element, device: ET.Element) -> Setting:
    if value not in ("raw", "qcow2"):
        raise ValueError("is neither raw nor qcow2")
    if value == "qcow2" and device.get("type") == "network":
        raise ValueError("may name files of the host by itself, in an image that no host can look into: write raw")
    return Setting.NOTHING


def _check_emulator(value: str, _element: ET.Element, _device: ET.Element) -> None:
    if not EMULATOR.fullmatch(value):
        raise ValueError("is no emulator of a distribution")


def _check_keymap(value: str, _element: ET.Element, _device: ET.Element) -> Setting:
    if not KEYMAP.fullmatch(value):
        raise ValueError("is no layout of a keyboard: write de, en-us, …")
    return Setting.NOTHING


def _check_port(value: str, _element: ET.Element, device: ET.Element) -> Setting | None:
    """Of a serial port, console or channel: a terminal of libvirt's own making, a file or a socket."""
    match device.get("type"):
        case "pty":
            return None
        case "file":
            return Setting.CONSOLES
        case "unix":
            return None if value.startswith(OWN_SOCKETS) else Setting.SOCKETS
    raise ValueError(f"is nothing that a port of type {device.get('type', '')[:64]!r} has")


INTERFACES: Final = ("network", "bridge", "ethernet", "direct", "vdpa", "vhostuser", "hostdev", "null")
"""Types of interfaces that reach only a network, or what their source names."""
USER_NETWORK: Final = "user"
"""QEMU's own network, by which a guest reaches what listens on the loopback of the host."""


def _check_network(value: str, _element: ET.Element, _device: ET.Element) -> Setting:
    if value == USER_NETWORK:
        return Setting.DEVICES
    if value not in INTERFACES:
        raise ValueError(f"is none of {', '.join(INTERFACES)}")
    return Setting.NOTHING


RULES: Final[Mapping[str, Rule]] = {
    "disk": lambda *_: Setting.DISKS,
    "firmware": lambda *_: Setting.FIRMWARE,
    "console": lambda *_: Setting.CONSOLES,
    "socket": lambda *_: Setting.SOCKETS,
    "device": lambda *_: Setting.DEVICES,
    "folder": _check_folder,
    "format": _check_format,
    "kept": _check_kept,
    "variables": _check_variables,
    "emulator": _check_emulator,
    "port": _check_port,
    "keymap": _check_keymap,
    "network": _check_network,
}


class _ElementRule(NamedTuple):
    """What one element may have."""

    attributes: Mapping[str, tuple[str, str]]
    """By name: a rule or values, after the sign between them (``:``, ``=``, ``-`` or none)."""
    anything_below: bool = False

    @property
    def left_out(self) -> bool:
        return "" in self.attributes


def _element_rule(words: str, anything_below: bool = False) -> _ElementRule:
    found: dict[str, tuple[str, str]] = {}
    for word in words.split():
        name, sign, rest = re.fullmatch(r"([^:=-]*)([:=-]?)(.*)", word).groups()  # type: ignore[union-attr]
        found[name] = (sign, rest)
    return _ElementRule(found, anything_below)


def _build_rules() -> Mapping[str, _ElementRule]:
    found: dict[str, _ElementRule] = {}
    for pattern, words in ALLOWED.items():
        anything = pattern.endswith("/**")
        parts = [part.split("|") for part in pattern.removesuffix("/**").split("/")]
        for path in itertools.product(*parts):
            found["/".join(path)] = _element_rule(words, anything)
    devices = {path for path in found if path.count("/") == 1 and path.startswith("devices/")}
    for device, (child, words) in itertools.product(devices, _DEVICE.items()):
        found.setdefault(f"{device}/{child}", _element_rule(words))
    return found


TABLE: Final = _build_rules()


def examine(domain: ET.Element) -> Examined:
    """What a definition names outside of its VM, and what is left out of it; ``BadInput`` for what is not allowed."""
    outside: list[Outside] = []
    made_again: list[tuple[ET.Element, ET.Element | str]] = []
    for path, element, parent, device in _walk_elements(domain, "", domain, domain):
        outside += _check(path, element, device, made_again)
        if TABLE[path].left_out:
            made_again.append((parent, element))
    return Examined(tuple(outside), tuple(made_again))


def _walk_elements(
    element: ET.Element, path: str, parent: ET.Element, device: ET.Element
) -> Iterator[tuple[str, ET.Element, ET.Element, ET.Element]]:
    """Each element that a line of the table is about, with its path, its parent and the device that it is in."""
    line = TABLE.get(path)
    if line is None:
        raise _element_refusal(path, element, "is not allowed")
    if line.anything_below:
        foreign = next((str(one.tag) for one in element.iter() if "}" in str(one.tag)), "")
        if foreign and path != "metadata":
            raise _element_refusal(path, element, f"has {foreign[:80]!r}, which is no element of libvirt's")
        return
    yield path, element, parent, device
    seen = set[str]()
    for child in element if not line.left_out else ():
        below = f"{path}/{child.tag}" if path else str(child.tag)
        if below in seen and path != "devices" and below not in SEVERAL:
            raise _element_refusal(below, child, "is there twice")
        seen.add(below)
        yield from _walk_elements(child, below, element, child if path == "devices" else device)


def _check(
    path: str, element: ET.Element, device: ET.Element, made_again: list[tuple[ET.Element, ET.Element | str]]
) -> Iterator[Outside]:
    """What one element names outside of the VM."""
    attributes = TABLE[path].attributes
    if TABLE[path].left_out and len(attributes) == 1:
        return
    if "@device" in attributes and "hostdev" in (device.tag, device.get("type")):
        yield Outside(path, device_name(element, device), Setting.DEVICES)
    text = (element.text or "").strip()
    for name, value in (*element.attrib.items(), *([("#", text)] if text else [])):
        what = "text" if name == "#" else name
        if name not in attributes:
            raise _element_refusal(path, element, f"may have no {what[:64]} ({value[:64]!r})")
        sign, rest = attributes[name]
        if sign == "=" and value not in rest.split("|"):
            raise _element_refusal(path, element, f"may not have {what} {value[:64]!r}, only {rest.replace('|', ', ')}")
        if sign == "-":
            made_again.append((element, name))
        if sign != ":":
            continue
        try:
            setting = RULES[rest](value, element, device)
        except ValueError as error:
            raise _element_refusal(path, element, f"names {value[:80]!r}, which {error}") from None
        if setting is None:
            made_again.append((element, name))
        elif setting is not Setting.NOTHING:
            is_path = value.startswith("/") and value.isprintable() and ".." not in value.split("/")
            if not is_path and (setting is not Setting.DEVICES or value.startswith("/")):
                what = f"names {value[:80]!r}, which is no path from / on without .."
                raise _element_refusal(path, element, what)
            yield Outside(path, value, setting)


def _element_refusal(path: str, element: ET.Element, why: str) -> BadInput:
    """The element is named with its attribute ``type``, which often is what is refused."""
    kind = f" type={element.get('type', '')[:40]!r}" if element.get("type") else ""
    remedy = REMEDIES.get(path) or f"leave it out, no setting of a host allows it: see {PAGE}"
    where = f" in {path.rpartition('/')[0]}" if "/" in path else ""
    return BadInput(f"<{str(element.tag)[:64]}{kind}>{where} {why}", place=PLACE, remedy=remedy)


def device_name(source: ET.Element, device: ET.Element) -> str:
    """Of a device of the host, as ``libvirt.hostDevices`` names it: ``0000:03:00.0`` on the PCI bus, ``usb:1d6b:0002``
    by its maker, ``usb:1.4`` by bus and number, and the UUID of a mediated one. ``BadInput`` where it names none."""
    address = source if source.tag == "address" else source.find("address")
    vendor, product = source.find("vendor"), source.find("product")
    kind = device.get("type", "")
    if kind == "hostdev":
        kind = address.get("type", "pci") if address is not None else ""
    try:
        if kind == "usb" and vendor is not None and product is not None:
            return f"usb:{int(vendor.get('id', ''), 0):04x}:{int(product.get('id', ''), 0):04x}"
        if kind == "usb" and address is not None:
            return f"usb:{int(address.get('bus', ''), 0)}.{int(address.get('device', ''), 0)}"
        if kind == "mdev" and address is not None and address.get("uuid"):
            return address.get("uuid", "").lower()
        if kind == "pci" and address is not None:
            parts = [int(address.get(part, "0"), 0) for part in ("domain", "bus", "slot", "function")]
            return "{:04x}:{:02x}:{:02x}.{:x}".format(*parts)
    except ValueError:
        pass
    remedy = "write its <address>, or <vendor id='0x…'/> and <product id='0x…'/>"
    raise BadInput(
        f"<{device.tag}> passes a device of the host through and does not say which", place=PLACE, remedy=remedy
    )


def lies_below(path: str, folders: tuple[str, ...]) -> bool:
    """Whether the path is in one of these folders, or is one of them; none of them ends with a slash but the root."""
    normal = posixpath.normpath("/" + path.lstrip("/"))
    return any(normal == folder or normal.startswith(folder.rstrip("/") + "/") for folder in folders)
