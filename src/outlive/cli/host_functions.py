"""``outlive host functions`` and ``outlive host function``: virtual functions of hosts' network cards."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
import typer

from outlive.base import BadInput, Clock, NotFound, Usage, natural_key
from outlive.cli.access import Access, WriteAccess
from outlive.cli.arguments import OneHost, name_completer
from outlive.cli.commands import command, make_group
from outlive.cli.output import Output, make_table, write
from outlive.node import change_object
from outlive.resources import Hypervisor, VirtualFunctionSettings
from outlive.store import Store, list_all

DEFAULT: Final = "default"
"""The word for a setting that is left to the card."""
Switch = Literal["on", "off", "default"]
_replace = msgspec.structs.replace

app = make_group("Virtual functions of a host: their settings.")


async def list_functions(
    access: Access,
    output: Output,
    host: Annotated[
        str,
        typer.Argument(metavar="[HOST]", help="Which; else all hosts.", autocompletion=name_completer("hypervisors")),
    ] = "",
) -> None:
    """Virtual functions of network cards: where they are, who has them, and how they are programmed."""
    async with access.open() as store:
        hosts = [await store.get(Hypervisor, host)] if host else [one async for one in list_all(store, Hypervisor)]
    hosts.sort(key=lambda one: natural_key(one.name))
    cards: list[dict[str, Any]] = []
    functions: list[dict[str, Any]] = []
    for found in hosts:
        cards += ({"host": found.name, **msgspec.to_builtins(one)} for one in found.status.physical_functions)
        for one in found.status.virtual_functions:
            wanted = found.spec.virtual_functions.get(one.name, VirtualFunctionSettings())
            functions.append({"host": found.name, **msgspec.to_builtins(one), "wanted": msgspec.to_builtins(wanted)})
    document = {"physicalFunctions": cards, "virtualFunctions": functions}
    rows = [
        (one["host"], one["name"], one.get("vfCount", 0), one.get("mtu", 0), one.get("message", "")) for one in cards
    ]
    table = make_table(["Host", "Card", "Functions", "MTU", "Message"], rows, numbers=["Functions", "MTU"])
    shown = [
        (
            one["host"],
            one["name"],
            one.get("pci", ""),
            one.get("mac", ""),
            one.get("usedBy", ""),
            one.get("reservedBy", ""),
            " ".join(f"{name}={_format_switch(value)}" for name, value in one["wanted"].items() if value is not None),
            one.get("message", ""),
        )
        for one in functions
    ]
    columns = ["Host", "Function", "PCI", "MAC", "Used by", "Reserved by", "Settings", "Message"]
    output.show(document, lambda: [table, make_table(columns, shown)])


def _format_switch(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


@command(app, "set")
async def set_function(
    access: WriteAccess,
    host: OneHost,
    function: Annotated[str, typer.Argument(metavar="FUNCTION", help="Its name, such as enp1s0f0v3.")],
    vlan: Annotated[
        str, typer.Option("--vlan", metavar="ID|default", help="VLAN of its frames, 0: none; default: as it is.")
    ] = "",
    vlan_qos: Annotated[str, typer.Option("--vlan-qos", metavar="0-7|default", help="Priority of its frames.")] = "",
    tx_rate_min: Annotated[
        str, typer.Option("--tx-rate-min", metavar="MBIT|default", help="Mbit/s that it may always send.")
    ] = "",
    tx_rate_max: Annotated[
        str, typer.Option("--tx-rate-max", metavar="MBIT|default", help="Mbit/s that it may send at most, 0: no limit.")
    ] = "",
    link_state: Annotated[
        Literal["auto", "enable", "disable", "default"] | None, typer.Option("--link-state", help="State of its link.")
    ] = None,
    spoof_check: Annotated[
        Switch | None,
        typer.Option("--spoof-check", help="Whether frames with another MAC address are dropped."),
    ] = None,
    trust: Annotated[
        Switch | None,
        typer.Option("--trust", help="Whether the guest may change its MAC address."),
    ] = None,
    query_rss: Annotated[
        Switch | None,
        typer.Option("--query-rss", help="Whether the guest may read how its card spreads packets."),
    ] = None,
) -> None:
    """Set how a virtual function is programmed, now and at every start of its host (spec.virtualFunctions).

    Other settings stay; default leaves a setting to the card again.
    """
    given = {
        "vlan": vlan,
        "vlan_qos": vlan_qos,
        "tx_rate_min": tx_rate_min,
        "tx_rate_max": tx_rate_max,
        "link_state": link_state,
        "spoof_check": spoof_check,
        "trust": trust,
        "query_rss": query_rss,
    }
    settings = {name: _parse_value(name, text) for name, text in given.items() if text}
    if not settings:
        raise Usage("no setting is named", place="FUNCTION", remedy="name one or more, such as --vlan 7")
    async with access.open(write=True) as store:
        wanted = await program_function(store, access.clock, host, function, settings)
    named = ", ".join(f"{name} {_format_switch(value)}" for name, value in msgspec.to_builtins(wanted).items())
    write(f"{function} of {host}: {named or 'as its card has it'}\n")


def _parse_value(name: str, text: str) -> int | bool | str | None:
    if text == DEFAULT:
        return None
    if name in ("spoof_check", "trust", "query_rss"):
        return text == "on"
    if name == "link_state":
        return text
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        flag = "--" + name.replace("_", "-")
        raise BadInput(f"{text[:40]!r} is no number", place=flag, remedy="write a whole number, or default")
    return int(text)


async def program_function(
    store: Store, clock: Clock, host: str, function: str, settings: dict[str, int | bool | str | None]
) -> VirtualFunctionSettings:
    """What is wanted of the function afterwards. ``NotFound``, ``BadInput``."""
    found = await store.get(Hypervisor, host)
    names = [one.name for one in found.status.virtual_functions]
    if function not in names:
        there = ", ".join(names[:8]) or "none"
        raise NotFound(f"{host} has no virtual function {function[:64]!r}", remedy=f"it has {there}")

    def set_function(one: Hypervisor) -> Hypervisor:
        before = one.spec.virtual_functions.get(function, VirtualFunctionSettings())
        document = msgspec.to_builtins(_replace(before, **settings))
        try:
            wanted = msgspec.convert(document, VirtualFunctionSettings)
        except msgspec.ValidationError as error:
            raise BadInput(str(error), place=function, remedy="see outlive host function set --help") from None
        others = {name: value for name, value in one.spec.virtual_functions.items() if name != function}
        functions = {**others, function: wanted} if wanted.list_set() else others
        return _replace(one, spec=_replace(one.spec, virtual_functions=functions))

    after = await change_object(store, clock, Hypervisor, host, set_function)
    return after.spec.virtual_functions.get(function, VirtualFunctionSettings())
