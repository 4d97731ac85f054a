"""What a definition may say: ordinary domains pass, and what reaches out of its VM is refused or told."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.base import BadInput
from outlive.resources import PAGE, TABLE, examine, lies_below, parse, parse_xml, with_device

UUID = "7b0a2c5e-0000-4000-8000-00000000d0d0"
PRINTED = sorted(Path(__file__).with_name("domains").glob("*.xml"))
ARGUMENTS = "<q:commandline xmlns:q='http://libvirt.org/schemas/domain/qemu/1.0'><q:arg value='x'/></q:commandline>"
OVERRIDE = "<q:override xmlns:q='http://libvirt.org/schemas/domain/qemu/1.0'><q:device alias='a'/></q:override>"
DISK = "<disk type='file'>{}<source file='/srv/a'/><target dev='vda'/></disk>"


def domain(devices: str = "", more: str = "", os: str = "<os><type>hvm</type></os>") -> ET.Element:
    return parse_xml(
        f"<domain type='kvm'><name>web</name><uuid>{UUID}</uuid><memory>1024</memory><vcpu>1</vcpu>{os}{more}"
        f"<devices>{devices}</devices></domain>"
    )


def named(devices: str = "", **more: str) -> list[tuple[str, str]]:
    return [(one.value, one.setting.value) for one in examine(domain(devices, **more)).outside]


@pytest.mark.parametrize("path", PRINTED, ids=lambda path: path.stem)
def test_what_virsh_prints_of_ordinary_domains_is_accepted(path: Path) -> None:
    assert parse(path.read_text()).uuid
    examine(parse_xml(path.read_text()))


def test_tuning_of_processors_that_stays_below_the_host_s_own_is_accepted() -> None:
    pins = "".join(
        f"<vcpupin vcpu='{one}' cpuset='{one}'/><iothreadpin iothread='{one}' cpuset='1'/>" for one in (1, 2)
    )
    limits = "".join(f"<{one}>1000</{one}>" for one in ("shares", "period", "quota", "global_quota", "iothread_quota"))
    cache = "<cachetune vcpus='0-1'><cache id='0' level='3' type='both' size='3' unit='MiB'/></cachetune>"
    both = "<vcpusched vcpus='0' scheduler='batch'/><vcpusched vcpus='1' scheduler='idle'/>"
    more = f"<cputune>{limits}{pins}<emulatorpin cpuset='0'/>{cache}{cache}{both}</cputune>"
    assert examine(domain(more=more)).outside == ()


@pytest.mark.parametrize("layout", ["de", "en-us", "pt-br", "fr-ch", "common"])
def test_a_screen_has_any_layout_of_a_keyboard(layout: str) -> None:
    assert named(f"<graphics type='vnc' keymap='{layout}'/>") == []


def test_what_libvirt_makes_by_itself_is_left_out_and_the_rest_stays() -> None:
    text = next(path for path in PRINTED if path.stem == "q35-uefi-running").read_text()
    found = parse_xml(text)
    examined = examine(found)
    examined.strip()
    gone = ("seclabel", "resource", "devices/emulator", ".//backingStore", ".//listen", "devices/serial/source[@path]")
    assert [path for path in gone if found.find(path) is not None] == []
    assert found.get("id") is None
    variables = found.find("os/nvram")
    assert variables is not None
    assert variables.text is None
    assert variables.get("template") == "/usr/share/OVMF/OVMF_VARS_4M.ms.fd"
    assert {one.value for one in examined.outside} == {
        "/usr/share/OVMF/OVMF_CODE_4M.ms.fd",
        "/usr/share/OVMF/OVMF_VARS_4M.ms.fd",
        "/var/lib/libvirt/images/web.qcow2",
        "/var/lib/libvirt/images/debian.iso",
    }
    assert len(found.findall(".//address")) == len(parse_xml(text).findall(".//address"))


@pytest.mark.parametrize(
    ("devices", "more", "os", "said"),
    [
        ("<emulator>/tmp/evil</emulator>", "", "", "<emulator> in devices names '/tmp/evil'"),
        ("", "<seclabel type='none'/>", "", "<seclabel type='none'>"),
        ("", "<seclabel type='static'><label>x</label></seclabel>", "", "'static'"),
        ("", ARGUMENTS, "", "qemu/1.0}commandline"),
        ("", OVERRIDE, "", "qemu/1.0}override"),
        ("", "<sysinfo type='fwcfg'><entry name='opt/a' file='/etc/shadow'/></sysinfo>", "", "file"),
        ("", "<memoryBacking><source type='file'/></memoryBacking>", "", "'file'"),
        ("", "<bootloader>/bin/sh</bootloader>", "", "<bootloader>"),
        ("", "<idmap><uid start='0' target='0' count='1'/></idmap>", "", "<idmap>"),
        ("", "<cpu><x:model xmlns:x='u'/></cpu>", "", "no element of libvirt's"),
        ("", "<devices/>", "", "<devices> is there twice"),
        ("", "", "<os><loader readonly='no' type='pflash'>/usr/share/OVMF/x</loader></os>", "readonly"),
        ("", "", "<os><nvram type='block'><source dev='/dev/sda'/></nvram></os>", "'block'"),
        ("", "", "<os><kernel>/usr/share/qemu/../../../etc/shadow</kernel></os>", "without .."),
        ("", "", "<os><init>/bin/sh</init></os>", "<init>"),
        ("<serial type='dev'><source path='/dev/sda'/></serial>", "", "", "'dev'"),
        ("<serial type='tcp'><source mode='connect' host='10.0.0.1' service='22'/></serial>", "", "", "'tcp'"),
        ("<parallel type='pipe'><source path='/run/p'/></parallel>", "", "", "'pipe'"),
        ("<serial type='null'><source path='/run/p'/></serial>", "", "", "port of type 'null'"),
        ("<channel type='unix'><target type='guestfwd' address='10.0.2.1' port='1'/></channel>", "", "", "guestfwd"),
        ("<disk type='volume'><source pool='p' volume='v'/><target dev='a'/></disk>", "", "", "'volume'"),
        ("<disk type='nvme'><source type='pci' managed='yes' namespace='1'/></disk>", "", "", "'nvme'"),
        ("<disk type='network' device='cdrom'><source protocol='http' name='x'/></disk>", "", "", "'http'"),
        (
            "<disk type='network'><source protocol='rbd' name='a/b'><config file='/x'/></source></disk>",
            "",
            "",
            "<config>",
        ),
        (DISK.format("<driver type='vmdk'/>"), "", "", "'vmdk'"),
        ("<disk type='network'><driver type='qcow2'/><source protocol='rbd' name='a/b'/></disk>", "", "", "write raw"),
        (DISK.format("<source file='/etc/shadow'/>"), "", "", "<source> in devices/disk is there twice"),
        ("<disk type='block' device='lun' rawio='yes'/>", "", "", "rawio"),
        (
            "<disk type='block' device='lun'><source dev='/a'><reservations managed='yes'/></source></disk>",
            "",
            "",
            "res",
        ),
        ("<filesystem type='mount'><source dir='/'/><target dir='/'/></filesystem>", "", "", "guest may write to"),
        ("<filesystem type='mount'><binary path='/bin/sh'/><readonly/></filesystem>", "", "", "<binary>"),
        ("<hostdev mode='subsystem' type='scsi'><source/></hostdev>", "", "", "'scsi'"),
        ("<hostdev mode='capabilities' type='storage'><source/></hostdev>", "", "", "'capabilities'"),
        ("<hostdev mode='subsystem' type='pci'><source/></hostdev>", "", "", "does not say which"),
        ("<memory model='nvdimm'><source><path>/n</path></source></memory>", "", "", "nvdimm"),
        ("<memory model='virtio-pmem'><source><path>/n</path></source></memory>", "", "", "virtio-pmem"),
        ("<interface type='client'><source address='10.0.0.1' port='22'/></interface>", "", "", "'client'"),
        ("<interface type='ethernet'><script path='/tmp/x'/></interface>", "", "", "<script>"),
        ("<interface type='user'><backend type='passt' logFile='/etc/x'/></interface>", "", "", "logFile"),
        ("<graphics type='sdl' xauth='/root/.Xauthority'/>", "", "", "'sdl'"),
        ("<graphics type='spice'><gl enable='yes' rendernode='/dev/dri/renderD128'/></graphics>", "", "", "<gl>"),
        ("<audio id='1' type='file' path='/etc/cron.d/x'/>", "", "", "'file'"),
        ("<rng model='virtio'><backend model='random'>/dev/sda</backend></rng>", "", "", "/dev/sda"),
        ("<rng model='virtio'><backend model='egd' type='tcp'/></rng>", "", "", "'egd'"),
        ("<tpm model='tpm-tis'><backend type='external'><source path='/x'/></backend></tpm>", "", "", "'external'"),
        ("<tpm><backend type='emulator'><source type='dir' path='/srv'/></backend></tpm>", "", "", "<source"),
        ("<smartcard mode='host-certificates'><database>/etc</database></smartcard>", "", "", "'host-certificates'"),
        ("<shmem name='other'><model type='ivshmem-plain'/></shmem>", "", "", "<shmem>"),
        ("<graphics type='vnc' keymap='/etc/outlive/x'/>", "", "", "no layout of a keyboard"),
        ("<graphics type='vnc' keymap='../x'/>", "", "", "no layout of a keyboard"),
        ("", "<cputune><vcpusched vcpus='0' scheduler='fifo' priority='99'/></cputune>", "", "only batch, idle"),
        ("", "<cputune><emulatorsched scheduler='rr' priority='1'/></cputune>", "", "only batch, idle"),
        ("", "<cputune><iothreadsched iothreads='1' scheduler='fifo'/></cputune>", "", "only batch, idle"),
        ("<redirdev bus='usb' type='tcp'/>", "", "", "'tcp'"),
        ("<watchdog model='ib700' action='dump'/>", "", "", "'dump'"),
        ("<lease><lockspace>a</lockspace><target path='/x'/></lease>", "", "", "<lease>"),
        ("<pstore backend='acpi-erst'><path>/x</path></pstore>", "", "", "<pstore"),
        ("<never-heard-of/>", "", "", "<never-heard-of>"),
    ],
)
def test_what_reaches_out_of_its_vm_is_refused_and_named(devices: str, more: str, os: str, said: str) -> None:
    with pytest.raises(BadInput, match=r".") as refused:
        examine(domain(devices, more, os or "<os><type>hvm</type></os>"))
    assert said in refused.value.message
    assert refused.value.remedy
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("devices", "os", "outside"),
    [
        (DISK.format(""), "", [("/srv/a", "diskPaths")]),
        ("<disk type='block'><source dev='/dev/sda'/><readonly/></disk>", "", [("/dev/sda", "diskPaths")]),
        ("<filesystem type='mount'><source dir='/srv'/><readonly/></filesystem>", "", [("/srv", "diskPaths")]),
        (
            "<serial type='file'><source path='/l'/><log file='/m'/></serial>",
            "",
            [("/l", "consolePaths"), ("/m", "consolePaths")],
        ),
        ("<serial type='unix'><source mode='bind' path='/s'/></serial>", "", [("/s", "socketPaths")]),
        ("<channel type='unix'><source path='/run/libvirt/qemu/channel/1-a/x'/></channel>", "", []),
        ("<interface type='direct'><source dev='eth0'/></interface>", "", [("eth0", "hostDevices")]),
        ("<interface type='user'/>", "", [("user", "hostDevices")]),
        ("<interface type='bridge'><source bridge='br0'/></interface>", "", []),
        ("<rng><backend model='random'>/dev/hwrng</backend></rng>", "", []),
        ("<interface type='bridge'><rom file='/r'/></interface>", "", [("/r", "firmwarePaths")]),
        ("", "<os><kernel>/k</kernel><dtb>/d</dtb></os>", [("/k", "firmwarePaths"), ("/d", "firmwarePaths")]),
        ("", "<os><nvram>/srv/v</nvram></os>", [("/srv/v", "diskPaths")]),
        ("", "<os><nvram>/var/lib/libvirt/qemu/nvram/other_VARS.fd</nvram></os>", []),
    ],
)
def test_what_a_definition_names_of_the_host_is_told_with_its_setting(
    devices: str, os: str, outside: list[tuple[str, str]]
) -> None:
    assert named(devices, os=os or "<os><type>hvm</type></os>") == outside


def test_a_device_of_the_host_is_named_by_what_libvirt_takes() -> None:
    """An address that could be read in two ways is read as the type says."""
    both = "<address domain='0' bus='0x03' slot='0x00' function='0x0' device='1'/>"
    kinds = {"pci": "0000:03:00.0", "usb": "usb:3.1"}
    for kind, name in kinds.items():
        assert named(f"<hostdev mode='subsystem' type='{kind}'><source>{both}</source></hostdev>") == [
            (name, "hostDevices")
        ]


def test_a_device_that_is_attached_is_looked_at_as_well() -> None:
    text = ET.tostring(domain("", "<features><acpi/></features>"), encoding="unicode")
    with pytest.raises(BadInput, match="script"):
        with_device(text, "<interface type='ethernet'><script path='/tmp/x'/></interface>")


@given(st.sampled_from(sorted(TABLE)), st.text("abcdefghijklmnop", min_size=1, max_size=8))
def test_no_element_has_an_attribute_or_child_that_no_line_names(path: str, name: str) -> None:
    if TABLE[path].anything_below or TABLE[path].left_out or not path:
        return
    for child in (False, True):
        element = top = ET.Element("domain")
        for tag in path.split("/"):
            element = ET.SubElement(element, tag)
        if child:
            ET.SubElement(element, f"x-{name}")
        else:
            element.set(f"x-{name}", "/etc/shadow")
        with pytest.raises(BadInput):
            examine(top)


def test_a_path_lies_below_a_folder_or_is_one_of_them() -> None:
    folders = ("/srv/images", "/dev/vg0/a")
    assert [lies_below(path, folders) for path in ("/srv/images/a", "/srv/images", "//srv/images/b", "/dev/vg0/a")] == [
        True
    ] * 4
    outside = ("/srv/images2/a", "/srv", "/srv/images/../a", "/dev/vg0/ab", "")
    assert [lies_below(path, folders) for path in outside] == [False] * 5
    assert lies_below("/x", ("/",))
    assert PAGE.startswith("docs/")
