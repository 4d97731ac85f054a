"""What of a host its settings let guests have, and that what a guest writes to is what its VM lists."""

from __future__ import annotations

import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import libvirt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from outlive.base import Refused
from outlive.drivers.libvirt import METADATA, Devices, LibvirtService, LibvirtSettings, Start, check_paths, domain_xml
from outlive.drivers.storage import StorageSettings
from outlive.resources import Amounts, ObjectMeta, VirtualMachine, VirtualMachineSpec, complete_vm, parse_xml

pytestmark = pytest.mark.real_loop

UUID = "7b0a2c5e-0000-4000-8000-00000000d0d0"
DOMAINS = Path(__file__).parents[1] / "resources/domains"
EVERYTHING = LibvirtSettings(
    disk_paths=("/",),
    firmware_paths=("/",),
    console_paths=("/",),
    socket_paths=("/",),
    host_devices=(
        *("0000:03:00.0", "usb:1d6b:0002", "usb:1.4", "c2177883-f1bb-47f0-914d-32a22e3a8804", "0000:05:10.1"),
        *("eth0", "user", "/dev/input/event4", "/dev/tpm0"),
    ),
)


MONITORS = ("10.0.1.1", "10.0.1.2:6789", "[fd00::1]:3300", "b:7")


def definition(devices: str, os: str = "") -> str:
    return (
        f"<domain type='kvm'><name>web</name><uuid>{UUID}</uuid><memory>1024</memory><vcpu>1</vcpu>"
        f"<os><type>hvm</type>{os}</os><devices>{devices}</devices></domain>"
    )


def made(text: str, settings: LibvirtSettings, **spec: object) -> str:
    vm = VirtualMachine(metadata=ObjectMeta(name="web-1"), spec=VirtualMachineSpec(definition=text, **spec))  # type: ignore[arg-type]
    monitors = StorageSettings(ceph_monitors=MONITORS).monitor_names()
    return domain_xml(Start(complete_vm(vm), "r1", 7, False, {"qmp": "/q"}), settings, monitors)


@pytest.mark.parametrize("path", sorted(DOMAINS.glob("*.xml")), ids=lambda path: path.stem)
def test_a_host_that_allows_it_runs_what_virsh_prints_and_none_runs_more_than_it_allows(path: Path) -> None:
    text = path.read_text()
    assert "<emulator>" not in made(text, EVERYTHING)
    if path.stem != "cloud-rbd":
        with pytest.raises(Refused, match=r"names .*, which libvirt\.\w+ does not allow"):
            made(text, LibvirtSettings())


@pytest.mark.parametrize(
    ("devices", "os", "setting"),
    [
        ("<disk type='block'><source dev='/dev/sda'/><target dev='vda'/></disk>", "", "diskPaths"),
        ("<disk type='file' device='cdrom'><source file='/etc/shadow'/><target dev='sda'/></disk>", "", "diskPaths"),
        ("<serial type='file'><source path='/etc/cron.d/x'/></serial>", "", "consolePaths"),
        ("<serial type='unix'><source path='/run/x'/></serial>", "", "socketPaths"),
        ("<interface type='direct'><source dev='eth0'/></interface>", "", "hostDevices"),
        ("", "<kernel>/etc/shadow</kernel>", "firmwarePaths"),
        ("", "<loader type='rom'>/etc/shadow</loader>", "firmwarePaths"),
    ],
)
def test_a_start_is_refused_with_the_element_and_the_setting(devices: str, os: str, setting: str) -> None:
    with pytest.raises(Refused, match=f"libvirt.{setting} does not allow") as refused:
        made(definition(devices, os), LibvirtSettings())
    assert f"libvirt.{setting}" in refused.value.remedy


@pytest.mark.parametrize("disk", ["block:/dev/sda", "file:/etc/shadow", "file:/srv/../etc/shadow", "drbd:../../sda"])
def test_a_plain_machine_has_no_disk_that_its_host_does_not_allow(disk: str) -> None:
    with pytest.raises(Refused):
        made("", replace(EVERYTHING, disk_paths=("/srv",)), disks=(disk,), resources=Amounts(cpu=1000, memory=2**20))


def test_volumes_of_drbd_and_ceph_need_no_setting() -> None:
    disks = ("drbd:web", "rbd:vms/web")
    assert "by-res/web/0" in made("", LibvirtSettings(), disks=disks, resources=Amounts(cpu=1000, memory=2**20))


@pytest.mark.parametrize("auth", ["", "<auth username='x'><secret type='ceph' uuid='u'/></auth>"])
@pytest.mark.parametrize("device", ["disk", "cdrom"])
def test_only_monitors_that_the_host_knows_are_asked_for_an_image(device: str, auth: str) -> None:
    settings = LibvirtSettings(ceph_user="outlive", ceph_secret="aaaaaaaa-0000-0000-0000-000000000000")

    def image(*hosts: str) -> str:
        source = f"<source protocol='rbd' name='p/i'>{''.join(hosts)}{auth}</source>"
        return definition(f"<disk type='network' device='{device}'>{source}<target dev='sda' bus='scsi'/></disk>")

    known = "<host name='10.0.1.1' port='6789'/>", "<host name='10.0.1.2'/>", "<host name='fd00::1' port='3300'/>"
    assert "username" in made(image(*known), settings)
    assert "username" in made(image(), settings)
    for strange in ("<host name='strange.example' port='6789'/>", "<host name='10.0.1.1' port='7000'/>", "<host/>"):
        with pytest.raises(Refused, match="no monitor that this host knows") as refused:
            made(image(known[0], strange), settings)
        assert "storage.cephMonitors" in refused.value.remedy


def test_a_link_leads_to_nothing_outside_of_what_is_allowed(tmp_path: Path) -> None:
    allowed, secret = tmp_path / "images", tmp_path / "secret"
    allowed.mkdir()
    secret.write_bytes(b"x")
    (allowed / "real").write_bytes(b"x")
    (allowed / "link").symlink_to(secret)
    (allowed / "inside").symlink_to(allowed / "real")
    settings = LibvirtSettings(disk_paths=(str(allowed),))
    for name in ("real", "inside", "link"):
        xml = made(
            definition(f"<disk type='file'><source file='{allowed}/{name}'/><target dev='vda'/></disk>"), settings
        )
        if name != "link":
            check_paths("web-1", xml, settings)
            continue
        with pytest.raises(Refused, match=f"leads to {secret}, which libvirt.diskPaths"):
            check_paths("web-1", xml, settings)


def test_a_volume_of_lvm_is_a_link_that_the_kernel_s_tools_have_made(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = LibvirtSettings(disk_paths=("/dev/vg0",))
    xml = made(definition("<disk type='block'><source dev='/dev/vg0/a'/><target dev='vda'/></disk>"), settings)
    monkeypatch.setattr("os.path.realpath", lambda path: "/dev/dm-3")
    check_paths("web-1", xml, settings)
    monkeypatch.setattr("os.path.realpath", lambda path: "/etc/shadow")
    with pytest.raises(Refused, match="leads to /etc/shadow"):
        check_paths("web-1", xml, settings)


def test_an_image_names_no_file_that_its_guest_may_not_have(tmp_path: Path) -> None:
    """A guest may have written such a header itself, while its disk was of another type."""
    allowed, secret = tmp_path / "images", tmp_path / "secret.raw"
    allowed.mkdir()
    for file in (secret, allowed / "base.raw"):
        file.write_bytes(bytes(65536))
    made_by = {"leak": secret, "good": allowed / "base.raw"}
    for name, backing in made_by.items():
        words = ["create", "-q", "-u", "-f", "qcow2", "-b", str(backing), "-F", "raw", f"{allowed}/{name}.qcow2", "1M"]
        subprocess.run(["qemu-img", *words], check=True)
    words = ["create", "-q", "-f", "qcow2", "-o", f"data_file={allowed}/data", f"{allowed}/split.qcow2", "1M"]
    subprocess.run(["qemu-img", *words], check=True)
    settings = LibvirtSettings(disk_paths=(str(allowed),))

    def check(name: str) -> None:
        disk = (
            f"<disk type='file'><driver type='qcow2'/><source file='{allowed}/{name}.qcow2'/><target dev='vda'/></disk>"
        )
        check_paths("web-1", made(definition(disk), settings), settings)

    check("good")
    with pytest.raises(Refused, match=str(secret)):
        check("leak")
    with pytest.raises(Refused, match="another file"):
        check("split")
    both = f"<driver type='qcow2'/><source file='{allowed}/good.qcow2' dev='{allowed}/leak.qcow2'/><target dev='vda'/>"
    with pytest.raises(Refused, match=str(secret)):
        check_paths("web-1", made(definition(f"<disk type='block'>{both}</disk>"), settings), settings)
    pflash = "<loader readonly='yes' type='pflash' format='qcow2'>/usr/share/OVMF/OVMF_CODE.qcow2</loader>"
    for variables in (
        f"{pflash}<nvram>{allowed}/leak.qcow2</nvram>",
        f"{pflash}<nvram type='file'><source file='{allowed}/leak.qcow2'/></nvram>",
        f"<nvram>{allowed}/leak.qcow2</nvram>",
        f"<nvram format='qcow2'>\n {allowed}/leak.qcow2</nvram>",
        f"<nvram type='file' format='qcow2'><source file='{allowed}/leak.qcow2'/></nvram>",
    ):
        with pytest.raises(Refused, match=str(secret)):
            check_paths("web-1", made(definition("", variables), settings), settings)
    for there in ("good.qcow2", "base.raw", "not-made-yet"):
        check_paths("web-1", made(definition("", f"{pflash}<nvram>{allowed}/{there}</nvram>"), settings), settings)


class OfTheTestDriver(LibvirtService):
    """libvirt's own simulated host, which has no versions and no keep-alive."""

    def _open(self) -> libvirt.virConnect:
        return libvirt.open(self.uri)


async def test_a_disk_that_a_running_guest_is_given_is_looked_into_as_at_a_start(tmp_path: Path) -> None:
    allowed, secret = tmp_path / "images", tmp_path / "secret.raw"
    allowed.mkdir()
    secret.write_bytes(bytes(65536))
    words = ["create", "-q", "-u", "-f", "qcow2", "-b", str(secret), "-F", "raw", f"{allowed}/leak.qcow2", "1M"]
    subprocess.run(["qemu-img", *words], check=True)  # noqa: ASYNC221
    (allowed / "link.raw").symlink_to(secret)
    settings = LibvirtSettings(disk_paths=(str(allowed),))
    metadata = f"<metadata><o:run xmlns:o='{METADATA}' runId='r1'/></metadata>"
    runs = f"<domain type='test'><name>web-1</name>{metadata}<memory>1024</memory><os><type>hvm</type></os></domain>"
    service = OfTheTestDriver("test:///default", threads=2, limit_s=10.0)
    await service.call(lambda connection: connection.createXML(runs))
    for kind, name in (("qcow2", "leak.qcow2"), ("raw", "link.raw")):
        disk = f"<disk type='file'><driver type='{kind}'/><source file='{allowed}/{name}'/><target dev='vdb'/></disk>"
        vm = VirtualMachine(metadata=ObjectMeta(name="web-1"), spec=VirtualMachineSpec(definition=definition(disk)))
        with pytest.raises(Refused, match=str(secret)):
            await Devices(service, settings).attach(complete_vm(vm), "vdb", "r1")


DISKS = {
    "<disk type='file'><source file='/d/{n}'/><target dev='vd{n}'/></disk>": "file:/d/{n}",
    "<disk type='file' device='floppy'><source file='/f/{n}'/><target dev='fd{n}'/></disk>": "file:/f/{n}",
    "<disk type='block' device='lun'><source dev='/dev/l{n}'/><target dev='sd{n}'/></disk>": "block:/dev/l{n}",
    "<disk type='network'><source protocol='rbd' name='p/{n}'/><target dev='vr{n}'/></disk>": "rbd:p/{n}",
    "<disk type='network'><source protocol='rbd' name='p/{n}'><host name='B' port='7'/></source><target dev='vq{n}'/>"
    "</disk>": "rbd+b#7:p/{n}",
    "<disk type='file' device='cdrom'><source file='/c/{n}'/><target dev='sc{n}'/></disk>": "",
    "<disk type='file'><source file='/r/{n}'/><target dev='vo{n}'/><readonly/></disk>": "",
    "<filesystem type='mount'><source dir='/share/{n}'/><target dir='t{n}'/><readonly/></filesystem>": "",
    "<memory model='nvdimm'><source><path>/m/{n}</path></source><target><readonly/></target></memory>": "",
    "<serial type='pty'><source path='/dev/pts/{n}'/></serial>": "",
    "<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>": "",
    "<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>": "",
}


def writable(domain: ET.Element) -> set[str]:
    """Everything of the host that a domain names and its guest may write to, read without the product's code."""
    found = set()
    for disk in domain.iterfind("devices/disk"):
        source = disk.find("source")
        if disk.find("readonly") is None and disk.get("device") != "cdrom" and source is not None:
            found.add(source.get("file") or source.get("dev") or source.get("name") or "")
    for path in ("os/nvram", "devices/memory/source/path"):
        found |= {one.text for one in domain.iterfind(path) if one.text and one.text.strip()} - {
            one.findtext("source/path")
            for one in domain.iterfind("devices/memory")
            if one.find("target/readonly") is not None
        }
    for one in domain.iterfind("devices/filesystem"):
        if one.find("readonly") is None:
            found.add("a folder")
    return found


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(sorted(DISKS)), max_size=8),
    st.sampled_from(["", "/srv/vars", "/var/lib/libvirt/qemu/nvram/x"]),
)
def test_what_a_guest_can_write_is_what_its_vm_lists(kinds: list[str], variables: str) -> None:
    devices = "".join(kind.replace("{n}", str(number)) for number, kind in enumerate(kinds))
    ids = [DISKS[kind].replace("{n}", str(number)) for number, kind in enumerate(kinds)]
    text = definition(devices, f"<nvram>{variables}</nvram>" if variables else "")
    vm = complete_vm(VirtualMachine(metadata=ObjectMeta(name="web-1"), spec=VirtualMachineSpec(definition=text)))
    assert [disk for disk in vm.spec.disks if disk != "local:nvram"] == [one for one in ids if one]
    listed = {one.partition(":")[2] for one in vm.spec.disks if not one.startswith("local:")}
    written = writable(parse_xml(made(text, EVERYTHING)))
    assert written - {"/srv/vars"} == listed
    assert ("local:nvram" in vm.spec.disks) >= ("/srv/vars" in written)
