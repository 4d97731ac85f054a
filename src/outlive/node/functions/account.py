"""Which virtual functions a host has by its settings, and ``sriov.account``: who uses and has reserved each of them.

A move reserves functions on its target, turns that into use when it arrives, and drops it when it is aborted; an
operation that is refused changes nothing (docs/design/node-decisions.md#sriovaccount). Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from outlive.resources import CARDS_LIMIT, FUNCTIONS_LIMIT, MTU_USUAL
from outlive.runtime import Decision


class SriovDevice(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One card of ``links.sriov``."""

    device: Annotated[str, Meta(min_length=1, max_length=15)]
    """Its network device, such as ``enp1s0f0``: the first part of the names of its functions."""
    count: Annotated[int, Meta(ge=0, le=FUNCTIONS_LIMIT)]
    """Virtual functions that it is to have."""
    mtu: Annotated[int, Meta(ge=68, le=65_535)] = MTU_USUAL
    """Largest packet in bytes."""


SriovDevices = Annotated[tuple[SriovDevice, ...], Meta(max_length=CARDS_LIMIT)]
"""All cards that its daemon divides."""


def check_devices(devices: SriovDevices) -> None:
    """``ValueError`` for a card that is named twice."""
    names = [one.device for one in devices]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise ValueError(f"sriov names {twice} twice")


class AccountCode(enum.StrEnum):
    """What came of an operation."""

    OK = "ok"
    VF_MISSING = "vf_missing"
    VF_IN_USE = "vf_in_use"
    NOT_OWNER = "not_owner"
    NOT_RESERVED = "not_reserved"
    SAME_NODE = "same_node"
    UNKNOWN = "unknown"
    """No such virtual machine or host."""
    UNKNOWN_OP = "unknown_op"


class BookedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """What the books say of a virtual function; empty: nobody."""

    used: bool = False
    used_by: str = ""
    reserved_by: str = ""
    mac: str = ""
    """That it has now."""
    phy_mac: str = ""
    """That it was made with."""


class AccountedNic(msgspec.Struct, frozen=True, kw_only=True):
    """A network interface of a virtual machine that is a virtual function."""

    vf: str
    mac: str = ""
    type: Literal["direct", "hostdev"] = "direct"


class AccountedOwner(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine, where it is now, and what it needs there."""

    node: str = ""
    method: str = ""
    nics: tuple[AccountedNic, ...] = ()


class FunctionBooks(msgspec.Struct, frozen=True, kw_only=True):
    """The books of all hosts, all virtual machines, and what happens one after the other: ``[name, argument, …]``."""

    vfs: dict[str, dict[str, BookedFunction]] = {}
    vms: dict[str, AccountedOwner] = {}
    ops: tuple[tuple[str, ...], ...] = ()


class FunctionBooksResult(msgspec.Struct, frozen=True, kw_only=True):
    """The books afterwards, what came of each operation, and how each virtual machine moves."""

    vfs: dict[str, dict[str, BookedFunction]]
    results: tuple[AccountCode, ...]
    methods: dict[str, str]


_replace = msgspec.structs.replace


class _OpRefused(Exception):
    def __init__(self, code: AccountCode) -> None:
        super().__init__(code)
        self.code = code


def account_functions(given: FunctionBooks) -> FunctionBooksResult:
    """The books after all operations."""
    books = _Books(given)
    results = tuple(books.apply(op) for op in given.ops)
    return FunctionBooksResult(
        vfs=books.vfs, results=results, methods={name: vm.method for name, vm in books.vms.items()}
    )


class _Books:
    """Each operation checks all interfaces before it changes the first: what is refused has changed nothing."""

    def __init__(self, given: FunctionBooks) -> None:
        self.vfs = {node: dict(functions) for node, functions in given.vfs.items()}
        self.vms = dict(given.vms)

    def apply(self, op: tuple[str, ...]) -> AccountCode:
        name, first, second = (*op, "", "", "")[:3]
        try:
            match name:
                case "assign":
                    self._assign(first)
                case "release":
                    self._release(first)
                case "begin":
                    self._begin(first, second)
                case "commit":
                    self._commit(first, second)
                case "abort":
                    self._abort(first, second)
                case "fenced":
                    self._release_reservations(first)
                case "rejoin":
                    self._rejoin(first)
                case _:
                    return AccountCode.UNKNOWN_OP
        except _OpRefused as refused:
            return refused.code
        return AccountCode.OK

    def _find_vm(self, name: str) -> AccountedOwner:
        if name not in self.vms:
            raise _OpRefused(AccountCode.UNKNOWN)
        return self.vms[name]

    def _find_node(self, name: str) -> dict[str, BookedFunction]:
        if name not in self.vfs:
            raise _OpRefused(AccountCode.UNKNOWN)
        return self.vfs[name]

    def _check(
        self,
        vm: AccountedOwner,
        functions: dict[str, BookedFunction],
        refused: Callable[[BookedFunction], bool],
        code: AccountCode,
    ) -> None:
        """Interfaces in their order; of each that it is missing comes first."""
        for nic in vm.nics:
            if nic.vf not in functions:
                raise _OpRefused(AccountCode.VF_MISSING)
            if refused(functions[nic.vf]):
                raise _OpRefused(code)

    def _assign(self, name: str) -> None:
        vm = self._find_vm(name)
        functions = self._find_node(vm.node)
        self._check(
            vm,
            functions,
            lambda one: ((one.used or one.used_by != "") and one.used_by != name) or one.reserved_by not in ("", name),
            AccountCode.VF_IN_USE,
        )
        for nic in vm.nics:
            functions[nic.vf] = _replace(functions[nic.vf], used=True, used_by=name, mac=nic.mac)
        if any(nic.type == "hostdev" for nic in vm.nics):
            self.vms[name] = _replace(vm, method="shutdown")

    def _release(self, name: str) -> None:
        vm = self._find_vm(name)
        functions = self._find_node(vm.node)
        self._check(vm, functions, lambda one: one.used_by != name, AccountCode.NOT_OWNER)
        for nic in vm.nics:
            functions[nic.vf] = _release_function(functions[nic.vf])

    def _begin(self, name: str, target: str) -> None:
        vm, functions = self._find_vm(name), self._find_node(target)
        if vm.node == target:
            raise _OpRefused(AccountCode.SAME_NODE)
        self._check(
            vm,
            functions,
            lambda one: one.used or bool(one.used_by) or one.reserved_by not in ("", name),
            AccountCode.VF_IN_USE,
        )
        for nic in vm.nics:
            functions[nic.vf] = _replace(functions[nic.vf], reserved_by=name)

    def _commit(self, name: str, target: str) -> None:
        vm, functions = self._find_vm(name), self._find_node(target)
        self._check(vm, functions, lambda one: one.reserved_by != name, AccountCode.NOT_RESERVED)
        source = self.vfs.get(vm.node, {})
        for nic in vm.nics:
            if nic.vf in source and source[nic.vf].used_by == name:
                source[nic.vf] = _release_function(source[nic.vf])
        for nic in vm.nics:
            functions[nic.vf] = _replace(functions[nic.vf], used=True, used_by=name, mac=nic.mac, reserved_by="")
        self.vms[name] = _replace(vm, node=target)

    def _abort(self, name: str, target: str) -> None:
        vm, functions = self._find_vm(name), self._find_node(target)
        for nic in vm.nics:
            if nic.vf in functions and functions[nic.vf].reserved_by == name:
                functions[nic.vf] = _replace(functions[nic.vf], reserved_by="")

    def _release_reservations(self, node: str) -> None:
        functions = self._find_node(node)
        for name, one in functions.items():
            functions[name] = _replace(one, reserved_by="")

    def _rejoin(self, node: str) -> None:
        functions = self._find_node(node)
        for name, one in functions.items():
            owner = self.vms.get(one.used_by)
            if one.used_by and (owner is None or owner.node != node):
                functions[name] = _release_function(one)


def _release_function(one: BookedFunction) -> BookedFunction:
    return _replace(one, used=False, used_by="", mac=one.phy_mac)


SRIOV_ACCOUNT: Final = Decision(
    "sriov.account",
    account_functions,
    FunctionBooks,
    FunctionBooksResult,
    "Who uses and who has reserved each virtual function of network cards",
    nulls_are_absent=True,
)
