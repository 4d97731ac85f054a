"""Emptying a host of its virtual machines, and taking them back: what is done with each, in order.

One virtual machine after the other, each booked where it goes before the next is placed; a cancellation is looked at
before each, so that a move under way ends as it was going to. Steps are what is *asked for*: whether a virtual
machine arrives is seen by the move itself (docs/reference/node-decisions.md#flushrun).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from outlive.node.numbers import Amount, Count
from outlive.node.vm.selecting import Books, MemMeans, NodeFigures, Wanted, home_after

SETTLES_TO: Final = {"restart": "start", "shutdown": "stop"}
"""What a state on its way ends in, unless the virtual machine says otherwise."""
MOVES_SETTLE_TO: Final = {"migrate": "start", "migrate-live": "start"}
"""Awaited only when virtual machines are taken back."""


class FlushedVm(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine. Memory in MiB."""

    uuid: str
    state: str
    node: str | None
    memory: Amount
    vcpus: Amount
    settles_to: str | None = None
    """What its state becomes, where it has to be awaited."""
    last_node: str | None = ""
    node_limit: tuple[str, ...] | None = None
    selector: str | None = None
    autostart: bool = False


class FlushInput(msgspec.Struct, frozen=True, kw_only=True):
    """A host to be emptied (``flush``) or to take its virtual machines back (``unflush``)."""

    node: str
    op: Literal["flush", "unflush"]
    vms: tuple[FlushedVm, ...]
    nodes: tuple[NodeFigures, ...] = ()
    running: tuple[str, ...] = ()
    """Who runs there, in the order in which they leave."""
    cancel_before: Count | None = None
    """The item before which somebody cancels, from 0; null: nobody does."""
    timeouts: tuple[str, ...] = ()
    """Whose step did not end in time."""
    default_selector: str | None = None
    require_fit: bool = False
    mem_means: MemMeans = "provisioned"
    stay: bool = False
    """Whether a virtual machine that finds no host stays, instead of being shut down."""


class FlushStep(msgspec.Struct, frozen=True, kw_only=True):
    """What is done with one virtual machine."""

    vm: str
    do: Literal["skip", "shutdown", "migrate", "start", "migrate_home", "rehome"]
    autostart: bool | UnsetType = UNSET
    to: str | UnsetType = UNSET
    last_node: str | UnsetType = UNSET
    timed_out: bool | UnsetType = UNSET


class FlushResult(msgspec.Struct, frozen=True, kw_only=True):
    """The steps, and the domain state that the host is left in."""

    steps: tuple[FlushStep, ...]
    domain_state: Literal["flushed", "ready", "flush", "unflush"]
    cancelled: bool


def run_flush(given: FlushInput) -> FlushResult:
    """All steps of a job. A cancelled job hands over to its opposite."""
    draining = given.op == "flush"
    items = len(given.running) if draining else len(given.vms)
    cancelled = given.cancel_before is not None and given.cancel_before < items
    upto = given.cancel_before if cancelled else items
    steps = _drained(given, upto) if draining else _taken_back(given, upto)
    return FlushResult(
        steps=tuple(steps),
        domain_state=_left_in(draining=draining, cancelled=cancelled),
        cancelled=cancelled,
    )


def _left_in(*, draining: bool, cancelled: bool) -> Literal["flushed", "ready", "flush", "unflush"]:
    if cancelled:
        return "unflush" if draining else "flush"
    return "flushed" if draining else "ready"


def _drained(given: FlushInput, upto: int | None) -> Iterator[FlushStep]:
    books = Books(
        given.nodes,
        default_selector=given.default_selector,
        mem_means=given.mem_means,
        require_fit=given.require_fit,
    )
    vms = {vm.uuid: vm for vm in given.vms}
    for uuid in given.running[:upto]:
        vm = vms.get(uuid)
        if vm is None or _settled(vm, SETTLES_TO) != "start":
            yield FlushStep(vm=uuid, do="skip")
        else:
            yield _late(_leaving(vm, given.node, books, stay=given.stay), given)


def _leaving(vm: FlushedVm, node: str, books: Books, *, stay: bool) -> FlushStep:
    wanted = Wanted(node=node, memory=vm.memory, vcpus=vm.vcpus, node_limit=vm.node_limit, selector=vm.selector)
    target = books.place(wanted)
    if target is None and stay:
        return FlushStep(vm=vm.uuid, do="skip")
    if target is None:
        return FlushStep(vm=vm.uuid, do="shutdown", autostart=True)
    home = home_after(vm.last_node, target=target, source=node)
    return FlushStep(vm=vm.uuid, do="migrate", to=target, last_node=home)


def _taken_back(given: FlushInput, upto: int | None) -> Iterator[FlushStep]:
    for vm in given.vms[:upto]:
        state = _settled(vm, SETTLES_TO | MOVES_SETTLE_TO)
        if vm.autostart and vm.node == given.node:
            yield FlushStep(vm=vm.uuid, do="start" if state == "stop" else "skip")
        elif vm.last_node == given.node:
            home = FlushStep(vm=vm.uuid, do="migrate_home")
            yield _late(home, given) if state == "start" else FlushStep(vm=vm.uuid, do="rehome")


def _settled(vm: FlushedVm, endings: dict[str, str]) -> str:
    ending = endings.get(vm.state)
    return vm.state if ending is None else vm.settles_to or ending


def _late(step: FlushStep, given: FlushInput) -> FlushStep:
    return msgspec.structs.replace(step, timed_out=True) if step.vm in given.timeouts else step
