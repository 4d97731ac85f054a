"""``outlive import``: an inventory of hosts and VMs from CSV files, from OpenStack, or from a database.

All input is read and checked before the first write; every problem is one line with its place. A store that fails
midway leaves whole objects, and repeating the command completes the import.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlive.base import OutliveError, SystemClock, Usage, as_datetime
from outlive.cli.access import Access, all_objects
from outlive.cli.commands import command, make_group, share_options
from outlive.cli.coverage import level_costs_lines
from outlive.cli.example import example_files
from outlive.cli.output import Report, format_omitted, make_table, show_progress
from outlive.cli.settings import effective_settings
from outlive.cli.snapshot import take_snapshot
from outlive.drivers import SIGNS, read_hosts, read_openstack, read_vms
from outlive.drivers import csv_inventory as source
from outlive.drivers.listings import read_ganeti, read_kubevirt, read_libvirt, read_proxmox, read_rvtools
from outlive.inventory import (
    FlavorRecord,
    ImportOptions,
    Inventory,
    KnownNetworks,
    Selection,
    apply_import,
    apply_plan,
    check_inventory,
    check_leaving_out,
    find_notices,
    parse_status_map,
    parse_where,
    place_vms,
    plan_import,
    plan_ports,
    read_existing,
)
from outlive.placement import HYPERVISOR_TYPE, PlacementSettings
from outlive.resources import Problem, Problems, VirtualMachine, VirtualMachinePort, VirtualNetwork
from outlive.resources.reasons import render
from outlive.store import list_all

if TYPE_CHECKING:
    from outlive.failover.analysis import PlanCost
    from outlive.inventory import Existing, HostSearchResult, ImportPlan, WantedInventory
    from outlive.resources.reasons import Reason
    from outlive.roles import RoleSettings
    from outlive.store import Store

app = make_group("Read an inventory of hosts and VMs. Input is checked as a whole before the first write.")

Where = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="COLUMN=VALUE", help="Only VMs with this value; != for all others."),
]
HostWhere = Annotated[
    list[str] | None, typer.Option("--host-where", metavar="COLUMN=VALUE", help="The same for hosts.")
]
StatusMap = Annotated[
    list[str] | None,
    typer.Option("--status-map", metavar="WORD=STATE", help="What a status means: running, stopped or paused."),
]
Domains = Annotated[
    list[str] | None,
    typer.Option("--domains", metavar="KIND=N", help="Label failure domains in blocks of N hosts, such as rack=32."),
]
Overcommit = Annotated[
    list[str] | None,
    typer.Option("--overcommit", metavar="RESOURCE=RATIO", help="Effective capacity, such as cpu=4."),
]
Place = Annotated[bool, typer.Option("--place", help="Let placement find a host for each VM that runs nowhere yet.")]
Prune = Annotated[bool, typer.Option("--prune", help="Delete what an earlier import made and the source lacks.")]
Partial = Annotated[
    bool, typer.Option("--partial", help="This is a part of the source: what it lacks has not vanished.")
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave records out that are wrong, import all others, and exit with 1.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check, plan and report, but write nothing.")]
Decimal = Annotated[
    str, typer.Option("--decimal", metavar="SIGN", help="What stands before a fraction, . or , (by default seen).")
]
HostMap = Annotated[
    list[str] | None,
    typer.Option("--host-map", metavar="MAP", help="Columns of hosts, such as name=sn,cpu=cpu_milli:m."),
]


@dataclass(frozen=True, slots=True)
class SourceChoice:
    """What is taken of a source, and how it is read: options of every import and of ``assess``."""

    where: list[str] | None
    host_where: list[str] | None
    status_map: list[str] | None
    domains: list[str] | None
    overcommit: list[str] | None
    skip_bad: bool

    @property
    def selection(self) -> Selection:
        """Of rows."""
        return Selection(parse_where(self.where or ()), parse_where(self.host_where or (), "--host-where"))

    def import_options(self, *, prune: bool = False, partial: bool = False) -> ImportOptions:
        """How its records are checked."""
        if prune and partial:
            message = "a part of a source does not say what is gone"
            remedy = "import the whole source with --prune, or a part with --partial"
            raise Usage(message, place="--prune", remedy=remedy)
        blocks: dict[str, int] = {}
        for text in self.domains or ():
            name, _, size = text.partition("=")
            if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?", name) or not re.fullmatch(r"[1-9]\d{0,5}", size):
                raise Usage(f"{text!r} is not KIND=N", place="--domains", remedy="such as rack=32")
            blocks[name] = int(size)
        ratios: dict[str, float] = {}
        for text in (part for value in self.overcommit or () for part in value.split(",")):
            name, _, ratio = text.partition("=")
            if not name or not re.fullmatch(r"\d{1,4}(\.\d{1,6})?", ratio) or float(ratio) < 1:
                remedy = "a ratio of at least 1: cpu=4"
                raise Usage(f"{text!r} is not RESOURCE=RATIO", place="--overcommit", remedy=remedy)
            ratios[name] = float(ratio)
        status_map = parse_status_map(self.status_map or ())
        return ImportOptions(
            prune=prune, partial=partial, domains=tuple(blocks.items()), overcommit=ratios, status_map=status_map
        )

    def check(
        self, inventory: Inventory, existing: Existing, options: ImportOptions
    ) -> tuple[WantedInventory, Problems]:
        """The records that are taken, and what is wrong with those that ``--skip-bad`` leaves out."""
        if self.skip_bad:
            return check_leaving_out(inventory, existing, options)
        return check_inventory(inventory, existing, options), Problems()


@dataclass(frozen=True, slots=True)
class ImportChoice:
    """What an import does with what was read."""

    place: bool
    prune: bool
    partial: bool
    dry_run: bool


share_options(
    SourceChoice,
    {
        "where": Where,
        "host_where": HostWhere,
        "status_map": StatusMap,
        "domains": Domains,
        "overcommit": Overcommit,
        "skip_bad": SkipBad,
    },
    {"skip_bad": False},
)
share_options(
    ImportChoice,
    {"place": Place, "prune": Prune, "partial": Partial, "dry_run": DryRun},
    {"place": False, "prune": False, "partial": False, "dry_run": False},
)
UNPLACED_SHOWN = 20
"""VMs without a host that are named in the report for people."""


@command(app, "csv")
async def import_csv(
    access: Access,
    output: Report,
    taken: SourceChoice,
    choice: ImportChoice,
    hosts: Annotated[Path | None, typer.Option("--hosts", metavar="FILE", help="CSV file of hosts.")] = None,
    vms: Annotated[Path | None, typer.Option("--vms", metavar="FILE", help="CSV file of VMs.")] = None,
    host_map: HostMap = None,
    vm_map: Annotated[
        list[str] | None, typer.Option("--vm-map", metavar="MAP", help="Columns of VMs, such as id=name,cpu=cores.")
    ] = None,
    decimal: Decimal = "",
) -> None:
    """Import CSV files with any column names."""
    if hosts is None and vms is None:
        raise Usage("nothing to import", remedy="name --hosts FILE, --vms FILE or both")
    host_columns = source.parse_column_map(host_map or (), "--host-map", source.HOST_FIELDS)
    vm_columns = source.parse_column_map(vm_map or (), "--vm-map", source.VM_FIELDS)
    selection, decimal = taken.selection, check_decimal(decimal)
    inventory = Inventory(what="csv")
    with show_progress("bytes read") as bar:
        if hosts is not None:
            source.read_hosts(hosts, host_columns, inventory, bar.advance_to, where=selection.hosts, decimal=decimal)
        if vms is not None:
            source.read_vms(vms, vm_columns, inventory, where=selection.vms, progress=bar.advance_to, decimal=decimal)
    await _import(access, output, inventory, taken, choice)


@command(app, "ports")
async def import_ports(
    access: Access,
    output: Report,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV file of ports.")],
    dry_run: DryRun = False,
) -> None:
    """Import ports with addresses from elsewhere: columns vm, network, mac, addresses, interface."""
    inventory = Inventory(what="csv")
    with show_progress("bytes read") as bar:
        records = source.read_ports(file, inventory, bar.advance_to)
    async with access.open(write=not dry_run) as store:
        known = KnownNetworks(
            {one.name: one async for one in list_all(store, VirtualMachine)},
            {one.name: one async for one in list_all(store, VirtualNetwork)},
            {one.name: one async for one in list_all(store, VirtualMachinePort)},
        )
        ports = plan_ports(records, known, inventory.problems)
        inventory.problems.check()
        created = [one for one in ports if one.name not in known.ports]
        with show_progress("ports written", len(ports)) as bar:
            for number, port in enumerate(() if dry_run else ports, 1):
                await (store.replace(port) if port.name in known.ports else store.create(port))
                bar.advance_to(number)
    said = [{"code": one.code, "message": render(one).text, "remedy": render(one).remedy} for one in inventory.notices]
    counts = {"created": len(created), "updated": len(ports) - len(created), "unchanged": len(records) - len(ports)}
    document = {"dryRun": dry_run, "ports": counts, "notices": said}
    titles = tuple(f"to be {one}" if dry_run and one != "unchanged" else one for one in counts)
    row = ("ports", *counts.values())
    output.show(document, lambda: [make_table(("", *titles), [row], numbers=titles), *(one["message"] for one in said)])


@command(app, "proxmox")
async def import_proxmox(
    access: Access,
    output: Report,
    taken: SourceChoice,
    choice: ImportChoice,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What pvesh has printed.")],
) -> None:
    """Import a cluster of Proxmox VE: pvesh get /cluster/resources --output-format json > FILE"""
    await _import(access, output, read_proxmox(file, taken.selection), taken, choice)


@command(app, "libvirt")
async def import_libvirt(
    access: Access,
    output: Report,
    taken: SourceChoice,
    choice: ImportChoice,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder with one folder for each host.")],
) -> None:
    """Import hosts with libvirt, from a folder that virsh has filled.

    For each HOST, with at="virsh -c qemu+ssh://HOST/system": $at nodeinfo > DIR/HOST/nodeinfo, $at list --all >
    DIR/HOST/list, and for each VM that $at list --all --uuid names: $at dumpxml VM > DIR/HOST/VM.xml
    """
    await _import(access, output, read_libvirt(folder, taken.selection), taken, choice)


@command(app, "rvtools")
async def import_rvtools(
    access: Access,
    output: Report,
    taken: SourceChoice,
    choice: ImportChoice,
    vhost: Annotated[Path, typer.Argument(metavar="VHOST", help="The tab vHost as CSV.")],
    vinfo: Annotated[Path, typer.Argument(metavar="VINFO", help="The tab vInfo as CSV.")],
    decimal: Decimal = "",
) -> None:
    """Import clusters of VMware from the CSV files of RVTools (RVTools.exe -c ExportAll2csv)."""
    inventory = read_rvtools(vhost, vinfo, taken.selection, decimal=check_decimal(decimal))
    await _import(access, output, inventory, taken, choice)


@command(app, "kubevirt")
async def import_kubevirt(
    access: Access,
    output: Report,
    taken: SourceChoice,
    choice: ImportChoice,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="What kubectl has printed.")],
) -> None:
    """Import a cluster of KubeVirt: kubectl get nodes,vmi -A -o json > FILE"""
    await _import(access, output, read_kubevirt(files, taken.selection), taken, choice)


@command(app, "ganeti")
async def import_ganeti(
    access: Access,
    output: Report,
    taken: SourceChoice,
    choice: ImportChoice,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="The text of hscan, or two listings.")],
) -> None:
    """Import a cluster of Ganeti, from the text that hscan writes, or from two listings with titles.

    gnt-node list --separator='|' --units=m -o name,ctotal,mtotal,offline,drained,group > nodes;
    gnt-instance list --separator='|' --units=m -o name,be/vcpus,be/maxmem,status,pnode,snodes > instances
    """
    await _import(access, output, read_ganeti(files, taken.selection), taken, choice)


@command(app, "node-config")
def import_node_config(
    source: Annotated[
        Path, typer.Argument(metavar="FILE|DIR", help="Its configuration, a dump of its tree, or a folder with both.")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where to write node.yaml, cluster.yaml and networks.yaml.")
    ],
    host: Annotated[
        str, typer.Option("--host", metavar="NAME", help="Whose node.yaml to write; otherwise this machine's.")
    ] = "",
) -> None:
    """Convert the configuration of another node daemon, and list what Outlive does not support. Asks no server.

    Writes node.yaml for one host, and cluster.yaml with all hosts and the cluster's timing, for outlive apply; from
    a dump of its tree (paths in JSON or YAML) also networks.yaml with the networks of VMs.
    """
    from outlive.cli.node_config import convert_node_config

    convert_node_config(source, out, host)


@command(app, "openstack")
async def import_openstack(
    access: Access,
    output: Report,
    taken: SourceChoice,
    choice: ImportChoice,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with hypervisors.json, servers.json, …")],
) -> None:
    """Import the JSON of the openstack command (-f json).

    Reads hypervisors.json, servers.json, flavors.json, aggregates.json, services.json and server_groups.json, and
    for missing sizes hypervisors/NAME.json and servers/ID.json.
    """
    await _import(access, output, read_openstack(folder, taken.selection), taken, choice)


@command(app, "database")
async def import_database(
    access: Access,
    output: Report,
    taken: SourceChoice,
    choice: ImportChoice,
    address: Annotated[str, typer.Argument(metavar="URL", help="Such as postgresql://user@host/db or sqlite:///f.")],
    hosts: Annotated[Path | None, typer.Option("--hosts", metavar="FILE", help="CSV file of hosts.")] = None,
    host_map: HostMap = None,
    decimal: Decimal = "",
) -> None:
    """Import servers and flavors from Cortex' synchronised tables, which are not Nova's own.

    Hosts come from --hosts or an earlier import.
    """
    from outlive.drivers import read_database

    host_columns = source.parse_column_map(host_map or (), "--host-map", source.HOST_FIELDS)
    selection, decimal = taken.selection, check_decimal(decimal)
    with show_progress("rows read") as bar:
        inventory = await read_database(address, selection.vms)
        if hosts is not None:
            source.read_hosts(hosts, host_columns, inventory, bar.advance_to, where=selection.hosts, decimal=decimal)
    await _import(access, output, inventory, taken, choice)


def check_decimal(sign: str) -> str:
    """The sign, if it is one; ``Usage``."""
    if sign not in ("", *SIGNS):
        raise Usage(f"{sign[:20]!r} stands before no fraction", place="--decimal", remedy="write . or ,")
    return sign


async def _import(
    access: Access, output: Report, inventory: Inventory, taken: SourceChoice, choice: ImportChoice
) -> None:
    options, dry_run = taken.import_options(prune=choice.prune, partial=choice.partial), choice.dry_run
    async with access.open(write=not dry_run, or_empty=dry_run) as store:
        existing = await read_existing(store)
        wanted, left_out = taken.check(inventory, existing, options)
        now = as_datetime(access.clock.now())
        plan = plan_import(wanted, existing, options, landed={}, now=now)
        landing = None
        if choice.place:
            with show_progress("VMs placed") as bar:
                landing = await place_vms(store, plan, existing, progress=bar.advance_to)
            plan = plan_import(wanted, existing, options, landed=landing.placed, now=now)
        settings = await effective_settings(access, store)
        found = [*inventory.notices, *find_notices(wanted, existing, plan, settings.protection.levels)]
        if not dry_run:
            with show_progress("objects written", len(plan.writes)) as bar:
                await apply_import(store, plan, bar.advance_to)
        ours = settings.upkeep.vm_source == "resources"
        costs, vms = await _level_costs(access, store, plan, existing, settings, dry_run=dry_run) if ours else ((), 0)
    _report(output, inventory, plan, landing, found, left_out, dry_run=dry_run, costs=costs, vms=vms)
    if left_out.total:
        raise LeftOut(tuple(left_out.shown), left_out.total)


class LeftOut(OutliveError):
    """Records that ``--skip-bad`` left out: all others are imported."""

    def __init__(self, problems: tuple[Problem, ...], total: int) -> None:
        super().__init__(f"{total} problems")
        self.problems = problems
        self.total = total


async def _level_costs(
    access: Access, store: Store, plan: ImportPlan, existing: Existing, settings: RoleSettings, *, dry_run: bool
) -> tuple[tuple[PlanCost, ...], int]:
    """What one slot for every VM costs, two, three, with the hosts and VMs that there are then; nothing of many VMs."""
    from outlive.failover.analysis import AT_ONCE_VMS, level_costs

    hosts, vms = apply_plan(plan, existing)
    if len(vms) > AT_ONCE_VMS or not hosts:
        return (), len(vms)
    if dry_run:
        store = access.memory_store(await all_objects(store))
        await apply_import(store, plan)
    snapshot = await take_snapshot(access, store, None, None, settings=settings)
    with show_progress("pricing levels"):
        return await level_costs(snapshot), len(vms)


async def import_example(store: Store) -> None:
    """Import the shipped example into a store."""
    inventory, options = Inventory(what="csv"), ImportOptions()
    with example_files() as files:
        read_hosts(files.hosts, None, inventory)
        read_vms(files.vms, None, inventory)
    # the flavors of the example's VMs, each in the flavor group that its name begins with
    sizes, key = {vm.flavor: vm for vm in inventory.vms}, PlacementSettings().flavor_group_keys[0]
    inventory.flavors += [
        FlavorRecord(
            name=name,
            place=vm.place,
            resources=vm.resources,
            disk_gib=vm.disk_gib or 0,
            extra_specs={key: name.partition(".")[0], HYPERVISOR_TYPE: "QEMU"},
        )
        for name, vm in sorted(sizes.items())
        if vm.resources is not None
    ]
    existing = await read_existing(store)
    wanted = check_inventory(inventory, existing, options)
    await apply_import(store, plan_import(wanted, existing, options, landed={}, now=as_datetime(SystemClock().now())))


def _report(
    output: Report,
    inventory: Inventory,
    plan: ImportPlan,
    landing: HostSearchResult | None,
    found: Sequence[Reason],
    left_out: Problems,
    *,
    dry_run: bool,
    costs: Sequence[PlanCost],
    vms: int,
) -> None:
    counts = plan.count_changes()
    document: dict[str, Any] = {
        "dryRun": dry_run,
        "hosts": counts["Hypervisor"],
        "vms": counts["VirtualMachine"],
        "flavors": counts["Flavor"],
        "leftOut": inventory.rows_left_out,
        "bad": [{"place": one.place, "message": one.message, "remedy": one.remedy} for one in left_out.shown],
        "badPlaces": len(left_out.places),
        "placed": len(landing.placed) if landing else 0,
        "unplaced": [{"vm": vm, "reason": why} for vm, why in (landing.unplaced if landing else {}).items()],
        "notices": [
            {"code": one.code, "count": one.fields.get("count", 1), "message": said.text, "remedy": said.remedy}
            for one in found
            for said in (render(one),)
        ],
        "levels": costs,
    }
    output.show(document, lambda: [*_report_lines(document), *level_costs_lines(costs, vms)])


def _report_lines(document: dict[str, Any]) -> list[Any]:
    columns = ("created", "updated", "unchanged", "deleted")
    rows = [(name, *(document[key][column] for column in columns)) for name, key in _SHOWN]
    titles = (
        "",
        *(f"to be {column}" if document["dryRun"] and column != "unchanged" else column for column in columns),
    )
    lines: list[Any] = [make_table(titles, rows, numbers=titles[1:])]
    if document["leftOut"]:
        lines.append(f"{document['leftOut']} rows were left out")
    if document["badPlaces"]:
        lines.append(f"{document['badPlaces']} records are wrong and were left out:")
    lines += ["; ".join(filter(None, (one["message"], one["remedy"]))) for one in document["notices"]]
    if document["placed"]:
        lines.append(f"{document['placed']} VMs were placed")
    unplaced = document["unplaced"]
    if unplaced:
        lines.append(f"{len(unplaced)} VMs found no host:")
        lines.extend(f"  {item['vm']}: {item['reason']}" for item in unplaced[:UNPLACED_SHOWN])
        lines += [f"  {line}" for line in format_omitted(len(unplaced), min(len(unplaced), UNPLACED_SHOWN), wide=False)]
    return lines


_SHOWN = (("hosts", "hosts"), ("VMs", "vms"), ("flavors", "flavors"))
