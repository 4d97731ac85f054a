"""Definitions: what is read of them, and one clear line for each that is malformed or cannot be kept safe."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.loops import run_real

from outlive.base import BadInput
from outlive.drivers.storage import Disks, Unlocked
from outlive.node.membership import MemberView, cut_off
from outlive.node.vm import reach_of
from outlive.resources import (
    Amounts,
    Cut,
    Definition,
    FunctionPlace,
    Holder,
    MemberRecord,
    ObjectMeta,
    VirtualMachine,
    VirtualMachineSpec,
    complete_vm,
    host_problem,
    make_mac,
    parse,
    parse_xml,
    with_function_places,
)

UUID = "7b0a2c5e-0000-4000-8000-00000000d0d0"
LSP = "b3a4f0d0-0000-4000-8000-00000000ab02"
WITH_ID = (
    "<interface type='bridge'><virtualport type='openvswitch'><parameters interfaceid='{}'/></virtualport></interface>"
)
DISK = "<disk type='file'><driver name='qemu'{cache}/><source file='{path}'/><target dev='{dev}'/></disk>"


def definition(devices: str = "", *, memory: str = "<memory unit='MiB'>96</memory>", more: str = "") -> str:
    return (
        f"<domain type='qemu'><name>web</name><uuid>{UUID}</uuid>{memory}<vcpu placement='static'>2</vcpu>"
        f"<os><type arch='x86_64'>hvm</type></os>{more}<devices>{devices}</devices></domain>"
    )


def disk(path: str = "/srv/a.raw", dev: str = "vda", cache: str = "") -> str:
    return DISK.format(path=path, dev=dev, cache=f" cache='{cache}'" if cache else "")


def test_what_a_definition_says() -> None:
    found = parse(
        definition(
            disk()
            + "<disk type='network'><source protocol='rbd' name='vms/web'/><target dev='vdb'/></disk>"
            + "<disk type='block'><source dev='/dev/drbd/by-res/web-data/0'/><target dev='vdc'/></disk>"
            + "<disk type='block'><source dev='/dev/mapper/x'/><target dev='vdd'/></disk>"
            + "<disk type='file' device='floppy'><source file='/srv/f.img'/><target dev='fda'/></disk>"
            + "<disk type='file' device='cdrom'><source file='/iso'/><target dev='sda'/></disk>"
            + "<disk type='file' device='cdrom'><target dev='sdb'/></disk>"
            + "<interface type='bridge'><mac address='52:54:00:AA:bb:01'/></interface>"
            + WITH_ID.format(LSP.upper())
            + "<graphics type='vnc' port='-1'/><serial type='file'><source path='/log'/></serial>"
        )
    )
    assert found.disk_ids == (
        "file:/srv/a.raw",
        "rbd:vms/web",
        "drbd:web-data",
        "block:/dev/mapper/x",
        "file:/srv/f.img",
    )
    assert found.port_ids == ("52:54:00:aa:bb:01", LSP)
    assert found.ports[1].mac == make_mac(UUID, 1)
    assert (found.uuid, found.name, found.vcpus, found.memory_bytes) == (UUID, "web", 2, 96 * 2**20)
    assert (found.graphics, found.console, found.host_devices) == (("vnc",), "/log", False)


@pytest.mark.parametrize(
    ("memory", "size"),
    [
        ("<memory>1024</memory>", 2**20),
        ("<memory unit='GiB'>2</memory>", 2**31),
        ("<memory unit='KB'>1</memory>", 1024),
        ("<memory unit='b'>1025</memory>", 2048),
    ],
)
def test_units_of_memory_are_those_of_libvirt(memory: str, size: int) -> None:
    assert parse(definition(memory=memory)).memory_bytes == size


@pytest.mark.parametrize(
    ("xml", "said"),
    [
        ("", "no XML"),
        ("<domain", "no XML"),
        ("\ud800", "UTF-8"),
        ("<network/>", "not <network>"),
        ("<!DOCTYPE d [<!ENTITY a 'b'>]>" + definition(), "document type"),
        ("<a>" * 100, "too large"),
        (definition("<a/>" * 6000), "too large"),
        (" " * 2**19, "524288 bytes"),
        (definition().replace("qemu", "xen"), "type='xen'"),
        (definition().replace(UUID, "1234"), "no UUID"),
        (definition().replace(f"<uuid>{UUID}</uuid>", ""), "no <uuid>"),
        (definition().replace("web", "a/b"), "a/b"),
        (definition(memory="<memory unit='MiB'>-1</memory>"), "-1"),
        (definition(memory="<memory unit='parsec'>1</memory>"), "parsec"),
        (definition(memory="<memory unit='TiB'>99999999</memory>"), "99999999"),
        (definition().replace(">2</vcpu>", ">0</vcpu>"), "vcpu is '0'"),
        (definition(disk("a.raw")), "no path"),
        (definition(disk(cache="writeback")), "disk cache writeback"),
        (definition(disk() + disk(dev="vdb")), "file:/srv/a.raw' is there twice"),
        (definition(disk() + disk("/b")), "vda' is there twice"),
        (definition("<disk type='file'><target dev='vda'/></disk>"), "no source"),
        (definition("<disk type='network'><source protocol='iscsi' name='x'/><target dev='a'/></disk>"), "iscsi"),
        (definition("<disk type='network'><source protocol='rbd' name='x'/><target dev='a'/></disk>"), "POOL/IMAGE"),
        (definition("<disk type='volume'><source pool='p' volume='v'/><target dev='a'/></disk>"), "volume"),
        (definition("<interface type='user'><mac address='nobody'/></interface>"), "nobody"),
    ],
)
def test_what_is_malformed_or_unsafe_is_refused_in_one_line(xml: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as refused:
        parse(xml)
    assert refused.value.remedy
    assert "\n" not in str(refused.value)


def read(xml: str) -> tuple[Definition | None, BadInput]:
    try:
        return parse(xml), BadInput("")
    except BadInput as error:
        return None, error


@given(st.text(max_size=200) | st.text(alphabet="<>/='\" abdomainuk0-9&;![]").map(lambda text: definition(text)))
def test_whatever_is_written_is_read_or_refused_in_one_line(xml: str) -> None:
    found, error = read(xml)
    assert found is not None or (error.remedy and "\n" not in str(error))


@given(st.integers(0, 400), st.integers(0, 400), st.characters())
def test_a_damaged_definition_is_read_or_refused(start: int, length: int, put: str) -> None:
    whole = definition(disk())
    found, error = read(whole[:start] + put + whole[start + length :])
    assert found.vcpus >= 1 if found is not None else "\n" not in str(error)


def _vm(xml: str, name: str = "web-1") -> VirtualMachine:
    spec = VirtualMachineSpec(definition=xml, resources=Amounts(cpu=1, memory=1, gpu=1), disks=("other",))
    return VirtualMachine(metadata=ObjectMeta(name=name), spec=spec)


def test_size_disks_and_ports_are_those_of_the_definition() -> None:
    spec = complete_vm(_vm(definition(disk()))).spec
    assert (spec.disks, spec.ports, spec.display_name) == (("file:/srv/a.raw",), (), "web")
    assert spec.resources == Amounts(cpu=2000, memory=96 * 2**20, gpu=1)
    plain = replace(_vm(""), spec=replace(_vm("").spec, definition=""))
    assert complete_vm(plain) is plain


@pytest.mark.parametrize(
    ("devices", "more", "more_ids"),
    [
        ("", "<os><nvram>/n/web.fd</nvram></os>", ("local:nvram",)),
        ("", "<os><nvram type='file'><source file='/n/web.fd'/></nvram></os>", ("local:nvram",)),
        ("", "<os firmware='efi'><nvram template='/t'/></os>", ()),
        ("<hostdev mode='subsystem' type='pci'><source/></hostdev>", "", ("local:hostdev",)),
        ("<memory model='nvdimm'><target><readonly/></target></memory>", "", ()),
    ],
)
def test_a_guest_that_writes_to_what_nobody_can_cut_off_is_never_fenced_by_isolation(
    devices: str, more: str, more_ids: tuple[str, ...]
) -> None:
    vm = complete_vm(_vm(definition(disk() + devices, more=more)))
    assert vm.spec.disks == ("file:/srv/a.raw", *more_ids)
    record = MemberRecord(machine_id="m", boot_id="b", epoch=3, cut=Cut(through=3, scope=("disk:file:/srv/a.raw",)))
    member = MemberView(host="kvm-1", uid="u", record=record)
    assert cut_off(Holder(hypervisor="kvm-1", member_uid="u", epoch=3), (member,), reach_of(vm)) is (not more_ids)
    assert run_real(Disks("10.0.0.1", {"local": Unlocked()}, {}).list_locks(more_ids)) == ()


def test_a_vm_that_is_named_by_a_uuid_has_that_uuid() -> None:
    assert complete_vm(_vm(definition(), UUID)).name == UUID
    with pytest.raises(BadInput, match="not that of VM"):
        complete_vm(_vm(definition(), UUID.replace("d0d0", "d0d1")))


def test_a_host_that_is_too_small_is_named() -> None:
    found = parse(definition())
    assert host_problem(found, 2**30, 4) == host_problem(found, 0, 0) == ""
    assert "96 MiB" in host_problem(found, 96 * 2**20, 4)
    assert "2 vCPUs" in host_problem(found, 2**30, 3)


@pytest.mark.parametrize("interface", ["lsp-1", "b3a4f0d0", f"{LSP}0", "52:54:00:00:00:01"])
def test_an_interface_id_is_a_uuid_as_libvirt_wants_it(interface: str) -> None:
    with pytest.raises(BadInput, match="no UUID"):
        parse(definition(WITH_ID.format(interface)))


def test_one_interface_id_in_two_forms_is_there_twice() -> None:
    with pytest.raises(BadInput, match="is there twice"):
        parse(definition(WITH_ID.format(LSP) + WITH_ID.format(LSP.upper().replace("-", ""))))


class TestVirtualFunctions:
    PASSED = (
        "<interface type='hostdev' managed='yes'><mac address='52:54:00:00:00:02'/><source>"
        "<address type='pci' domain='0x0000' bus='0x01' slot='0x10' function='0x2'/></source>{}</interface>"
    )

    def test_interface_that_has_a_whole_function_needs_it_by_name(self) -> None:
        direct = "<interface type='direct'><mac address='52:54:00:00:00:01'/><source dev='{}' mode='{}'/></interface>"
        (need,) = parse(definition(direct.format("enp1s0f0v3", "passthrough"))).functions
        assert (need.name, need.kind, need.pci, need.mac) == ("enp1s0f0v3", "direct", "", "52:54:00:00:00:01")
        assert parse(definition(direct.format("enp1s0f0v3", "bridge"))).functions == ()
        assert parse(definition(direct.format("enp1s0f0", "passthrough"))).functions == ()

    def test_interface_that_is_passed_through_needs_its_pci_address(self) -> None:
        (need,) = parse(definition(self.PASSED.format(""))).functions
        assert (need.name, need.kind, need.pci) == ("", "hostdev", "0000:01:10.2")
        (named,) = parse(definition(self.PASSED.format("<alias name='ua-eth0v2'/>"))).functions
        assert (named.name, named.pci) == ("eth0v2", "0000:01:10.2")

    def test_definition_gets_the_device_and_the_vlan_that_a_function_has_on_its_host(self) -> None:
        """libvirt takes a function out of its VLAN where the definition names none."""
        direct = (
            "<interface type='direct'><mac address='52:54:00:00:00:01'/>"
            "<source dev='eth0v1' mode='passthrough'/>{}</interface>"
        )
        other = "<interface type='bridge'><mac address='52:54:00:00:00:03'/><source bridge='br0'/></interface>"
        plain = definition(direct.format("<vlan><tag id='3'/></vlan>") + self.PASSED.format("") + other)
        places = [
            FunctionPlace(name="eth0v1", pci="0000:01:10.1", device="ens3", vlan=7),
            FunctionPlace(name="eth0v2", pci="0000:01:10.2", device="ens4", vlan=9),
        ]
        first, second, third = parse_xml(with_function_places(plain, places)).iterfind("devices/interface")
        assert [one.get("dev") for one in first.iterfind("source")] == ["ens3"]
        assert [one.get("dev") for one in second.iterfind("source")] == [None]
        tags = [[tag.get("id") for tag in one.iterfind("vlan/tag")] for one in (first, second, third)]
        assert tags == [["7"], ["9"], []]
        places = [FunctionPlace(name="eth0v1", pci="0000:01:10.1", device="", vlan=0)]
        first, *_ = parse_xml(with_function_places(plain, places)).iterfind("devices/interface")
        assert [tag.get("id") for tag in first.iterfind("vlan/tag")] == ["3"], "what the definition says"
        assert [one.get("dev") for one in first.iterfind("source")] == ["eth0v1"]

    def test_vm_with_a_function_that_is_passed_through_is_moved_while_it_is_down(self) -> None:
        spec = VirtualMachineSpec(definition=definition(self.PASSED.format("")), migration_method="live")
        vm = complete_vm(VirtualMachine(metadata=ObjectMeta(name=UUID), spec=spec))
        assert [one.pci for one in vm.spec.functions] == ["0000:01:10.2"]
        assert (vm.spec.migration_method, vm.spec.move_method) == ("live", "shutdown")

    def test_one_function_is_not_named_twice(self) -> None:
        twice = self.PASSED.format("") + self.PASSED.format("").replace("00:02'", "00:03'")
        with pytest.raises(BadInput, match=r"virtual function .0000:01:10\.2. is there twice"):
            parse(definition(twice))
