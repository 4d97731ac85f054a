"""Devices that a guest gets or loses while it runs: what the definition is then, and what is refused."""

from __future__ import annotations

import pytest

from outlive.base import BadInput, NotFound, Refused
from outlive.resources import device_of, devices_named, make_mac, parse, with_device, without_device

UUID = "7b0a2c5e-0000-4000-8000-00000000d0d0"
VDA = "<disk type='file'><source file='/a.raw'/><target dev='vda'/></disk>"
VDB = "<disk type='network'><source protocol='rbd' name='vms/b'/><target dev='vdb' bus='virtio'/></disk>"
PORTS = "<interface type='bridge'/><interface type='bridge'><mac address='52:54:00:00:00:01'/></interface>"


def definition(devices: str = VDA + PORTS, machine: str = "pc") -> str:
    return (
        f"<domain type='kvm'><name>web</name><uuid>{UUID}</uuid><memory unit='MiB'>96</memory><vcpu>1</vcpu>"
        f"<os><type arch='x86_64' machine='{machine}'>hvm</type></os><features><acpi/></features>"
        f"<devices>{devices}</devices></domain>"
    )


def slot(text: str, name: str) -> str:
    address = device_of(text, name).element.find("address")
    assert address is not None
    return address.get("slot", "")


def test_a_disk_is_put_into_the_definition_with_a_pci_address_of_its_own_and_taken_out_again() -> None:
    text, name = with_device(definition(), VDB)
    assert (name, parse(text).disk_ids) == ("vdb", ("file:/a.raw", "rbd:vms/b"))
    assert slot(text, "vdb") == "0x1f"
    more, _ = with_device(text, "<disk type='file'><source file='/c.raw'/><target dev='vdc'/></disk>")
    assert slot(more, "vdc") == "0x1e"
    assert with_device(text, VDB) == (text, "vdb"), "the same once more changes nothing"
    without = without_device(more, "vdb")
    assert parse(without).disk_ids == ("file:/a.raw", "file:/c.raw")
    assert slot(without, "vdc") == "0x1e"
    assert parse(without_device(more, "rbd:vms/b")).disk_ids == parse(without).disk_ids


def test_an_interface_gets_a_mac_address_and_is_called_by_it() -> None:
    text, name = with_device(definition(), "<interface type='bridge'><source bridge='br0'/></interface>")
    assert name == make_mac(UUID, 2)
    assert [one.mac for one in parse(text).ports] == [make_mac(UUID, 0), "52:54:00:00:00:01", name]
    assert slot(text, name.upper()) == "0x1f"
    assert device_of(without_device(text, name), "vda").disk == "file:/a.raw"


def test_an_interface_of_that_address_that_is_another_one_is_refused() -> None:
    port = "<interface type='bridge'><mac address='52:54:00:00:00:01'/><source bridge='{}'/></interface>"
    text = definition(VDA + port.format("br0"))
    assert with_device(text, port.format("br0")) == (text, "52:54:00:00:00:01")
    for other in (port.format("br1"), port.format("br0").replace("'bridge'", "'network'")):
        with pytest.raises(BadInput, match="52:54:00:00:00:01 is there already, as bridge bridge=br0"):
            with_device(text, other)


def test_interfaces_that_stay_keep_their_mac_addresses() -> None:
    devices = PORTS + "<interface type='bridge'/>"
    without = without_device(definition(devices), "52:54:00:00:00:01", force=True)
    assert list(devices_named(without)) == [make_mac(UUID, 0), make_mac(UUID, 2)]


def test_what_has_no_pci_address_of_its_own_is_taken_away_by_force_alone() -> None:
    with pytest.raises(Refused, match="vda has no PCI address"):
        without_device(definition(), "vda")
    assert parse(without_device(definition(), "vda", force=True)).disk_ids == ()
    scsi = definition(VDA.replace("vda", "sda"))
    assert parse(without_device(scsi, "sda")).disk_ids == ()


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("<disk", "no XML"),
        ("<hostdev/>", "<hostdev> is not given"),
        ("<disk type='file'><source file='/c'/></disk>", "no target"),
        ("<disk type='file'><source file='/c'/><target dev='hdb'/></disk>", "on bus ide"),
        ("<disk type='file'><source file='/c'/><target dev='sdb'/></disk>", "needs a SCSI controller"),
        ("<disk type='file' device='cdrom'><source file='/c'/><target dev='vdb'/></disk>", "cdrom is not given"),
        ("<disk type='file'><source file='/c'/><target dev='vdb'/><readonly/></disk>", "read-only disk"),
        ("<disk type='file'><source file='/c'/><target dev='vda'/></disk>", "target 'vda' is there twice"),
        ("<disk type='file'><source file='/a.raw'/><target dev='vdb'/></disk>", "disk 'file:/a.raw' is there twice"),
        ("<disk type='dir'><source dir='/c'/><target dev='vdb'/></disk>", "disk is not given"),
        (VDB.replace("<target", "<driver cache='writeback'/><target"), "cache"),
        ("<interface type='hostdev'/>", "device of the host"),
        ("<interface type='bridge'><mac address='x'/></interface>", "MAC address 'x'"),
    ],
)
def test_what_cannot_be_given_to_a_guest_that_runs(device: str, words: str) -> None:
    with pytest.raises(BadInput) as error:
        with_device(definition(), device)
    assert words in str(error.value)


def test_machines_whose_slots_take_nothing_while_they_run_need_an_address() -> None:
    with pytest.raises(BadInput, match="no PCI address is chosen"):
        with_device(definition(machine="pc-q35-7.2"), VDB)
    address = "<address type='pci' domain='0' bus='3' slot='0' function='0'/>"
    text, _ = with_device(definition(machine="pc-q35-7.2"), VDB.replace("</disk>", f"{address}</disk>"))
    assert slot(text, "vdb") == "0"


def test_machines_without_acpi_take_nothing_while_they_run() -> None:
    with pytest.raises(BadInput, match="without ACPI"):
        with_device(definition().replace("<acpi/>", ""), VDB)


def test_disks_whose_paths_differ_in_their_letters_are_two() -> None:
    both = definition(VDA + VDA.replace("/a.raw", "/A.raw").replace("vda", "vdb"))
    assert parse(without_device(both, "file:/A.raw", force=True)).disk_ids == ("file:/a.raw",)
    for name in ("", "FILE:/a.raw"):
        with pytest.raises(NotFound):
            without_device(both, name)


@pytest.mark.parametrize("place", ["bus='x'", "slot='0xzz'"])
def test_an_address_that_is_none_is_named(place: str) -> None:
    wrong = VDA.replace("</disk>", f"<address type='pci' {place}/></disk>")
    with pytest.raises(BadInput, match="is no part of a PCI address"):
        with_device(definition(wrong), VDB)


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(NotFound, match="no device 'vdz'"):
        without_device(definition(), "vdz")
