"""What ``ovn-trace`` says of a packet, as data and in words. Pure.

The program has no other output than its text. Read of it are the lines that begin a pipeline, those of its stages, and
the actions ``output``, ``drop`` and ``arp``; these have been the same since OVN 2.x.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from outlive.network.packets import TracePacket

HOPS_LIMIT: Final = 64
"""Hops of one packet that are told; a broadcast has one for each port."""
_PIPELINE: Final = re.compile(r'\s*(ingress|egress)\(dp="([^"]*)", inport="([^"]*)"(?:, outport="([^"]*)")?')
_STAGE: Final = re.compile(r"\s*\d+\. (l[sr]_(?:in|out)_\w+)")
_OUTPUT: Final = re.compile(r'\s*/\* output to "([^"]*)", type "([^"]*)" \*/')
_DROPS: Final = re.compile(r"\s*drop;|.*no match \(implicit drop\)")
_ASKS: Final = re.compile(r"\s*(arp|nd_ns) \{")
_INTERNAL: Final = frozenset({"patch", "l3gateway", "chassisredirect"})
"""Types of ports between switches and routers."""
_WHY: Final = (
    (
        ("ls_in_check_port_sec", "ls_in_apply_port_sec", "ls_in_port_sec"),
        "the sender's port is disabled, or its port security does not allow this MAC or address",
    ),
    (("ls_in_l2_lkup",), "the port that has this MAC is disabled"),
    (("ls_in_l2_unknown",), "no port of the switch has this MAC"),
    (("ls_in_acl", "ls_out_acl", "ls_in_after_lb_acl"), "a rule (ACL) drops it"),
    (
        ("ls_out_check_port_sec", "ls_out_apply_port_sec", "ls_out_port_sec"),
        "the receiver's port is disabled, or its port security does not allow this MAC or address",
    ),
    (("lr_in_admission",), "the router's port does not take this MAC"),
    (("lr_in_ip_routing",), "the router has no route there"),
    (("lr_in_policy",), "a policy of the router drops it"),
    (("lr_in_ip_input",), "it ends at the router itself"),
    (("lr_in_arp_resolve", "lr_in_arp_request"), "the router does not know the receiver's MAC"),
)
"""By the beginning of a stage's name: why it drops."""


class TraceOutcome(enum.StrEnum):
    """How a packet ends."""

    ARRIVES = "arrives"
    """At a port."""
    ANSWERED = "answered"
    """OVN itself answers the sender."""
    LEAVES = "leaves"
    """Into the physical network of a localnet port."""
    ASKS = "asks"
    """The router asks for the receiver's MAC first; the receiver answers that itself."""
    DROPPED = "dropped"


class TraceHop(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A switch or router on the way."""

    kind: str
    """``switch`` or ``router``."""
    name: str
    inport: str
    outports: tuple[str, ...] = ()
    """Where it goes on; none: it ends here."""


class TraceAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The way of one packet."""

    question: str
    packet: str
    """What it tries, in words."""
    flow: str
    outcome: TraceOutcome
    passed: bool | None
    """Whether it ends where it should; null: nothing is expected of it."""
    text: str
    """How it ends, in words."""
    ports: tuple[str, ...] = ()
    """Ports that get it."""
    place: str = ""
    """Where it is dropped …"""
    stage: str = ""
    """… and in which stage of OVN's pipeline."""
    hops: tuple[TraceHop, ...] = ()
    raw: str = ""
    """All that ovn-trace printed."""


class _Pipeline(msgspec.Struct, kw_only=True):
    """One pass through a switch or router."""

    direction: str
    place: str
    inport: str
    outport: str
    stage: str = ""
    kind: str = ""
    output: tuple[str, str] | None = None
    dropped: bool = False
    asks: bool = False


def traced_ports(text: str) -> tuple[str, ...]:
    """The ports by which the packet comes into a switch or router."""
    return tuple(dict.fromkeys(one.inport for one in _parse_pipelines(text)))


def read_trace(packet: TracePacket, text: str, names: Mapping[str, str], places: Mapping[str, str]) -> TraceAnswer:
    """The way of the packet. ``names``: in words, of logical ports; ``places``: port → its switch or router, which the
    program calls by a UUID."""
    pipelines = list(_parse_pipelines(text))
    for one in pipelines:
        one.place = places.get(one.inport, one.place)
    outputs = [one.output for one in pipelines if one.output is not None]
    ends = list(dict.fromkeys(port for port, kind in outputs if kind not in _INTERNAL | {"localnet"}))
    wire = [port for port, kind in outputs if kind == "localnet"]
    last = next((one for one in reversed(pipelines) if one.dropped), None)
    place = stage = ""
    if packet.inport in ends:
        outcome, words = TraceOutcome.ANSWERED, "OVN answers it"
    elif any(one.asks for one in pipelines):
        router = next(one.place for one in pipelines if one.asks)
        outcome, words = (
            TraceOutcome.ASKS,
            f"{router} asks for the MAC first, on {_format_ports(ends, names) or 'no port'}",
        )
    elif ends:
        outcome, words = TraceOutcome.ARRIVES, f"arrives at {_format_ports(ends, names)}"
    elif wire:
        outcome, words = TraceOutcome.LEAVES, f"leaves by {wire[0]} into the physical network"
    else:
        outcome = TraceOutcome.DROPPED
        last = last or (pipelines[-1] if pipelines else None)
        place, stage = (last.place, last.stage) if last is not None else (packet.switch, "")
        words = f"dropped on {place}: {_explain_stage(stage)}" + (f" ({stage})" if stage else "")
    passed: bool | None = None
    if packet.expected:
        passed = outcome is not TraceOutcome.DROPPED and not set(packet.expected).isdisjoint(ends)
        if outcome is TraceOutcome.LEAVES or (not passed and ends):
            words += f", not at {_format_ports(packet.expected, names)}"
    return TraceAnswer(
        question=packet.question,
        packet=packet.text,
        flow=packet.flow,
        outcome=outcome,
        passed=passed,
        text=words,
        ports=tuple(ends),
        place=place,
        stage=stage,
        hops=tuple(_list_hops(pipelines))[:HOPS_LIMIT],
        raw=text,
    )


def _parse_pipelines(text: str) -> Iterator[_Pipeline]:
    now: _Pipeline | None = None
    for line in text.splitlines():
        if (begun := _PIPELINE.match(line)) is not None:
            if now is not None:
                yield now
            direction, place, inport, outport = begun.groups(default="")
            now = _Pipeline(direction=direction, place=place, inport=inport, outport=outport)
        elif now is not None:
            if (stage := _STAGE.match(line)) is not None:
                now.stage = stage[1]
                now.kind = "router" if stage[1].startswith("lr_") else "switch"
            if (output := _OUTPUT.match(line)) is not None:
                now.output = (output[1], output[2])
            now.dropped |= _DROPS.match(line) is not None
            now.asks |= _ASKS.match(line) is not None
    if now is not None:
        yield now


def _list_hops(pipelines: list[_Pipeline]) -> Iterator[TraceHop]:
    """The switches and routers in their order, each with all ports that the packet leaves by."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    kinds: dict[str, str] = {}
    for one in pipelines:
        outs = found.setdefault((one.place, one.inport), {})
        kinds[one.place] = kinds.get(one.place) or one.kind
        if one.output is not None:
            outs[one.output[0]] = None
    for (place, inport), outs in found.items():
        yield TraceHop(kind=kinds[place] or "switch", name=place, inport=inport, outports=tuple(outs))


def _explain_stage(stage: str) -> str:
    return next((why for stages, why in _WHY if stage.startswith(stages)), "OVN has no flow for it")


def _format_ports(ports: tuple[str, ...] | list[str], names: Mapping[str, str]) -> str:
    return ", ".join(names.get(one, one) for one in ports)
