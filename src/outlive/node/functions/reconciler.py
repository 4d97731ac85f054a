"""The virtual functions of this host as they are to be: made at start, registered, programmed, and booked.

It looks at start, when something about a VM here or about this host changes, and now and then. A card that is missing
or refuses something is a fault that names it, and everything else is served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from outlive.base import OutliveError, Unavailable, get_logger, natural_key, set_within
from outlive.node.functions.account import SRIOV_ACCOUNT, AccountCode, FunctionBooks, FunctionBooksResult, SriovDevice
from outlive.node.functions.books import (
    SRIOV_SYNC,
    ConfiguredDevice,
    FunctionOfCard,
    FunctionOwner,
    Functions,
    HostBooks,
    RegisteredFunction,
    RegisteredFunctions,
    SyncInput,
    owner_of,
)
from outlive.node.ports.links import FoundCard, FoundFunction, FunctionPort
from outlive.node.vm.context import VmContext
from outlive.placement import function_refusal
from outlive.resources import (
    MTU_USUAL,
    FunctionPlace,
    Hypervisor,
    HypervisorStatus,
    ObjectRef,
    PhysicalFunction,
    VirtualFunction,
    VirtualFunctionSettings,
    VirtualMachine,
    free_functions,
    function_name,
    with_function_places,
)
from outlive.resources.reasons import FaultCode, PlaceReason, Reason, make_reason
from outlive.runtime import Periodic, log_errors
from outlive.store import compare_and_swap

READY_S: Final = 10.0
"""How long a start or a move waits for the functions to be made at once; it is tried again afterwards."""
REFUSED_AGAIN_S: Final = 30.0
"""After so long what a card has refused is programmed again: some limit rates only while their link is up."""
CONFLICTS: Final = 8
"""Writes of this host's record before one change is left to the next look."""
HIDDEN: Final = "its card does not show it"
"""What is said of a registered function that is not there."""
AFTER_BOOT: Final = ("J0", "J1", "J3")
"""Rows by which a host enters of which nothing is left that was reserved before."""
_replace = msgspec.structs.replace
_log = get_logger("node.functions")


class FunctionReconciler:
    """See the module."""

    def __init__(self, node: VmContext, port: FunctionPort, devices: Sequence[SriovDevice]) -> None:
        self._node = node
        self._port = port
        self._devices = tuple(devices)
        self._begun = False
        """Whether cards were given their numbers of functions, which is done once."""
        self._not_made: dict[str, str] = {}
        """Card → what it refused at the start."""
        self._wrong: dict[str, str] = {}
        """Card, or function that is not registered → what is wrong with it now."""
        self._cards: dict[str, FoundCard] = {}
        """As they were read last."""
        self._programmed: dict[str, VirtualFunctionSettings] = {}
        """Function → what it was programmed with last; none after a start, so that the first value always is …"""
        self._macs: dict[str, str] = {}
        """… and the MAC address that it was given back with."""
        self._refused: dict[str, str] = {}
        """Function → what its card has refused, in words, …"""
        self._refused_fields: dict[str, frozenset[str]] = {}
        """… and by field."""
        self._programmed_s: dict[str, float] = {}
        """Function → when it was programmed last (monotonic)."""
        self._kept_by_card: dict[str, dict[str, int | bool | str]] = {}
        """Function → what its card showed instead of what was programmed when it was programmed again."""
        self._host: Hypervisor | None = None
        """This host's record as it was read last."""
        self._ready = asyncio.Event()
        """Set once cards were made and registered by this process: before, a VM would start on a function that the
        boot of the host has taken away."""
        self._entered: object = None
        """How this host entered its membership when its books were last gone through from the start."""
        self._loop = Periodic(
            self.reconcile,
            lambda: float(node.settings.look),
            clock=node.clock,
            wakes=True,
            failed=log_errors(_log, "functions.not_reconciled", host=node.host),
        )

    def notify(self) -> None:
        """Look soon."""
        self._loop.wake()

    async def run(self) -> None:
        """Until cancelled."""

        def on_vm(_old: VirtualMachine | None, _new: VirtualMachine | None) -> None:
            self.notify()

        end = self._node.informer.subscribe(on_vm)
        try:
            await self._loop.run()
        finally:
            end()

    async def reconcile(self) -> None:
        """Once: cards, registration, books, settings, faults. ``Unavailable`` where the store is away."""
        if not self._begun:
            await self._make()
            self._begun = True
        self._wrong = dict(self._not_made)
        for device in self._devices:
            await self._read(device.device)
        after = await self._write()
        if after is not None:
            self._host = after
            self._ready.set()
            await self._program(after)
        self._report()

    # Cards

    async def _make(self) -> None:
        """Give each card its number of functions and its MTU; one of which somebody has a function stays as it is."""
        if why := await self._port.prepare():
            _log.warning("functions.not_passed_through", host=self._node.host, why=why)
        node = self._node
        found = await compare_and_swap(node.store, Hypervisor, node.host, lambda _: None, clock=node.clock)
        known = found.status.virtual_functions if found is not None else ()
        for device in self._devices:
            name = device.device
            try:
                card = await self._port.read(name)
                booked = (one.used_by or one.reserved_by for one in known if one.physical_function == name)
                used = any(booked) or any(one.pci is None or one.occupied for one in card.functions)
                if len(card.functions) != device.count:
                    await self._port.set_count(name, device.count, replace=not used)
                if card.mtu != device.mtu:
                    await self._port.set_mtu(name, device.mtu)
            except OutliveError as error:
                self._not_made[name] = error.message
                _log.warning("functions.not_made", host=self._node.host, card=name, why=str(error))

    async def _read(self, card: str) -> None:
        try:
            self._cards[card] = await self._port.read(card)
            if not self._cards[card].up:
                await self._port.bring_up(card)
                _log.info("functions.card_brought_up", host=self._node.host, card=card)
        except OutliveError as error:
            self._cards.pop(card, None)
            self._wrong.setdefault(card, error.message)

    # The record

    async def _write(self) -> Hypervisor | None:
        """Registration and books in one write; the record afterwards.

        Nothing is taken from a VM by what was observed of it some time ago: it is read after the version of the books
        that is replaced, so that a reservation of meanwhile is not dropped.
        """
        entered, node = self._node.lease.entered, self._node
        owners = {vm.name: self._owner_of(vm) for vm in node.informer.items() if vm.spec.functions}
        read_after, unsure = "", set[str]()

        def change(found: Hypervisor | None) -> Hypervisor | None:
            unsure.clear()
            if found is None:
                return None
            status = self._sync_status(found.status)
            if found.metadata.resource_version != read_after:
                unsure.update(_find_losers(status.virtual_functions, owners, node.host))
                if unsure:
                    versions.append(found.metadata.resource_version)
                    return None
            books = self._build_books(status.virtual_functions)
            if entered is not self._entered and entered is not None and entered.row in AFTER_BOOT:
                books.restart()
            books.settle(owners)
            status = _replace(status, virtual_functions=books.functions)
            return _replace(found, status=status) if status != found.status else None

        for _ in range(CONFLICTS):
            versions: list[str] = []
            after = await compare_and_swap(node.store, Hypervisor, node.host, change, clock=node.clock, tries=CONFLICTS)
            if not unsure:
                self._entered = entered
                return after
            read_after = versions[-1]
            for name in sorted(unsure):
                vm = await node.read(name)
                owners[name] = (
                    self._owner_of(vm) if vm is not None else FunctionOwner(name=name, here=self._is_here(name))
                )
        self.notify()
        return None

    def _is_here(self, vm: str) -> bool:
        """Whether something of it may be on this host; always, before its domains were looked at."""
        return not self._node.domains.looked or vm in self._node.domains.list_names()

    def _owner_of(self, vm: VirtualMachine) -> FunctionOwner:
        return owner_of(vm, self._node.host, here=self._is_here(vm.name))

    def _sync_status(self, status: HypervisorStatus) -> HypervisorStatus:
        """With what is registered, and what cards say of it now."""
        before = {one.name: one for one in status.virtual_functions}
        found = {
            function_name(card, one.index): (card, one) for card, read in self._cards.items() for one in read.functions
        }
        given = SyncInput(
            config=tuple(ConfiguredDevice(phy=one.device, vfcount=one.count, mtu=one.mtu) for one in self._devices),
            store=RegisteredFunctions(
                pf={one.name: {} for one in status.physical_functions},
                vf={name: RegisteredFunction(pf=one.physical_function) for name, one in before.items()},
            ),
            hardware={
                card: tuple(FunctionOfCard(vf=one.index, pci=one.pci, address=one.mac) for one in read.functions)
                for card, read in self._cards.items()
            },
        )
        result = self._node.decisions.use(SRIOV_SYNC, given, subject=self._node.host)
        for name in result.skip_vf:
            self._wrong[name] = f"{name} is in a guest already"
        kept = [
            _update_registered(before[name], found[name][1], self._refused.get(name, "")) for name in result.keep_vf
        ]
        gone = {*result.keep_vf, *result.remove_vf}
        hidden = [_replace(one, missing=True, message=HIDDEN) for name, one in before.items() if name not in gone]
        added = [_register_function(name, *found[name]) for name in result.add_vf]
        return _replace(
            status,
            physical_functions=tuple(
                PhysicalFunction(name=name, vf_count=one.vfcount, mtu=one.mtu, message=self._wrong.get(name, ""))
                for name, one in result.write_pf.items()
            ),
            virtual_functions=tuple(sorted((*kept, *hidden, *added), key=lambda one: natural_key(one.name))),
        )

    def _build_books(self, functions: Functions) -> HostBooks:
        def account(given: FunctionBooks) -> FunctionBooksResult:
            return self._node.decisions.use(SRIOV_ACCOUNT, given, subject=self._node.host)

        return HostBooks(self._node.host, functions, account)

    # For starts and moves

    async def assign(self, vm: VirtualMachine) -> Reason | None:
        """Have the VM, which starts here, use its functions; what is in the way. ``Unavailable``."""
        return await self._book(vm, lambda books, owner: books.assign(owner))

    async def reserve(self, vm: VirtualMachine) -> Reason | None:
        """Reserve the functions of a VM that is on its way here; what is in the way. ``Unavailable``."""
        return await self._book(vm, lambda books, owner: books.begin(owner))

    async def _book(self, vm: VirtualMachine, book: Callable[[HostBooks, FunctionOwner], AccountCode]) -> Reason | None:
        """One operation on the record as it is now: this host's own compare-and-swap admits the VM."""
        if not vm.spec.functions:
            return None
        if not await set_within(self._ready, READY_S):
            raise Unavailable(f"the functions of the cards of {self._node.host} are not made yet", remedy="wait")
        why: Reason | None = None

        def change(found: Hypervisor | None) -> Hypervisor | None:
            nonlocal why
            why = None
            if found is None:
                return None
            self._host = found
            books = self._build_books(found.status.virtual_functions)
            code = book(books, self._owner_of(vm))
            if code is not AccountCode.OK:
                why = function_refusal(vm.name, found.name, vm.spec.functions, free_functions(found)) or make_reason(
                    PlaceReason.UNSUITED, vm=vm.name, host=found.name, why=f"its virtual functions: {code}"
                )
                return None
            status = _replace(found.status, virtual_functions=books.functions)
            return _replace(found, status=status) if status != found.status else None

        await compare_and_swap(
            self._node.store, Hypervisor, self._node.host, change, clock=self._node.clock, tries=CONFLICTS
        )
        self.notify()
        return why

    def plug(self, vm: VirtualMachine) -> VirtualMachine:
        """Return the VM with the devices and VLANs that its functions have on this host."""
        if not vm.spec.functions or not vm.spec.definition or self._host is None:
            return vm
        wanted, registered = self._host.spec.virtual_functions, self._host.status.virtual_functions
        devices = {
            function_name(card, one.index): one.device for card, read in self._cards.items() for one in read.functions
        }
        places = (
            FunctionPlace(
                name=one.name,
                pci=one.pci,
                device=devices.get(one.name, ""),
                vlan=wanted.get(one.name, VirtualFunctionSettings()).vlan or 0,
            )
            for one in registered
        )
        definition = with_function_places(vm.spec.definition, places)
        return _replace(vm, spec=_replace(vm.spec, definition=definition))

    # Settings

    async def _program(self, host: Hypervisor) -> None:
        """Program what is wanted and was not programmed by this process yet, or has changed, here or on the card."""
        places = {
            function_name(card, one.index): (card, one) for card, read in self._cards.items() for one in read.functions
        }
        for one in host.status.virtual_functions:
            if one.name not in places:
                continue
            card, found = places[one.name]
            wanted = host.spec.virtual_functions.get(one.name, VirtualFunctionSettings())
            is_due = self._node.clock.monotonic() - self._programmed_s.get(one.name, 0.0) >= REFUSED_AGAIN_S
            if self._programmed.get(one.name) != wanted or (is_due and self._refused_fields.get(one.name)):
                await self._program_function(one.name, card, found.index, wanted)
            else:
                await self._restore_settings(one.name, card, found, wanted)
            await self._restore_mac(one, card, found)

    async def _restore_settings(
        self, name: str, card: str, found: FoundFunction, wanted: VirtualFunctionSettings
    ) -> None:
        """Program what somebody else has changed on the card, as libvirt does when a guest starts and when it ends.

        Once for each change: what a card shows otherwise all the same is reported as what it refuses.
        """
        refused, shown = self._refused_fields.get(name, frozenset()), found.settings.list_set()
        differs = {
            field: shown[field]
            for field, value in wanted.list_set().items()
            if field in shown and field not in refused and shown[field] != value
        }
        if not differs:
            if self._kept_by_card.pop(name, None) is not None and not refused:
                self._refused.pop(name, None)
        elif self._kept_by_card.get(name) != differs:
            await self._program_function(name, card, found.index, wanted)
            self._kept_by_card[name] = differs
        else:
            self._refused[name] = "; ".join(
                f"{_format_setting(field)}: its card shows {value}" for field, value in sorted(differs.items())
            )

    async def _program_function(self, name: str, card: str, index: int, wanted: VirtualFunctionSettings) -> None:
        try:
            refused = await self._port.program(card, index, wanted) if wanted.list_set() else {}
        except OutliveError as error:
            self._refused[name] = error.message
            return
        self._programmed[name], self._programmed_s[name] = wanted, self._node.clock.monotonic()
        self._refused_fields[name] = frozenset(refused)
        why = "; ".join(f"{_format_setting(field)}: {refusal}" for field, refusal in sorted(refused.items()))
        if why and self._refused.get(name) != why:
            _log.warning("functions.setting_refused", host=self._node.host, function=name, why=why)
        if why:
            self._refused[name] = why
        else:
            self._refused.pop(name, None)
        self.notify()  # what its card has now is read, and written, at the next look

    async def _restore_mac(self, one: VirtualFunction, card: str, found: FoundFunction) -> None:
        """Its own MAC address, once nobody has it."""
        free = not one.used_by and not one.reserved_by and found.pci is not None
        if not free:
            self._macs.pop(one.name, None)
        if not free or not one.phys_mac or found.mac in ("", one.phys_mac) or self._macs.get(one.name) == found.mac:
            return
        self._macs[one.name] = found.mac
        try:
            await self._port.set_mac(card, found.index, one.phys_mac)
        except OutliveError as error:
            self._refused[one.name] = error.message

    def _report(self) -> None:
        subject, faults = ObjectRef(kind="Hypervisor", name=self._node.host), self._node.faults
        for code, wrong in ((FaultCode.FUNCTIONS_MISSING, self._wrong), (FaultCode.FUNCTIONS_REFUSED, self._refused)):
            if wrong:
                named = sorted(wrong.items(), key=lambda one: natural_key(one[0]))
                text = "; ".join(why if name in why else f"{name}: {why}" for name, why in named)
                faults.activate(code, subject, why=text)
            else:
                faults.clear(code, subject)


def _find_losers(functions: Functions, owners: Mapping[str, FunctionOwner], host: str) -> Iterator[str]:
    """The VMs that would lose what the books say they have."""
    for one in functions:
        user, comer = owners.get(one.used_by), owners.get(one.reserved_by)
        if one.used_by and (user is None or user.place != host):
            yield one.used_by
        if one.reserved_by and (comer is None or not (comer.comes or comer.place == host)):
            yield one.reserved_by


def _update_registered(one: VirtualFunction, found: FoundFunction, message: str) -> VirtualFunction:
    """A registered function with what its card says now; who has it, and its own MAC address, stay as they are."""
    return _replace(
        one,
        pci=found.pci or one.pci,
        mtu=found.mtu or one.mtu,
        settings=found.settings,
        missing=False,
        message=message,
    )


def _register_function(name: str, card: str, found: FoundFunction) -> VirtualFunction:
    return VirtualFunction(
        name=name,
        physical_function=card,
        pci=found.pci or "",
        mac=found.mac,
        phys_mac=found.mac,
        mtu=found.mtu or MTU_USUAL,
        settings=found.settings,
    )


def _format_setting(field: str) -> str:
    """A setting as users write it."""
    return next(one.encode_name for one in msgspec.structs.fields(VirtualFunctionSettings) if one.name == field)
