"""Virtual functions of network cards (SR-IOV): settings, what a host has, and what a VM needs of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal, NamedTuple

from msgspec import Meta

from outlive.resources.meta import Part

MTU_USUAL: Final = 1500
"""Of a physical function whose configuration names none."""
FUNCTIONS_LIMIT: Final = 1024
"""Virtual functions of a host."""
CARDS_LIMIT: Final = 64
"""Physical functions of a host."""
NAME_LIMIT: Final = 64
"""Characters of a function's name."""

FunctionKind = Literal["direct", "hostdev"]
"""How a guest has it: through a macvtap device, or as a PCI device of its own."""
LinkState = Literal["auto", "enable", "disable"]
"""Of a virtual function: as its card's, always up, always down."""


def function_name(card: str, index: int) -> str:
    """Of the virtual function with that number, from 0, on the physical function ``card``."""
    return f"{card}v{index}"


class VirtualFunctionSettings(Part, frozen=True, kw_only=True):
    """How a virtual function is programmed; absent values stay as the card has them."""

    vlan: Annotated[int, Meta(ge=0, le=4094)] | None = None
    """VLAN that its card puts its frames into; 0: none."""
    vlan_qos: Annotated[int, Meta(ge=0, le=7)] | None = None
    """Priority of these frames."""
    tx_rate_min: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    """What it may always send, in Mbit/s; 0: nothing is promised."""
    tx_rate_max: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    """What it may send at most, in Mbit/s; 0: no limit."""
    spoof_check: bool | None = None
    """Whether frames with another MAC address than its own are dropped."""
    link_state: LinkState | None = None
    """``auto``: as its card's; ``enable``, ``disable``: always up, always down."""
    trust: bool | None = None
    """Whether the guest may change its MAC address and receive everything."""
    query_rss: bool | None = None
    """Whether the guest may read how its card spreads its packets."""

    def list_set(self) -> dict[str, int | bool | str]:
        """What is set, by field."""
        found = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in found.items() if value is not None}


class PhysicalFunction(Part, frozen=True, kw_only=True):
    """A network card or port that a host divides into virtual functions."""

    name: str
    """Its device, such as ``enp1s0f0``."""
    vf_count: int = 0
    """Configured number of virtual functions."""
    mtu: int = MTU_USUAL
    """Largest packet in bytes, as configured."""
    message: str = ""
    """The problem with it; empty: none."""


class VirtualFunction(Part, frozen=True, kw_only=True):
    """A virtual function of a host, and who has it."""

    name: str
    """``<physical function>v<number>``."""
    physical_function: str
    """Name of the physical function that it is of."""
    pci: str = ""
    """PCI address, such as ``0000:01:10.0``."""
    mac: str = ""
    """MAC address that it has now."""
    phys_mac: str = ""
    """MAC address at registration; it gets this one back when a VM returns it."""
    mtu: int = MTU_USUAL
    """Largest packet in bytes."""
    used_by: str = ""
    """The VM that has it; empty: none."""
    reserved_by: str = ""
    """The VM that moves here and gets it; empty: none."""
    settings: VirtualFunctionSettings = VirtualFunctionSettings()
    """As its card has them."""
    missing: bool = False
    """Its card does not show it: no other VM gets it."""
    message: str = ""
    """The problem with it, such as a refused setting; empty: none."""


class FunctionNeed(Part, frozen=True, kw_only=True):
    """An interface of a VM that is a virtual function of its host."""

    name: str = ""
    """Name of the virtual function; empty: ``pci`` names it."""
    kind: FunctionKind = "direct"
    """``direct``: macvtap, moves live; ``hostdev``: passed through, moves while the VM is down."""
    pci: str = ""
    """PCI address, if it is passed through."""
    mac: str = ""
    """MAC address of the interface."""

    def is_met_by(self, name: str, pci: str) -> bool:
        """Whether a function of that name and PCI address is the one that is needed."""
        return self.name in ("", name) and (self.kind == "direct" or self.pci == pci)

    @property
    def label(self) -> str:
        """Return its name and place in words, for messages."""
        place = f"at {self.pci}" if self.kind == "hostdev" else ""
        return " ".join(part for part in (self.name, place) if part)


class FreeFunction(Part, frozen=True, kw_only=True):
    """A virtual function as placement sees it."""

    name: str
    """Of the function."""
    pci: str
    """PCI address."""
    owner: str = ""
    """The VM that has it or gets it; empty: it is free."""


class FunctionProblem(NamedTuple):
    """What a host lacks of the virtual functions that a VM needs."""

    function: str
    """The function."""
    other: str
    """The VM that has it; empty: the host has no such function."""

    @property
    def message(self) -> str:
        """In words, without the host's name."""
        if self.other:
            return f"its virtual function {self.function} is of VM {self.other}"
        return f"it has no virtual function {self.function}"


def function_problem(
    vm: str, needs: Iterable[FunctionNeed], functions: Iterable[FreeFunction]
) -> FunctionProblem | None:
    """The first function that the host does not have free for the VM; ``None``: all are there for it."""
    there = tuple(functions)
    for need in needs:
        found = next((one for one in there if need.is_met_by(one.name, one.pci)), None)
        if found is None:
            return FunctionProblem(need.label, "")
        if found.owner not in ("", vm):
            return FunctionProblem(found.name, found.owner)
    return None
