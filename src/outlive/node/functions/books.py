"""The books of one host: who uses and who has reserved each of its virtual functions, by what the store says of VMs.

What follows from the store is written again and again until it is so: a daemon that ended between two writes leaves
nothing booked. Every change is an operation of ``sriov.account``. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from outlive.base import natural_key
from outlive.node.functions.account import (
    AccountCode,
    AccountedNic,
    AccountedOwner,
    BookedFunction,
    FunctionBooks,
    FunctionBooksResult,
    account_functions,
)
from outlive.node.vm.states import active_move
from outlive.placement import function_refusal
from outlive.resources import MTU_USUAL, FreeFunction, FunctionNeed, VirtualFunction, VirtualMachine, function_name
from outlive.resources.reasons import Reason
from outlive.runtime import Count, Decision

ELSEWHERE: Final = ""
"""The host of a VM that is not here, as far as the books of this host go."""
Functions = tuple[VirtualFunction, ...]
Account = Callable[[FunctionBooks], FunctionBooksResult]
_replace = msgspec.structs.replace


class FunctionOwner(msgspec.Struct, frozen=True, kw_only=True):
    """A VM, as far as the books of this host go."""

    name: str
    needs: tuple[FunctionNeed, ...] = ()
    place: str = ELSEWHERE
    """The host that it is on, or is assigned to while it is down; while it moves, its source."""
    here: bool = False
    """Whether something of it may run here, whatever else is said."""
    comes: bool = False
    """Whether a move brings it here."""


def owner_of(vm: VirtualMachine, host: str, *, here: bool) -> FunctionOwner:
    """The VM as the books of the host see it."""
    move = active_move(vm)
    return FunctionOwner(
        name=vm.name,
        needs=vm.spec.functions,
        place=move.source if move is not None else vm.host,
        here=here or any(one.hypervisor == host and one.role == "" for one in vm.status.holders),
        comes=move is not None and move.target == host,
    )


def nics_of(
    needs: Iterable[FunctionNeed], functions: Iterable[VirtualFunction | FreeFunction]
) -> tuple[AccountedNic, ...]:
    """The interfaces by the names that their functions have here; one that is not here keeps a name that none has."""
    found, functions = [], tuple(functions)
    for need in needs:
        there = next((one.name for one in functions if need.is_met_by(one.name, one.pci)), "")
        found.append(AccountedNic(vf=there or f"{need.label} ", mac=need.mac, type=need.kind))
    return tuple(found)


class HostBooks:
    """The books of one host while several operations are made."""

    def __init__(self, host: str, functions: Functions, account: Account) -> None:
        self.functions = functions
        """As they are now."""
        self._host = host
        self._account = account

    def apply(self, op: tuple[str, ...], vms: Mapping[str, AccountedOwner]) -> AccountCode:
        """One operation; what came of it."""
        before = {
            one.name: BookedFunction(
                used=bool(one.used_by),
                used_by=one.used_by,
                reserved_by=one.reserved_by,
                mac=one.mac,
                phy_mac=one.phys_mac,
            )
            for one in self.functions
        }
        given = FunctionBooks(vfs={self._host: before}, vms=dict(vms), ops=(op,))
        result = self._account(given)
        after = result.vfs[self._host]
        self.functions = tuple(
            one
            if after[one.name] == before[one.name]
            else _replace(
                one,
                used_by=after[one.name].used_by,
                reserved_by=after[one.name].reserved_by,
                mac=after[one.name].mac,
            )
            for one in self.functions
        )
        return result.results[0]

    def assign(self, owner: FunctionOwner) -> AccountCode:
        """Have the VM use what it needs, as it is here; what it has reserved here becomes that."""
        nics = nics_of(owner.needs, self.functions)
        held = {one.name: one for one in self.functions}
        mine = [held[nic.vf] for nic in nics if nic.vf in held]
        if len(mine) == len(nics) and all(one.used_by == owner.name and not one.reserved_by for one in mine):
            return AccountCode.OK
        if len(mine) == len(nics) and all(one.reserved_by == owner.name for one in mine):
            return self.apply(
                ("commit", owner.name, self._host), {owner.name: AccountedOwner(node=ELSEWHERE, nics=nics)}
            )
        code = self.apply(("assign", owner.name), {owner.name: AccountedOwner(node=self._host, nics=nics)})
        if any(one.reserved_by == owner.name for one in self.functions):
            self._abort(owner.name)
        return code

    def begin(self, owner: FunctionOwner) -> AccountCode:
        """Reserve what the VM needs, as a move brings it here."""
        nics = nics_of(owner.needs, self.functions)
        return self.apply(("begin", owner.name, self._host), {owner.name: AccountedOwner(node=ELSEWHERE, nics=nics)})

    def _abort(self, vm: str) -> None:
        nics = tuple(AccountedNic(vf=one.name) for one in self.functions if one.reserved_by == vm)
        self.apply(("abort", vm, self._host), {vm: AccountedOwner(node=ELSEWHERE, nics=nics)})

    def restart(self) -> None:
        """The host comes back after a boot: nothing that was reserved before is."""
        self.apply(("fenced", self._host), {})

    def settle(self, owners: Mapping[str, FunctionOwner]) -> None:
        """Everything as it follows from where these VMs are. ``owners``: all that are in the books, or belong here."""
        self._release(owners)
        for name in sorted({one.reserved_by for one in self.functions if one.reserved_by}):
            owner = owners.get(name)
            if owner is None or not (owner.comes or owner.place == self._host):
                self._abort(name)
        for owner in sorted(owners.values(), key=lambda one: one.name):
            if owner.place == self._host and owner.needs:
                self.assign(owner)

    def _release(self, owners: Mapping[str, FunctionOwner]) -> None:
        users = sorted({one.used_by for one in self.functions if one.used_by})
        places = {}
        for name in users:
            owner = owners.get(name)
            stays = owner is not None and (owner.place == self._host or owner.here)
            places[name] = AccountedOwner(node=self._host if stays else ELSEWHERE)
        if any(one.node == ELSEWHERE for one in places.values()):
            self.apply(("rejoin", self._host), places)
        for name, owner in sorted(owners.items()):
            if owner.here:
                continue  # it may have what its definition had when it was started
            needed = {nic.vf for nic in nics_of(owner.needs, self.functions)}
            left = [one.name for one in self.functions if one.used_by == name and one.name not in needed]
            if left:
                nics = tuple(AccountedNic(vf=one) for one in left)
                self.apply(("release", name), {name: AccountedOwner(node=self._host, nics=nics)})


def move_refusals(
    vm: VirtualMachine, hosts: Mapping[str, tuple[FreeFunction, ...]], vms: Iterable[VirtualMachine]
) -> dict[str, Reason]:
    """Host → why a move of the VM may not begin to there: a virtual function is missing or not free.

    ``hosts``: of each, its functions as its own books say who has them. ``vms``: all; a VM on its way to a host
    has reserved there what its own record names, whether or not that host has written it yet.
    """
    if not vm.spec.functions:
        return {}
    comers = {
        (move.target, function): other.name
        for other in vms
        if (move := active_move(other)) is not None and other.name != vm.name
        for function in move.functions
    }
    names = {one.pci: one.name for one in hosts.get(vm.host, ())}  # of functions that only a PCI address names
    needs = tuple(_replace(one, name=one.name or names.get(one.pci, "")) for one in vm.spec.functions)
    found: dict[str, Reason] = {}
    for host, functions in hosts.items():
        now = tuple(
            _replace(one, owner=one.owner or comers.get((host, one.name), "") or comers.get((host, one.pci), ""))
            for one in functions
        )
        others = {one.name: one.owner if one.owner != vm.name else "" for one in now}
        books = {name: BookedFunction(used=bool(owner), used_by=owner) for name, owner in others.items()}
        owner = AccountedOwner(node=vm.host, method=vm.spec.migration_method, nics=nics_of(needs, functions))
        given = FunctionBooks(vfs={host: books}, vms={vm.name: owner}, ops=(("begin", vm.name, host),))
        code = account_functions(given).results[0]
        if code in (AccountCode.VF_MISSING, AccountCode.VF_IN_USE):
            why = function_refusal(vm.name, host, needs, now)
            assert why is not None, "it names what the operation was refused for"
            found[host] = why
    return found


# ``sriov.sync``: which physical and virtual functions a host registers, keeps and forgets when its daemon starts.
#
# What is registered is left as it is; of what is new only that is registered whose PCI address is readable: else it
# is in a guest already (docs/design/node-decisions.md#sriovsync). Pure.


class ConfiguredDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A physical function as the host's configuration has it."""

    phy: str
    vfcount: Count = 0
    mtu: Count = MTU_USUAL


class RegisteredFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual function that is registered."""

    pf: str


class RegisteredFunctions(msgspec.Struct, frozen=True, kw_only=True):
    """What is registered, by name."""

    pf: dict[str, dict[str, Any]] = {}
    vf: dict[str, RegisteredFunction] = {}


class FunctionOfCard(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual function as the kernel lists it."""

    vf: Count
    """Its number on its card, from 0."""
    pci: str | None = None
    """Null: it cannot be read, as the function is in a guest."""
    address: str = ""
    """Its MAC address."""


class SyncInput(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration, store and kernel."""

    config: tuple[ConfiguredDevice, ...] = ()
    store: RegisteredFunctions = RegisteredFunctions()
    hardware: dict[str, tuple[FunctionOfCard, ...]] = {}


class WrittenDevice(msgspec.Struct, frozen=True, kw_only=True):
    """What is registered of a physical function."""

    mtu: int
    vfcount: int


class SyncResult(msgspec.Struct, frozen=True, kw_only=True):
    """What is done with each of them; names in natural order."""

    write_pf: dict[str, WrittenDevice]
    add_vf: tuple[str, ...]
    keep_vf: tuple[str, ...]
    skip_vf: tuple[str, ...]
    remove_pf: tuple[str, ...]
    remove_vf: tuple[str, ...]


def sync_functions(given: SyncInput) -> SyncResult:
    """What is done at a start; functions of cards that are not configured are overlooked."""
    configured = {one.phy: one for one in given.config}
    add: dict[str, None] = {}
    keep: dict[str, None] = {}
    skip: dict[str, None] = {}
    for card in configured:
        for found in given.hardware.get(card, ()):
            name = function_name(card, found.vf)
            group = keep if name in given.store.vf else skip if found.pci is None else add
            group[name] = None
    names = sorted(configured, key=natural_key)
    return SyncResult(
        write_pf={name: WrittenDevice(mtu=configured[name].mtu, vfcount=configured[name].vfcount) for name in names},
        add_vf=tuple(sorted(add, key=natural_key)),
        keep_vf=tuple(sorted(keep, key=natural_key)),
        skip_vf=tuple(sorted(skip, key=natural_key)),
        remove_pf=tuple(sorted((name for name in given.store.pf if name not in configured), key=natural_key)),
        remove_vf=tuple(
            sorted((name for name, one in given.store.vf.items() if one.pf not in configured), key=natural_key)
        ),
    )


SRIOV_SYNC: Final = Decision(
    "sriov.sync",
    sync_functions,
    SyncInput,
    SyncResult,
    "Which functions of network cards a host registers, keeps and forgets",
    nulls_are_absent=True,
)
