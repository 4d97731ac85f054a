"""``sriov.sync``: which physical and virtual functions a host registers, keeps and forgets when its daemon starts.

What is registered is left as it is; of what is new only that is registered whose PCI address is readable: else it is
in a guest already (docs/reference/node-decisions.md#sriovsync). Pure.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from outlive.base.natural import natural_key
from outlive.resources.functions import MTU_USUAL, function_name
from outlive.runtime.decisions import Decision
from outlive.runtime.units import Count


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
