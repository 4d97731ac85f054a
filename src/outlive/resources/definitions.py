"""A VM's definition: the domain XML of libvirt as its user wrote it, read and checked. Pure.

What is read here is what placement, fencing and locks have to know of a VM: its size, what it may write to, and its
ports. The driver makes the domain from the same text (``outlive.drivers.libvirt.xml``). A disk of an unknown kind is
refused here, and everything else that would write where nobody looks for locks by the table of what is allowed
(``outlive.resources.domain_elements``): no VM has a disk that is not listed.

Ids of disks, as locks and cuts name them: ``rbd:POOL/IMAGE``, ``rbd+MONITOR,…:POOL/IMAGE`` in the Ceph cluster that
has these monitors, ``drbd:RESOURCE``, ``block:/dev/…``, ``file:/PATH``, and what has no locks (``FIRMWARE_FILE``,
``HOST_DEVICES``).
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from outlive.base import BadInput, Refused
from outlive.resources.amounts import Amounts
from outlive.resources.domain_elements import device_name
from outlive.resources.functions import FunctionNeed
from outlive.resources.vms import VirtualMachine

SIZE_LIMIT: Final = 256 * 1024
"""Bytes of a definition."""
DEPTH_LIMIT: Final = 32
ELEMENT_LIMIT: Final = 5_000
VCPU_LIMIT: Final = 4_096
MEMORY_LIMIT: Final = 2**50
NAME_LIMIT: Final = 255
PLACE: Final = "spec.definition"
TYPES: Final = ("kvm", "qemu")
CACHES: Final = frozenset({"", "none", "directsync"})
"""Disk caches that leave nothing to the page cache of the host: writes end with the process."""
FIRMWARE_FILE: Final = "local:nvram"
HOST_DEVICES: Final = "local:hostdev"
"""Ids of what a guest may write to that has no lock and that nobody can cut a host off from, as its disks are listed:
isolation is then no proof for such a VM."""

_UNITS: Final = {
    "b": 1,
    "bytes": 1,
    **dict.fromkeys(("k", "kib"), 2**10),
    **dict.fromkeys(("m", "mib"), 2**20),
    **dict.fromkeys(("g", "gib"), 2**30),
    **dict.fromkeys(("t", "tib"), 2**40),
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_UUID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_MAC: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_DRBD: Final = re.compile(r"/dev/drbd/by-res/([^/]+)/\d+")
_RBD: Final = re.compile(r"/dev/rbd/([^/]+)/(.+)")


class DefinedDisk(msgspec.Struct, frozen=True, kw_only=True):
    """One disk with something in it."""

    id: str
    """Empty for what the guest cannot write to."""
    target: str
    source: str
    """As the definition names it: a path, or ``POOL/IMAGE``."""
    cache: str = ""
    shareable: bool = False
    """Whether other VMs may have it open at the same time."""


class DefinedPort(msgspec.Struct, frozen=True, kw_only=True):
    """One network interface."""

    id: str
    """The UUID of the virtual port (``interfaceid``), else the MAC address."""
    mac: str
    """As written, else always the same for this VM and this interface."""


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """What a definition says."""

    uuid: str
    name: str
    memory_bytes: int
    vcpus: int
    disks: tuple[DefinedDisk, ...] = ()
    ports: tuple[DefinedPort, ...] = ()
    functions: tuple[FunctionNeed, ...] = ()
    """Of its interfaces, those that are virtual functions of its host's cards."""
    graphics: tuple[str, ...] = ()
    """Kinds of its screens: ``vnc``, ``spice``."""
    console: str = ""
    """Where its first serial port or console is written to, if that is a file."""
    host_devices: bool = False
    """Whether devices of the host are passed through: such a guest cannot move while it runs."""
    firmware_file: bool = False
    """Whether the firmware keeps its variables in a file or disk that the definition names."""
    lost: tuple[str, ...] = ()
    """What of its state lies on its host only, and is new after a restart on another one."""
    password: bool = False
    """Whether a password of its screen is written in it."""

    @property
    def disk_ids(self) -> tuple[str, ...]:
        """Of everything that it may write to."""
        unlisted = (HOST_DEVICES,) * self.host_devices + (FIRMWARE_FILE,) * self.firmware_file
        return (*(disk.id for disk in self.disks if disk.id), *unlisted)

    @property
    def port_ids(self) -> tuple[str, ...]:
        """Of all its ports."""
        return tuple(port.id for port in self.ports)

    @property
    def resources(self) -> Amounts:
        """Its size."""
        return Amounts(cpu=1000 * self.vcpus, memory=self.memory_bytes)


def cache_refusal(mode: str) -> str:
    """Why a VM with this disk cache is not started; empty: it may be."""
    if mode in CACHES:
        return ""
    return f"disk cache {mode} leaves writes to its host, which come after its process was killed: write none"


@lru_cache(maxsize=64)
def parse(xml: str) -> Definition:
    """What the definition says; ``BadInput`` names what is missing, wrong or not supported."""
    domain = parse_xml(xml)
    if domain.tag != "domain":
        raise _bad_definition(
            f"a definition begins with <domain>, not <{domain.tag[:64]}>", "write libvirt's domain XML"
        )
    if domain.get("type") not in TYPES:
        raise _bad_definition(
            f"<domain type={domain.get('type', '')!r}> is not run here", f"write one of {', '.join(TYPES)}"
        )
    uuid = _parse_uuid(domain)
    devices = domain.find("devices")
    disks = tuple(_parse_disks(devices)) if devices is not None else ()
    ports = tuple(_parse_ports(devices, uuid)) if devices is not None else ()
    _check_once("disk", [disk.id for disk in disks if disk.id])
    _check_once("target", [disk.target for disk in disks])
    _check_once("port", [port.id for port in ports])
    interfaces = devices.iterfind("interface") if devices is not None else ()
    needs = [_parse_function(one, port.mac) for one, port in zip(interfaces, ports, strict=True)]
    functions = tuple(need for need in needs if need is not None)
    _check_once("virtual function", [one.pci or one.name for one in functions])
    return Definition(
        uuid=uuid,
        name=check_name(_require_text(domain, "name", "<name>…</name>")),
        memory_bytes=_parse_memory(domain),
        vcpus=_parse_whole(_require_text(domain, "vcpu", "<vcpu>…</vcpu>"), "vcpu", VCPU_LIMIT),
        disks=disks,
        ports=ports,
        functions=functions,
        graphics=tuple(one.get("type", "") for one in domain.iterfind("devices/graphics")),
        console=_console_log(domain),
        host_devices=domain.find("devices/hostdev") is not None
        or domain.find("devices/interface[@type='hostdev']") is not None,
        firmware_file=any((one.text or "").strip() or len(one) for one in domain.iterfind("os/nvram")),
        lost=tuple(what for path, what in LOST.items() if domain.find(path) is not None),
        password=any("passwd" in one.attrib for one in domain.iterfind("devices/graphics")),
    )


LOST: Final = {
    "os[@firmware='efi']": "variables of the firmware",
    "os/nvram": "variables of the firmware, unless their file lies on shared storage",
    "devices/tpm/backend[@type='emulator']": "state of the emulated TPM, with every key that is sealed by it",
}
"""Elements whose state a host keeps for itself."""


def has_uuid(xml: str, uuid: str) -> bool:
    """Whether that is the UUID of the definition; of many definitions, only those that contain it are parsed."""
    if uuid.replace("-", "") not in xml.lower().replace("-", ""):
        return False
    try:
        return _parse_uuid(parse_xml(xml)) == uuid
    except BadInput:
        return False


def definition_uuid(xml: str) -> str:
    """Return the UUID of a definition; empty where it has none that can be read."""
    try:
        return _parse_uuid(parse_xml(xml)) if xml else ""
    except BadInput:
        return ""


def parse_xml(xml: str, what: str = "the definition") -> ET.Element:
    """The elements of the text, which is limited in size, depth and number; ``BadInput`` where it is malformed."""
    try:
        size = len(xml.encode())
    except UnicodeEncodeError:
        raise _bad_definition(f"{what} is text in UTF-8", "leave out characters that are none") from None
    if size > SIZE_LIMIT:
        raise _bad_definition(f"{what} has {size} bytes", f"write at most {SIZE_LIMIT}")
    parser = ET.XMLParser(target=_LimitedTreeBuilder())  # noqa: S314 - a document type, and with it every entity, is refused
    try:
        parser.feed(xml)
        found = parser.close()
    except ET.ParseError as error:
        raise _bad_definition(f"{what} is no XML: {error}", "check it with virt-xml-validate") from None
    assert isinstance(found, ET.Element)
    return found


def complete_vm(vm: VirtualMachine) -> VirtualMachine:
    """The VM with its size, disks and ports as its definition says; ``BadInput`` where that cannot be its definition.

    So decisions about these read ``spec`` alone. A VM without a definition is as it was.
    """
    if not vm.spec.definition:
        return vm
    definition = parse(vm.spec.definition)
    if _UUID.fullmatch(vm.name) and vm.name != definition.uuid:
        raise _bad_definition(
            f"<uuid>{definition.uuid}</uuid> is not that of VM {vm.name}", "write the same, or rename the VM"
        )
    spec = msgspec.structs.replace(
        vm.spec,
        display_name=vm.spec.display_name or definition.name,
        resources=Amounts({**vm.spec.resources, **definition.resources}),
        disks=definition.disk_ids,
        ports=definition.port_ids,
        functions=definition.functions,
    )
    return vm if spec == vm.spec else msgspec.structs.replace(vm, spec=spec)


def replace_definition(vm: VirtualMachine, before: str, after: str) -> VirtualMachine:
    """With another definition; ``Refused`` where the one that it has is not ``before``."""
    if vm.spec.definition != before:
        raise Refused(f"the definition of {vm.name} was changed meanwhile", remedy="repeat")
    return complete_vm(msgspec.structs.replace(vm, spec=msgspec.structs.replace(vm.spec, definition=after)))


def host_problem(definition: Definition, memory_bytes: int, cores: int) -> str:
    """Why a host of this size can never run it, two cores being its own; empty: it can. A size of 0 is not known."""
    if memory_bytes and definition.memory_bytes >= memory_bytes:
        return f"it needs {definition.memory_bytes >> 20} MiB of memory, and the host has {memory_bytes >> 20}"
    if cores and definition.vcpus > max(1, cores - 2):
        return f"it needs {definition.vcpus} vCPUs, and the host has {cores} cores, of which two are its own"
    return ""


class _LimitedTreeBuilder(ET.TreeBuilder):
    """Elements without document types, entities of their own, comments or processing instructions."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = self._elements = 0

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise _bad_definition("the definition has a document type", "leave <!DOCTYPE …> out")

    def start(self, tag: str, attrs: dict[str, str]) -> ET.Element:
        self._depth, self._elements = self._depth + 1, self._elements + 1
        if self._depth > DEPTH_LIMIT or self._elements > ELEMENT_LIMIT:
            remedy = f"write at most {ELEMENT_LIMIT} elements, at most {DEPTH_LIMIT} deep"
            raise _bad_definition(
                f"the definition is too large at element {self._elements}, depth {self._depth}", remedy
            )
        return super().start(tag, attrs)

    def end(self, tag: str) -> ET.Element:
        self._depth -= 1
        return super().end(tag)


def _bad_definition(message: str, remedy: str) -> BadInput:
    return BadInput(message, place=PLACE, remedy=remedy)


def _require_text(domain: ET.Element, tag: str, example: str) -> str:
    text = (domain.findtext(tag) or "").strip()
    if not text:
        raise _bad_definition(f"the definition has no <{tag}>", f"write {example}")
    return text


def _parse_uuid(domain: ET.Element) -> str:
    text = _require_text(domain, "uuid", "<uuid>…</uuid> (see uuidgen)").lower()
    if not _UUID.fullmatch(text):
        raise _bad_definition(f"<uuid>{text[:64]}</uuid> is no UUID", "see uuidgen")
    return _hyphenate(text)


def _hyphenate(uuid: str) -> str:
    digits = uuid.replace("-", "")
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def check_name(text: str) -> str:
    """The text; ``BadInput`` unless it may be the name of a domain."""
    if not text or len(text) > NAME_LIMIT or "/" in text or not text.isprintable():
        remedy = f"write at most {NAME_LIMIT} printable characters without /"
        raise _bad_definition(f"{text[:64]!r} is no name of a domain", remedy)
    return text


def _parse_whole(text: str, what: str, limit: int) -> int:
    """A number from 1 to the limit."""
    if not text.isascii() or not text.isdigit() or len(text) > 20 or not 1 <= int(text) <= limit:
        raise _bad_definition(f"{what} is {text[:64]!r}", f"write a whole number from 1 to {limit}")
    return int(text)


def _parse_memory(domain: ET.Element) -> int:
    """In bytes, rounded up to whole KiB as libvirt does."""
    text = _require_text(domain, "memory", "<memory unit='GiB'>…</memory>")
    element = domain.find("memory")
    unit = element.get("unit", "KiB") if element is not None else "KiB"
    if unit.lower() not in _UNITS:
        raise _bad_definition(f"memory has the unit {unit[:64]!r}", "write KiB, MiB or GiB")
    size = _parse_whole(text, "memory", MEMORY_LIMIT) * _UNITS[unit.lower()]
    if size > MEMORY_LIMIT:
        raise _bad_definition(f"memory is {text} {unit}", f"write at most {MEMORY_LIMIT >> 40} TiB")
    return -(-size // 1024) * 1024


def _parse_disks(devices: ET.Element) -> list[DefinedDisk]:
    found = []
    for disk in devices.iterfind("disk"):
        source, driver, target = disk.find("source"), disk.find("driver"), disk.find("target")
        name = target.get("dev", "") if target is not None else ""
        if not name:
            raise _bad_definition("a disk has no target", "write <target dev='vda' bus='virtio'/>")
        device = disk.get("device", "disk")
        if source is None or not source.attrib:
            if device in ("cdrom", "floppy"):
                continue  # an empty drive
            raise _bad_definition(f"disk {name} has no source", "write <source …/>")
        read_only = not is_written(disk)
        cache = driver.get("cache", "") if driver is not None else ""
        cache = "" if cache == "default" else cache
        if not read_only and (why := cache_refusal(cache)):
            raise _bad_definition(f"disk {name} would not start: {why}", "write cache='none'")
        identity = disk_id(disk.get("type", "file"), source)
        if not identity and not read_only:
            kind = f"{disk.get('type', 'file')} {source.get('protocol', '')}".strip()
            remedy = "use a file, a block device or an RBD image: others are locked and cut off by nobody"
            raise _bad_definition(f"disk {name} of type {kind[:64]!r} is not supported", remedy)
        place = source.get("file") or source.get("dev") or source.get("name") or ""
        shareable = disk.find("shareable") is not None
        identity = "" if read_only else identity
        found.append(DefinedDisk(id=identity, target=name, source=place, cache=cache, shareable=shareable))
    return found


def is_written(disk: ET.Element) -> bool:
    """Whether the guest may write to it."""
    return disk.find("readonly") is None and disk.get("device", "disk") != "cdrom"


def disk_id(kind: str, source: ET.Element) -> str:
    """Of a disk of this type and source; empty where it is of no known kind. ``BadInput`` for a relative path."""
    path = source.get("file") if kind == "file" else source.get("dev") if kind == "block" else None
    if path is not None:
        if not path.startswith("/") or not path.isprintable():
            raise _bad_definition(f"{path[:64]!r} is no path of a disk", "write it from / on")
        path = posixpath.normpath("/" + path.lstrip("/"))
        if kind == "file":
            return f"file:{path}"
        if drbd := _DRBD.fullmatch(path):
            return f"drbd:{drbd[1]}"
        if rbd := _RBD.fullmatch(path):
            return f"rbd:{rbd[1]}/{rbd[2]}"
        return f"block:{path}"
    name = source.get("name", "")
    if kind == "network" and source.get("protocol") == "rbd":
        pool, _, image = name.partition("/")
        if not pool or not image or not name.isprintable() or name.startswith("-"):
            raise _bad_definition(f"{name[:64]!r} is no RBD image", "write name='POOL/IMAGE'")
        hosts = [f"{one.get('name', '')}:{one.get('port') or 6789}" for one in source.iterfind("host[@name]")]
        return f"rbd{monitors_kind(hosts)}:{name}"
    return ""


def may_be_same(one: str, other: str) -> bool:
    """Whether two ids may name one disk, for a reader that knows no clusters: the same image of Ceph may be meant where
    one id names no monitors, or both name a common one."""
    first, second = _parse_image(one), _parse_image(other)
    if first is None or second is None:
        return one == other
    return first[1] == second[1] and (not first[0] or not second[0] or not first[0].isdisjoint(second[0]))


def image_key(disk: str) -> str:
    """What all ids of one disk have in common: of an image of Ceph, its name without the monitors."""
    image = _parse_image(disk)
    return disk if image is None else f"rbd:{image[1]}"


def _parse_image(disk: str) -> tuple[frozenset[str], str] | None:
    """The monitors that the id of an image of Ceph names, and ``POOL/IMAGE``; ``None`` for any other disk."""
    kind, _, name = disk.partition(":")
    head, _, monitors = kind.partition("+")
    return (frozenset(monitors.split(",") if monitors else ()), name) if head == "rbd" else None


def monitors_kind(monitors: Iterable[str]) -> str:
    """How the kind of a disk says in which Ceph cluster it lies: ``+a,b``; empty: in the one of the host.

    Monitors are ``NAME``, ``NAME:PORT`` or an address in brackets with or without a port; the usual ports are left out.
    """
    return "".join(("+", ",".join(names))) if (names := sorted({monitor_name(one) for one in monitors})) else ""


def monitor_name(text: str) -> str:
    """The name of one in the id of a disk, without what separates the parts of that."""
    name, _, port = text.rpartition(":") if re.search(r":\d+$", text) else (text, "", "")
    name = name.strip("[]").lower().replace(":", "_")
    if not re.fullmatch(r"[a-z0-9._-]{1,253}", name):
        raise _bad_definition(f"{text[:64]!r} is no monitor of Ceph", "write <host name='mon-1.example' port='6789'/>")
    return name if port in ("", "6789", "3300") else f"{name}#{port}"


def _parse_ports(devices: ET.Element, uuid: str) -> list[DefinedPort]:
    found = []
    for index, one in enumerate(devices.iterfind("interface")):
        written, parameters = one.find("mac"), one.find("virtualport/parameters")
        mac = (written.get("address", "") if written is not None else make_mac(uuid, index)).lower()
        if not _MAC.fullmatch(mac):
            raise _bad_definition(f"interface {index + 1} has the MAC address {mac[:64]!r}", "write 52:54:00:…")
        port = parameters.get("interfaceid", "").lower() if parameters is not None else ""
        if port and not _UUID.fullmatch(port):
            raise _bad_definition(
                f"interface {index + 1} has the interfaceid {port[:64]!r}, which is no UUID", "see uuidgen"
            )
        found.append(DefinedPort(id=_hyphenate(port) if port else mac, mac=mac))
    return found


_FUNCTION: Final = re.compile(r"[^\s/]{1,15}v[0-9]{1,4}")
"""The name of a virtual function: that of its card, ``v``, and its number."""
NAMED_FUNCTION: Final = "ua-"
"""With which the alias of an interface begins that libvirt leaves to users: after it comes the function's name."""
_PCI: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def _parse_function(interface: ET.Element, mac: str) -> FunctionNeed | None:
    """An interface of type ``direct`` in mode ``passthrough`` has the whole device, one of type ``hostdev`` is a PCI
    device of the guest. libvirt accepts nothing but a virtual function for the second."""
    source, alias = interface.find("source"), interface.find("alias")
    if source is None:
        return None
    device, named = source.get("dev", ""), alias.get("name", "") if alias is not None else ""
    if interface.get("type") == "direct" and source.get("mode") == "passthrough" and _FUNCTION.fullmatch(device):
        return FunctionNeed(name=device, mac=mac)
    if interface.get("type") == "hostdev" and _PCI.fullmatch(pci := device_name(source, interface)):
        name = named.removeprefix(NAMED_FUNCTION) if named.startswith(NAMED_FUNCTION) else ""
        return FunctionNeed(name=name, kind="hostdev", pci=pci, mac=mac)
    return None


def make_mac(uuid: str, index: int) -> str:
    """Of an interface that names none: the same on every host and at every start."""
    digest = hashlib.sha256(f"{uuid}/{index}".encode()).hexdigest()
    return f"52:54:00:{digest[:2]}:{digest[2:4]}:{digest[4:6]}"


def _console_log(domain: ET.Element) -> str:
    for kind in ("serial", "console"):
        one = domain.find(f"devices/{kind}")
        if one is None:
            continue
        log = one.find("source") if one.get("type") == "file" else one.find("log")
        if log is not None:
            return log.get("path") or log.get("file") or ""
    return ""


def _check_once(what: str, names: list[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), "")
    if twice:
        raise _bad_definition(f"{what} {twice[:64]!r} is there twice", "name each once")


def with_interface_ids(xml: str, ids: Mapping[int, str]) -> str:
    """The definition with other ids of virtual ports, by the number of the interface; all else stays as it is."""
    domain = parse_xml(xml)
    for index, parameters in enumerate(
        one.find("virtualport/parameters") for one in domain.iterfind("devices/interface")
    ):
        if index in ids and parameters is not None:
            parameters.set("interfaceid", ids[index])
    return ET.tostring(domain, encoding="unicode")


class FunctionPlace(NamedTuple):
    """A virtual function as its host has it."""

    name: str
    pci: str
    device: str
    """Its network device; empty: it has none."""
    vlan: int
    """VLAN that its host is to put its frames into; 0: whatever the definition says."""


def with_function_places(xml: str, places: Iterable[FunctionPlace]) -> str:
    """Return the definition with the devices and VLANs that its virtual functions have on one host.

    libvirt takes a function out of its VLAN as a guest starts, unless the definition names one.
    """
    domain, there = parse_xml(xml), tuple(places)
    for interface in domain.iterfind("devices/interface"):
        need = _parse_function(interface, "")
        place = next((one for one in there if need is not None and need.is_met_by(one.name, one.pci)), None)
        source = interface.find("source")
        if place is None or source is None:
            continue
        if interface.get("type") == "direct" and place.device:
            source.set("dev", place.device)
        if place.vlan:
            for old in interface.findall("vlan"):
                interface.remove(old)
            ET.SubElement(ET.SubElement(interface, "vlan"), "tag", {"id": str(place.vlan)})
    return ET.tostring(domain, encoding="unicode")


def attached_bridges(xml: str) -> tuple[tuple[str, str], ...]:
    """MAC address and bridge of each interface that is attached to a bridge. ``BadInput`` for what is no definition."""
    domain, found = parse_xml(xml), []
    for index, one in enumerate(domain.iterfind("devices/interface")):
        written, source = one.find("mac"), one.find("source")
        bridge = source.get("bridge", "") if source is not None else ""
        if bridge:
            mac = written.get("address", "") if written is not None else make_mac(domain.findtext("uuid", ""), index)
            found.append((mac.lower(), bridge))
    return tuple(found)


def with_bridges(xml: str, bridges: Mapping[int, str]) -> str:
    """The definition with these interfaces on bridges of the host, by their numbers; all else stays as it is."""
    domain = parse_xml(xml)
    for index, interface in enumerate(domain.iterfind("devices/interface")):
        if index in bridges:
            interface.set("type", "bridge")
            for name in ("source", "virtualport"):
                for old in interface.findall(name):
                    interface.remove(old)
            interface.insert(0, ET.Element("source", {"bridge": bridges[index]}))
    return ET.tostring(domain, encoding="unicode")
