"""The books of one host follow from where VMs are: from whatever was written before, and however often."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from outlive.node.functions import AccountCode, FunctionOwner, HostBooks, account_functions, move_refusals
from outlive.resources import (
    Assigned,
    FreeFunction,
    FunctionNeed,
    Migration,
    MigrationPhase,
    ObjectMeta,
    VirtualFunction,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
)
from outlive.resources.reasons import render

HOST = "kvm-1"
NAMES = ("eth0v0", "eth0v1")
VMS = ("a", "b", "c")

functions = st.tuples(
    *(
        st.builds(
            VirtualFunction,
            name=st.just(name),
            physical_function=st.just("eth0"),
            phys_mac=st.just("own"),
            mac=st.just("own"),
            used_by=st.sampled_from(("", *VMS, "gone")),
            reserved_by=st.sampled_from(("", *VMS, "gone")),
        )
        for name in NAMES
    )
)
owners = st.fixed_dictionaries(
    {
        vm: st.builds(
            FunctionOwner,
            name=st.just(vm),
            needs=st.sampled_from(((), *((FunctionNeed(name=name, mac=vm),) for name in NAMES))),
            place=st.sampled_from(("", HOST, "kvm-2")),
            here=st.booleans(),
            comes=st.booleans(),
        )
        for vm in VMS
    }
)


def settled(given: tuple[VirtualFunction, ...], vms: dict[str, FunctionOwner]) -> tuple[VirtualFunction, ...]:
    books = HostBooks(HOST, given, account_functions)
    books.settle(vms)
    return books.functions


@given(before=functions, vms=owners)
def test_settled_books_stay_and_name_nobody_who_is_not_here(
    before: tuple[VirtualFunction, ...], vms: dict[str, FunctionOwner]
) -> None:
    after = settled(before, vms)
    assert settled(after, vms) == after
    for one in after:
        user, comer = vms.get(one.used_by), vms.get(one.reserved_by)
        assert one.used_by == "" or (user is not None and (user.place == HOST or user.here))
        assert one.reserved_by == "" or (comer is not None and (comer.comes or comer.place == HOST))
        if user is not None and not user.here:
            assert one.name in [need.name for need in user.needs]


@given(vms=owners)
def test_free_function_goes_to_a_vm_that_is_here_and_needs_it(vms: dict[str, FunctionOwner]) -> None:
    free = tuple(VirtualFunction(name=name, physical_function="eth0") for name in NAMES)
    after = {one.name: one.used_by for one in settled(free, vms)}
    for name in NAMES:
        wanting = [vm for vm, one in vms.items() if one.place == HOST and any(need.name == name for need in one.needs)]
        assert after[name] == (min(wanting) if wanting else "")


def test_several_functions_are_reserved_all_or_none() -> None:
    both = FunctionOwner(name="a", needs=tuple(FunctionNeed(name=name) for name in NAMES), comes=True)
    taken = (
        VirtualFunction(name="eth0v0", physical_function="eth0"),
        VirtualFunction(name="eth0v1", physical_function="eth0", used_by="b"),
    )
    books = HostBooks(HOST, taken, account_functions)
    assert books.begin(both) is AccountCode.VF_IN_USE
    assert books.functions == taken


def test_boot_drops_what_was_reserved_and_keeps_what_is_used() -> None:
    """Uses end where their VMs are: the host is asked about each of them afterwards."""
    before = (
        VirtualFunction(name="eth0v0", physical_function="eth0", used_by="a"),
        VirtualFunction(name="eth0v1", physical_function="eth0", reserved_by="b"),
    )
    books = HostBooks(HOST, before, account_functions)
    books.restart()
    assert [(one.used_by, one.reserved_by) for one in books.functions] == [("a", ""), ("", "")]


def vm(name: str, host: str, *needs: FunctionNeed, move: Migration | None = None) -> VirtualMachine:
    status = VirtualMachineStatus(phase="start", assigned=Assigned(hypervisor=host), migration=move)
    return VirtualMachine(metadata=ObjectMeta(name=name), spec=VirtualMachineSpec(functions=needs), status=status)


class TestRequests:
    DIRECT = FunctionNeed(name="eth0v0")
    PASSED = FunctionNeed(kind="hostdev", pci="0000:01:10.0")

    def refused(self, need: FunctionNeed, *others: VirtualMachine, **function: str) -> str:
        own = FreeFunction(name="eth0v0", pci="0000:01:10.0", owner="a")
        target = msgspec.structs.replace(own, **{"owner": "", **function})
        found = move_refusals(vm("a", HOST, need), {HOST: (own,), "kvm-2": (target,)}, others)
        return render(found["kvm-2"]).text if found else ""

    def test_free_function_of_the_same_name_may_be_moved_to(self) -> None:
        assert self.refused(self.DIRECT) == ""
        assert self.refused(self.DIRECT, pci="0000:02:10.0") == ""
        assert self.refused(self.PASSED) == ""

    def test_what_is_passed_through_needs_the_same_name_and_the_same_address(self) -> None:
        assert "no virtual function eth0v0 at 0000:01:10.0" in self.refused(self.PASSED, pci="0000:02:10.0")
        assert "no virtual function eth0v0 at 0000:01:10.0" in self.refused(self.PASSED, name="eth1v0")

    def test_function_of_another_vm_refuses_the_move(self) -> None:
        assert "is of VM b" in self.refused(self.DIRECT, owner="b")

    def test_function_that_another_record_names_refuses_it_before_the_target_has_written_that(self) -> None:
        move = Migration(id="m", source="kvm-3", target="kvm-2", functions=("eth0v0",))
        assert "is of VM b" in self.refused(self.DIRECT, vm("b", "kvm-2", self.DIRECT, move=move))
        over = msgspec.structs.replace(move, phase=MigrationPhase.ABORTED)
        assert self.refused(self.DIRECT, vm("b", "kvm-3", self.DIRECT, move=over)) == ""
