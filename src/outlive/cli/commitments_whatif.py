"""``outlive commitments whatif``: hypothetical commitments, lost hosts and other flavors, on a copy of the cluster.

The same placement, the same account and the same decisions as the server's; nothing is written anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlive.base import BadInput, ExitCode, NotFound, Usage, count_of, shown_bytes
from outlive.cli.access import Access
from outlive.cli.commitments_ask import check_zone, hypothetical_commitment, objects_of
from outlive.cli.output import Output, cut_table, show_progress
from outlive.cli.snapshot import Config, take_snapshot
from outlive.cli.values import parse_amounts, split_words

if TYPE_CHECKING:
    from outlive.commitments import CommitmentOutcome, CommitmentSettings, Unfilled, WhatIfResult
    from outlive.failover import Snapshot
    from outlive.resources import Amounts, Flavor, FlavorGroup, Resource
    from outlive.roles import RoleSettings
    from outlive.store import Store

COMMITMENTS_LIMIT = 1_000
"""Hypothetical commitments of one question."""
SHOWN = 50
"""Lines of each list; the wide form and JSON have all."""
_FLAVOR = re.compile(r"([^=]{1,253})=([^,=]+),([^,=]+)(?:,([^,=]+))?\Z")


async def answer_whatif(
    access: Access,
    output: Output,
    add: Annotated[
        list[str] | None,
        typer.Option("--add", metavar="PROJECT:GROUP:ZONE:AMOUNT", help="A further commitment, in this order."),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option("--without", metavar="UUID[,UUID…]", help="Commitments that have ended.")
    ] = None,
    lose: Annotated[
        list[str] | None, typer.Option("--lose", metavar="HOST[,HOST…]", help="Hosts that are gone with their VMs.")
    ] = None,
    any_host: Annotated[
        bool, typer.Option("--any-host", help="For each host in turn: what could not be filled without it.")
    ] = False,
    flavor: Annotated[
        list[str] | None,
        typer.Option(
            "--flavor",
            metavar="NAME=CPU,MEMORY[,GROUP]",
            help="A flavor of another size or group, or a new one; NAME= takes it away.",
        ),
    ] = None,
    config: Config = None,
) -> ExitCode | None:
    """Which commitments can be had, those that are there first; exit code 1 if any cannot.

    With --any-host: which confirmed commitments could not be filled after the loss of any one host; --lose, --without
    and --flavor change the cluster before.
    """
    from outlive.base import SystemIds
    from outlive.commitments import ask, open_trial
    from outlive.resources import ZONE_LABEL

    if not (add or without or lose or flavor or any_host):
        raise Usage("what if what?", remedy="give --add, --without, --lose, --flavor or --any-host")
    if add and any_host:
        raise Usage("commitments that nobody has yet lose nothing", place="--add", remedy="leave out --any-host")
    if len(add or ()) > COMMITMENTS_LIMIT:
        raise Usage(f"{len(add or ())} commitments", place="--add", remedy=f"at most {COMMITMENTS_LIMIT}")
    async with access.open() as store:
        gathered = await take_snapshot(access, store, config, None)
        objects, gathered = await _alter_cluster(
            store, gathered, split_words(*(lose or ())), split_words(*(without or ())), flavor or []
        )
    settings = _role_settings(gathered).commitments
    vms = gathered.observation.listing.vms
    async with open_trial(
        objects, engine=gathered.engine, vms=vms, settings=settings, clock=access.state_clock, ids=SystemIds()
    ) as made:
        if any_host:
            with show_progress("trying each host"):
                unfilled = await made.find_unfilled()
            output.show(unfilled, lambda: unfilled_lines(unfilled, wide=output.wide))
            return ExitCode.NO if unfilled else None
        hosts = made.view.informers.hypervisors.items()
        zones = {host.metadata.labels.get(ZONE_LABEL, "") for host in hosts}
        wanted = [
            _parse_addition(made.view.groups_by_name(), zones, settings, text, number)
            for number, text in enumerate(add or (), 1)
        ]
        with show_progress("deciding"):
            result = await ask(made, wanted, now=access.state_clock.now())
    output.show(result, lambda: whatif_lines(result, wide=output.wide))
    return ExitCode.NO if result.refused else None


def whatif_lines(result: WhatIfResult, *, wide: bool) -> list[Any]:
    """How many can be had, and which cannot."""
    total = len(result.accepted) + len(result.refused)
    lines: list[Any] = [f"{len(result.accepted)} of {count_of(total, 'commitment')} can be had."]
    most = None if wide else SHOWN
    columns = ("Commitment", "Project", "Group", "Zone", "Amount", "New slots")
    refused = [(*_outcome_cells(one)[:5], one.reason) for one in result.refused]
    moved = [one for one in result.accepted if one.new_slots or one.hypothetical or wide]
    return [
        *lines,
        *cut_table((*columns[:5], "Why not"), refused, most, title="Cannot be had", noun="commitments"),
        *cut_table(columns, [_outcome_cells(one) for one in moved], most, title="Can be had", noun="commitments"),
    ]


def unfilled_lines(found: list[Unfilled], *, wide: bool) -> list[Any]:
    """A line for each commitment and host that it cannot lose."""
    if not found:
        return ["whichever host is lost, every confirmed commitment can be filled"]
    lost = len({one.commitment for one in found})
    columns = ("Host lost", "Commitment", "Project", "Group", "Zone", "Slots without a host", "Memory")
    rows = [
        (one.host, one.commitment, one.project, one.group, one.zone, one.slots, shown_bytes(one.memory_bytes))
        for one in found
    ]
    head = f"{count_of(lost, 'commitment')} could not be filled after the loss of one host."
    return [head, *cut_table(columns, rows, None if wide else SHOWN, noun="lines")]


def _outcome_cells(one: CommitmentOutcome) -> tuple[Any, ...]:
    return one.uuid, one.project, one.group, one.zone, one.amount, one.new_slots


def _role_settings(gathered: Snapshot) -> RoleSettings:
    from outlive.roles import RoleSettings

    assert isinstance(gathered.settings, RoleSettings), "commands load all sections"
    return gathered.settings


def _parse_addition(groups: Any, zones: set[str], settings: CommitmentSettings, text: str, number: int) -> Any:
    parts = text.rsplit(":", 3)
    if len(parts) != 4 or not all(parts):
        raise BadInput(
            f"{text[:80]!r} is not PROJECT:GROUP:ZONE:AMOUNT", place="--add", remedy="write shop-1:g:zone-a:64Gi"
        )
    project, group, zone, amount = parts
    check_zone(zone, zones)
    return hypothetical_commitment(groups, settings, project, group, zone, amount, uuid=f"what-if-{number}")


async def _alter_cluster(
    store: Store, gathered: Snapshot, lost: list[str], ended: list[str], flavors: list[str]
) -> tuple[list[Resource], Snapshot]:
    """The objects of the imagined cluster, and what placement and failover make of it."""
    from msgspec.structs import replace

    from outlive.failover.analysis.whatif import from_snapshot
    from outlive.resources import CommittedResource, Flavor, FlavorGroup, Hypervisor, Reservation
    from outlive.store import list_all

    objects = await objects_of(store, _role_settings(gathered))
    commitments = {one.spec.commitment_uuid for one in objects if isinstance(one, CommittedResource)}
    for uuid in ended:
        if uuid not in commitments:
            raise NotFound(
                f"there is no commitment {uuid[:80]!r}", place="--without", remedy="outlive commitments list"
            )
    now = await from_snapshot(store, gathered)
    for host in lost:
        if host not in now.hosts:
            raise NotFound(f"there is no host {host[:80]!r}", place="--lose", remedy="see outlive get hypervisors")
    gone = {
        one.name
        for one in objects
        if isinstance(one, Reservation)
        and one.spec.committed_resource_reservation is not None
        and one.spec.committed_resource_reservation.commitment_uuid in ended
    }
    now = now.without_hosts(lost).without_slots(gone)
    if flavors:
        known = [one async for one in list_all(store, Flavor)]
        groups = _change_groups(known, flavors, _role_settings(gathered).scheduler.flavor_group_keys)
        others = [one for one in now.besides if not isinstance(one, FlavorGroup)]
        now = replace(now, besides=(*others, *groups))
    altered = await now.gather_snapshot() if lost or ended or flavors else gathered
    kept: list[Resource] = [
        one for one in objects if isinstance(one, CommittedResource) and one.spec.commitment_uuid not in ended
    ]
    written = {one.name for one in objects if isinstance(one, Reservation)}
    reservations = [one for one in now.reservations.values() if one.name in written]
    besides = [one for one in (now.besides if flavors else objects) if isinstance(one, FlavorGroup)]
    hosts: Iterable[Hypervisor] = now.hosts.values()
    return [*kept, *hosts, *reservations, *besides], altered


def _change_groups(known: list[Flavor], texts: list[str], keys: tuple[str, ...]) -> list[FlavorGroup]:
    """The flavor groups with these flavors changed; ``BadInput``, ``NotFound``."""
    from outlive.placement.flavor_groups import flavor_groups
    from outlive.resources import FlavorGroup, ObjectMeta

    by_name = {one.spec.flavor_name: one for one in known}
    for text in texts:
        name = text.removesuffix("=")
        if name != text:
            if by_name.pop(name, None) is None:
                raise NotFound(f"there is no flavor {name[:80]!r}", place="--flavor", remedy="see outlive get flavors")
            continue
        match = _FLAVOR.match(text)
        if match is None:
            remedy = "write m32=8,32Gi or m32=8,32Gi,GROUP, and m32= to take it away"
            raise BadInput(f"{text[:80]!r} is not NAME=CPU,MEMORY[,GROUP]", place="--flavor", remedy=remedy)
        name, size = match[1], parse_amounts(match[2], match[3])
        by_name[name] = _resize_flavor(name, size, match[4] or "", by_name.get(name), keys[0])
    return [
        FlavorGroup(metadata=ObjectMeta(name=one.group_name), spec=one)
        for one in flavor_groups(by_name.values(), keys=keys)
    ]


def _resize_flavor(name: str, size: Amounts, group: str, before: Flavor | None, key: str) -> Flavor:
    from msgspec.structs import replace

    from outlive.placement import HYPERVISOR_TYPE
    from outlive.resources import Flavor, FlavorSpec, ObjectMeta

    specs = dict(before.spec.extra_specs) if before is not None else {HYPERVISOR_TYPE: "QEMU"}
    if group:
        specs[key] = group
    if not specs.get(key):
        raise BadInput(f"flavor {name} is in no group", place="--flavor", remedy=f"write {name}=CPU,MEMORY,GROUP")
    if before is not None:
        return replace(before, spec=replace(before.spec, resources=size, extra_specs=specs))
    spec = FlavorSpec(flavor_name=name, resources=size, extra_specs=specs)
    return Flavor(metadata=ObjectMeta(name=name), spec=spec)
