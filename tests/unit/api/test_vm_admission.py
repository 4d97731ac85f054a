"""What the server asks of a VM's definition and disks before it is written, beside those of other VMs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.support.loops import run_real

from outlive.api import DiskOwners, Neighbours, check_admission, fill_from_definition
from outlive.base import Forbidden, Invalid, SystemClock, SystemIds
from outlive.resources import (
    SHARES_LABEL,
    Amounts,
    Flavor,
    FlavorSpec,
    Holder,
    ObjectMeta,
    Reservation,
    ReservationSpec,
    Resource,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
)
from outlive.store import MemoryStore, check_metadata_patch

ASM = "rbd:vms/asm"
DISK = "<disk type='network'><source protocol='rbd' name='vms/asm'/><target dev='vda' bus='virtio'/>{}</disk>"
SHAREABLE = DISK.format("<shareable/>")


def defined(name: str, devices: str, **spec: object) -> VirtualMachine:
    xml = (
        f"<domain type='kvm'><name>{name}</name><uuid>7b0a2c5e-0000-4000-8000-00000000d0d0</uuid><memory>1024</memory>"
        f"<vcpu>1</vcpu><devices>{devices}</devices></domain>"
    )
    made = VirtualMachineSpec(definition=xml, **spec)  # type: ignore[arg-type]
    return fill_from_definition(VirtualMachine(metadata=ObjectMeta(name=name), spec=made))  # type: ignore[return-value]


def plain(name: str, *disks: str, shared: tuple[str, ...] = ()) -> VirtualMachine:
    return VirtualMachine(metadata=ObjectMeta(name=name), spec=VirtualMachineSpec(disks=disks, shared_disks=shared))


def checked(stored: tuple[VirtualMachine, ...], *vms: VirtualMachine) -> None:
    """Each of them, beside those that are stored and those before it."""

    async def check() -> None:
        store = MemoryStore(SystemClock(), SystemIds())
        for one in stored:
            await store.create(one)
        neighbours = Neighbours(store)
        for one in vms:
            await neighbours.check(one)

    run_real(check())


def changed(vm: VirtualMachine, **spec: object) -> VirtualMachine:
    return replace(vm, spec=replace(vm.spec, **spec))


@pytest.mark.parametrize("stored", [True, False])
def test_two_vms_have_no_disk_in_common_unless_both_share_it(stored: bool) -> None:
    first, second = plain("rac-1", "rbd:vms/rac-1", ASM), plain("rac-2", "rbd:vms/rac-2", ASM)
    both = [changed(one, shared_disks=(ASM,)) for one in (first, second)]
    for pair, refused in (((first, second), True), ((first, both[1]), True), ((both[0], second), True), (both, False)):
        before, after = ((pair[0],), (pair[1],)) if stored else ((), tuple(pair))
        if not refused:
            checked(before, *after)
            continue
        with pytest.raises(Invalid, match=f"disk {ASM} of VM rac-2 is one of VM rac-1 as well") as told:
            checked(before, *after)
        assert "spec.sharedDisks" in told.value.remedy


def test_what_two_vms_had_in_common_before_is_not_refused_again() -> None:
    first, second = plain("rac-1", ASM), plain("rac-2", ASM)
    checked((first, second), changed(second, autostart=True))
    with pytest.raises(Invalid):
        checked((first, second), changed(second, shared_disks=(ASM,)))
    checked((plain("a", "local:nvram"),), plain("b", "local:nvram"))


def test_a_shareable_disk_is_one_that_the_vm_says_it_shares() -> None:
    checked((), defined("rac-1", SHAREABLE, shared_disks=(ASM,)))
    for vm, said in (
        (defined("rac-1", SHAREABLE), "is shareable"),
        (defined("rac-1", DISK.format(""), shared_disks=(ASM,)), "does not say so"),
        (plain("rac-1", "rbd:a/b", shared=(ASM,)), "no disk of it"),
    ):
        with pytest.raises(Invalid, match=said):
            checked((), vm)
    old = defined("rac-1", SHAREABLE)
    checked((old,), changed(old, autostart=True))


def test_a_definition_that_reaches_out_is_refused_when_it_is_new() -> None:
    bad = defined("web", "<shmem name='other'><model type='ivshmem-plain'/></shmem>")
    with pytest.raises(Invalid, match="<shmem>"):
        checked((), bad)
    checked((bad,), changed(bad, autostart=True))  # a host refuses its start, and it can be stopped and changed
    with pytest.raises(Invalid, match="<shmem>"):
        checked((bad,), changed(bad, definition=bad.spec.definition.replace("other", "another")))


def test_a_password_in_a_definition_is_refused_and_an_old_one_is_told() -> None:
    old = defined("web", "<graphics type='vnc' passwd='hunter2'/>")
    with pytest.raises(Invalid, match="passwd") as refused:
        checked((), old)
    assert "outlive secret set" in refused.value.remedy
    assert "hunter2" not in str(refused.value)
    checked((old,), changed(old, autostart=True))
    assert any("password of its screen" in one and "hunter2" not in one for one in check_admission(old))
    with pytest.raises(Invalid):
        checked((old,), changed(old, definition=old.spec.definition.replace("hunter2", "hunter3")))


def test_what_is_lost_with_its_host_is_told() -> None:
    tpm = defined("win", "<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>")
    assert any(
        "after a restart on another host it has no state of the emulated TPM" in one for one in check_admission(tpm)
    )
    assert check_admission(defined("web", "")) == ()


META = ObjectMeta(name="x")


@pytest.mark.parametrize(
    ("obj", "what"),
    [
        (VirtualMachine(metadata=META, spec=VirtualMachineSpec(resources=Amounts(cpu=-1))), "cpu"),
        (VirtualMachine(metadata=META, spec=VirtualMachineSpec(resources=Amounts(cpu=1, memory=-1))), "memory"),
        (VirtualMachine(metadata=META, spec=VirtualMachineSpec(resources=Amounts(gpu=-(2**62)))), "gpu"),
        (VirtualMachine(metadata=META, spec=VirtualMachineSpec(disk_gib=-1)), "diskGib"),
        (Flavor(metadata=META, spec=FlavorSpec(flavor_name="x", resources=Amounts(memory=-1))), "memory"),
        (Flavor(metadata=META, spec=FlavorSpec(flavor_name="x", disk_gib=-1)), "diskGib"),
        (
            Reservation(metadata=META, spec=ReservationSpec(type="FailoverReservation", resources=Amounts(cpu=-1))),
            "cpu",
        ),
    ],
    ids=lambda one: one.kind() if isinstance(one, Resource) else one,
)
def test_nothing_has_less_than_no_size(obj: Resource, what: str) -> None:
    with pytest.raises(Invalid, match=f"has less than no {what}"):
        check_admission(obj)


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (Amounts(cpu=0), "no cpu"),
        (Amounts(cpu=1_000_000_000_000), "at most 8192"),
        (Amounts(memory=0), "no memory"),
        (Amounts(memory=16 * 1024), "memory 16Ki, less than any machine"),
        (Amounts(memory=2**60), "at most 1Pi"),
        (Amounts(gpu=2**60), "more than any machine"),
    ],
)
def test_impossible_sizes_are_refused_with_what_is_possible(size: Amounts, said: str) -> None:
    vm = VirtualMachine(metadata=META, spec=VirtualMachineSpec(resources=size))
    flavor = Flavor(metadata=META, spec=FlavorSpec(flavor_name="x", resources=size))
    for obj in (vm, flavor):
        with pytest.raises(Invalid) as raised:
            check_admission(obj)
        assert said in str(raised.value)
        assert "spec.resources." in str(raised.value)


def test_vm_that_shares_a_disk_is_checked_beside_what_another_server_wrote_a_moment_ago() -> None:
    async def check() -> None:
        store = MemoryStore(SystemClock(), SystemIds())
        owners = DiskOwners(store)
        assert await owners.find_owners(ASM) == ()
        await store.create(plain("rac-1", ASM))
        with pytest.raises(Invalid, match=f"disk {ASM} of VM rac-2 is one of VM rac-1 as well"):
            await Neighbours(store, owners).check(plain("rac-2", ASM, shared=(ASM,)))

    run_real(check())


@pytest.mark.parametrize(
    ("one", "other", "refused"),
    [
        ("rbd:vms/x", "rbd+mon-1:vms/x", True),
        ("rbd+mon-1,mon-2:vms/x", "rbd+mon-2,mon-3:vms/x", True),
        ("rbd+mon-1:vms/x", "rbd+mon-b1:vms/x", False),
        ("rbd:vms/x", "rbd+mon-1:vms/y", False),
        ("file:/vms/x", "block:/vms/x", False),
    ],
)
def test_one_image_is_not_named_with_monitors_and_without(one: str, other: str, refused: bool) -> None:
    for before, after in ((one, other), (other, one)):
        if not refused:
            checked((plain("a", before),), plain("b", after))
            continue
        with pytest.raises(Invalid, match=r"may be the same image as .* of VM a") as told:
            checked((plain("a", before),), plain("b", after))
        assert "name the monitors of Ceph in both" in told.value.remedy
        with pytest.raises(Invalid, match=r"of VM b may be the same image as .* of VM b"):
            checked((), plain("b", before, after))
        checked((plain("a", before, shared=(before,)),), plain("b", after, shared=(after,)))


def test_vm_that_may_run_comes_to_share_no_disk_and_to_have_none_alone() -> None:
    async def check() -> None:
        store = MemoryStore(SystemClock(), SystemIds())
        for name, shared in (("alone", ()), ("shares", ("d2",))):
            made = await store.create(plain(name, f"d{1 + bool(shared)}", shared=shared))
            await Neighbours(store).check(changed(made, shared_disks=() if shared else ("d1",)))
            made = await store.replace_status(
                replace(made, status=VirtualMachineStatus(holders=(Holder(hypervisor="h"),)))
            )
            with pytest.raises(Invalid, match=f"VM {name} may be running, and has d. open as it was defined"):
                await Neighbours(store).check(changed(made, shared_disks=() if shared else ("d1",)))

    run_real(check())


def test_vm_that_shares_disks_is_labelled_whatever_its_writer_says() -> None:
    shares = fill_from_definition(plain("a", ASM, shared=(ASM,)))
    assert shares.metadata.labels == {SHARES_LABEL: "true"}
    assert fill_from_definition(changed(shares, shared_disks=())).metadata.labels == {}  # type: ignore[arg-type]
    with pytest.raises(Forbidden, match=r"says whether spec\.sharedDisks names disks"):
        check_metadata_patch(VirtualMachine, shares.ref, {SHARES_LABEL: None})
