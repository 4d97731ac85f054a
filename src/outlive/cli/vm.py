"""``outlive vm``: VMs by the verbs of an operator. Each verb is a request, which the VM's host answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import msgspec
import typer

from outlive.base import BadInput, ExitCode, Invalid, SystemIds, Usage
from outlive.cli.access import Access, WriteAccess
from outlive.cli.arguments import OneVm, ToHost, Wait, Yes
from outlive.cli.commands import command, make_group
from outlive.cli.console import print_log
from outlive.cli.liveness import read_liveness
from outlive.cli.objects import check_resource, write_resource
from outlive.cli.output import Follow, Lines, Output, colour_word, make_table, write
from outlive.cli.questions import ask
from outlive.cli.values import split_words
from outlive.cli.vm_tags import ProtectedTags, Tags, labels_of, selector_of, tag
from outlive.drivers import read_input
from outlive.node import AskedVm, VmLife, check_hosts_of_ours, check_request, request_vm
from outlive.node.vm import (
    DELETING,
    add_tags,
    attach_device,
    change_vm,
    check_name_is_free,
    check_size,
    deletion_of,
    detach_device,
    display_name_of,
    find_home_elsewhere,
    follow_request,
    rename_vm,
    running_entry,
    set_profile,
    shown_state,
    tags_of,
    undefine_vm,
)
from outlive.resources import (
    PROFILE_LABEL,
    SIZE_LIMIT,
    HostSelector,
    Hypervisor,
    ObjectMeta,
    Request,
    RequestVerb,
    VirtualMachine,
    VirtualMachineSpec,
    check_labels,
    parse,
)
from outlive.store import find_vm, list_all

if TYPE_CHECKING:
    from outlive.node import ClusterLiveness
    from outlive.store import Store

SELECTORS: Final = tuple(name for name in get_args(HostSelector) if name)
METHODS: Final = ("live", "shutdown")
UNSET: Final = "default"
"""Written for a selector or method, the cluster's own is used."""
ANY: Final = "any"
"""Written for the limit, it may run on all hosts."""

app = make_group("VMs, by display name, project/name, or id.")
app.add_typer(tag, name="tag")

ForceLive = Annotated[bool, typer.Option("--force-live", help="Only live: it is not stopped for it.")]
Limit = Annotated[
    list[str] | None,
    typer.Option("--limit", metavar="HOST,…", help=f"The only hosts that it may run on; {ANY} lifts it."),
]
Choosing = Annotated[
    str | None,
    typer.Option("--host-selector", "-s", metavar="|".join((*SELECTORS, UNSET)), help="How a host is chosen for it."),
]
Autostart = Annotated[
    bool | None, typer.Option("--autostart/--no-autostart", "-a/-A", help="Start it when its host is ready again.")
]
Method = Annotated[
    str | None, typer.Option("--method", "-m", metavar="|".join((*METHODS, UNSET)), help="How it moves.")
]
Downtime = Annotated[
    int | None, typer.Option("--downtime", "-d", metavar="MS", min=1, help="Longest pause of a live move.")
]


@command(app)
async def define(
    access: WriteAccess,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Domain XML of libvirt; - for standard input.")],
    to: ToHost = "",
    limit: Limit = None,
    selector: Choosing = None,
    autostart: Autostart = None,
    method: Method = None,
    downtime: Downtime = None,
    tags: Tags = None,
    protected_tags: ProtectedTags = None,
    wait: Wait = False,
) -> ExitCode | None:
    """Define a VM, or change it by the UUID in FILE. It is not started; only given options change."""
    from outlive.api import Neighbours, definition_warnings

    given, labels = _spec_changes(limit, selector, autostart, method, downtime), labels_of(tags, protected_tags)
    text, uuid = _read(file)
    async with access.open(write=True) as store:
        await _check_hosts(store, given.get("host_limit", ()))
        old = await _find_defined(store, uuid)
        if old is not None and to:
            raise Usage(
                f"{display_name_of(old)} is there already",
                place="--to",
                remedy=f"outlive vm move {display_name_of(old)} --to {to}",
            )
        if old is None:
            await check_request(store, access.clock, uuid, "move", to)
            await check_hosts_of_ours(store, uuid)
            request = Request(id=SystemIds().new_uuid(), verb="move", target=to)
            spec = VirtualMachineSpec(power_state="stopped", request=request)
            old = VirtualMachine(metadata=ObjectMeta(name=uuid), spec=spec)
        metadata = msgspec.structs.replace(old.metadata, labels=add_tags(old.metadata.labels, labels))
        old = msgspec.structs.replace(old, metadata=metadata)
        vm = _change_spec(old, str(file), definition=text, **given)
        await Neighbours(store).check(vm)
        await check_name_is_free(store, vm.name, display_name_of(vm))
        await check_size(store, vm, to)
        outcome = await write_resource(store, vm)
        write(f"{display_name_of(vm)}: {'defined' if outcome == 'created' else outcome} as {vm.name}\n")
        for text in definition_warnings(vm):
            write(f"note: {text}\n")
        if not wait or outcome != "created" or vm.spec.request is None:
            return None
        return await _follow(access, store, vm, vm.spec.request)


def _read(file: Path) -> tuple[str, str]:
    """The text of a definition, and its UUID; ``BadInput`` names the file."""
    try:
        text = read_input(file, limit=SIZE_LIMIT).decode()
        return text, parse(text).uuid
    except UnicodeDecodeError:
        raise BadInput("a definition is text in UTF-8", place=str(file), remedy="write libvirt's domain XML") from None
    except BadInput as error:
        raise BadInput(error.message, place=str(file), remedy=error.remedy) from None


async def _find_defined(store: Store, uuid: str) -> VirtualMachine | None:
    """The VM of that UUID: by its name, or by its definition."""
    async for one in list_all(store, VirtualMachine):
        text = one.spec.definition
        if one.name == uuid or (text and uuid in text.lower() and parse(text).uuid == uuid):
            return await store.get(VirtualMachine, one.name, fresh=True)
    return None


def _spec_changes(
    limit: list[str] | None,
    selector: str | None,
    autostart: bool | None,
    method: str | None,
    downtime: int | None,
) -> dict[str, Any]:
    """The fields of a VM's spec that the options say."""
    found: dict[str, Any] = {}
    if limit is not None:
        hosts = split_words(*limit)
        if not hosts or (ANY in hosts and len(hosts) > 1):
            raise Usage(f"{','.join(limit)[:80]!r} are no hosts", place="--limit", remedy=f"write hosts, or {ANY}")
        found["host_limit"] = () if hosts == [ANY] else tuple(hosts)
    if selector is not None:
        found["selector"] = _check_choice("--host-selector", selector, SELECTORS)
    if autostart is not None:
        found["autostart"] = autostart
    if method is not None:
        found["migration_method"] = _check_choice("--method", method, METHODS)
    if downtime is not None:
        found["migration_downtime_ms"] = downtime
    return found


def _check_choice(place: str, word: str, known: tuple[str, ...]) -> str:
    if word not in (*known, UNSET):
        raise Usage(f"{word[:40]!r} is not known", place=place, remedy=f"write one of {', '.join((*known, UNSET))}")
    return "" if word == UNSET else word


async def _check_hosts(store: Store, hosts: tuple[str, ...]) -> None:
    """``NotFound`` for a host that is not there."""
    for host in hosts:
        await store.get(Hypervisor, host)


def _change_spec(vm: VirtualMachine, place: str, **changes: Any) -> VirtualMachine:
    """The VM with these changes of its spec, checked as the server does."""
    try:
        found = check_resource(msgspec.structs.replace(vm, spec=msgspec.structs.replace(vm.spec, **changes)))
    except BadInput as error:
        raise BadInput(error.message, place=place or error.place, remedy=error.remedy) from None
    assert isinstance(found, VirtualMachine)
    return found


@command(app)
async def meta(
    access: WriteAccess,
    vm: OneVm,
    limit: Limit = None,
    selector: Choosing = None,
    autostart: Autostart = None,
    method: Method = None,
    downtime: Downtime = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", "-p", metavar="NAME", help=f"What it was made from, as you call it; {UNSET}: nothing."
        ),
    ] = None,
) -> None:
    """Change how hosts are chosen for a VM and how it moves, or its profile; only given options change."""
    given = _spec_changes(limit, selector, autostart, method, downtime)
    if not given and profile is None:
        raise Usage("nothing is given to change", remedy="see outlive vm meta --help")
    if profile is not None:
        try:
            check_labels({PROFILE_LABEL: profile})
        except Invalid as error:
            why = f"{profile[:80]!r} is no name of a profile"
            raise Usage(why, place="--profile", remedy=error.remedy) from None
    async with access.open(write=True) as store:
        await _check_hosts(store, given.get("host_limit", ()))
        found = await find_vm(store, vm)
        after = found
        if given:
            after = await change_vm(store, access.clock, found, lambda now: _change_spec(now, "", **given))
        outcome = "unchanged" if after.spec == found.spec else "configured"
        if profile is not None and await set_profile(store, access.clock, found, "" if profile == UNSET else profile):
            outcome = "configured"
        write(f"{display_name_of(found)}: {outcome}\n")


@command(app, "list")
async def list_vms(access: Access, output: Output, tags: Tags = None, protected_tags: ProtectedTags = None) -> None:
    """All VMs by display name, or those that have all the tags."""
    chosen = selector_of(tags, protected_tags)
    async with access.open() as store:
        found = [one async for one in list_all(store, VirtualMachine, selector=chosen)]
        life = await read_liveness(store, access)
    documents = [_vm_facts(vm, life) for vm in sorted(found, key=lambda vm: (display_name_of(vm), vm.name))]
    columns = ("name", "state", "host", "migrated", "limit", "selector", *(("tags", "id") if output.wide else ()))
    rows = [[_format_cell(column, document[column]) for column in columns] for document in documents]
    output.show(documents, lambda: [make_table([column.capitalize() for column in columns], rows)])


@command(app)
async def log(access: Access, vm: OneVm, lines: Lines = None, following: Follow = False) -> None:
    """What the guest of a VM wrote to its serial console last."""
    await print_log(access, vm, lines=lines, following=following)


@command(app)
async def info(access: Access, output: Output, vm: OneVm) -> None:
    """One VM: its state, where it is, how hosts are chosen for it, what it consists of."""
    async with access.open() as store:
        found = await find_vm(store, vm)
        life = await read_liveness(store, access)
    facts, runs = _vm_facts(found, life), running_entry(found)
    shown = {**facts, "vnc": runs.vnc.address if runs is not None and runs.vnc is not None else ""}
    rows = [(_TITLES.get(key, key.capitalize()), _format_cell(key, one)) for key, one in shown.items()]
    output.show(facts, lambda: [make_table(("", ""), rows)])


def _format_cell(key: str, value: Any) -> Any:
    """As people see it: a state has the colour that its kind of state has, where the output has colours."""
    if key == "state":
        return colour_word(value, STATE_COLOURS.get(value.partition(":")[0].partition(" ")[0], "blue"))
    return ", ".join(value) if isinstance(value, list | dict) else value


STATE_COLOURS: Final[dict[str, str]] = {
    str(VmLife.RUNNING): "green",
    **dict.fromkeys((VmLife.STARTING, VmLife.UNKNOWN, DELETING), "yellow"),
    **dict.fromkeys((VmLife.DOWN, VmLife.WAITING, VmLife.STOPPED), "red"),
}
"""Of states; others are blue."""
_TITLES: Final = {
    "id": "ID",
    "vnc": "VNC",
    "vcpus": "vCPUs",
    "memoryMib": "Memory (MiB)",
    "downtimeMs": "Downtime (ms)",
}


def _vm_facts(vm: VirtualMachine, life: ClusterLiveness) -> dict[str, Any]:
    """What is shown of a VM; what is not set is shown as it acts."""
    spec, status, home, runs = vm.spec, vm.status, find_home_elsewhere(vm), running_entry(vm)
    now = life.liveness_of_vm(vm)
    vnc = runs.vnc if runs is not None else None
    return {
        "name": display_name_of(vm),
        "id": vm.name,
        "state": f"{DELETING}, {now.text}" if vm.deleting else now.text,
        "wanted": shown_state(vm),
        "reason": deletion_of(vm).text if vm.deleting else status.message or status.reason or now.reason,
        "host": vm.host,
        "migrated": f"from {home}" if home else "no",
        "limit": ", ".join(spec.host_limit) or "Any",
        "selector": spec.selector or "Default",
        "autostart": spec.autostart,
        "method": spec.move_method or "Default",
        "downtimeMs": "Default" if spec.migration_downtime_ms is None else spec.migration_downtime_ms,
        "tags": tags_of(vm),
        "profile": vm.metadata.labels.get(PROFILE_LABEL, ""),
        "vcpus": spec.resources.cpu_milli / 1000,
        "memoryMib": spec.resources.memory_bytes >> 20,
        "vnc": {"listen": vnc.listen, "port": vnc.port} if vnc is not None else {"listen": None, "port": None},
        "disks": list(spec.disks),
        "ports": list(spec.ports),
    }


# Requests


@command(app)
async def start(
    access: WriteAccess,
    vm: OneVm,
    force: Annotated[bool, typer.Option("--force", help="Also where it is a mirror.")] = False,
    wait: Wait = False,
) -> ExitCode | None:
    """Start a VM, also after it has failed."""
    return await _ask(access, vm, "start", wait, force=force)


@command(app)
async def stop(
    access: WriteAccess,
    vm: OneVm,
    force: Annotated[bool, typer.Option("--force", help="Also where it is a mirror.")] = False,
    wait: Wait = False,
    yes: Yes = False,
) -> ExitCode | None:
    """Stop a VM at once, as if its power was cut."""
    await _ask_to_cut_power(access, vm, yes)
    return await _ask(access, vm, "stop", wait, force=force)


async def _ask_to_cut_power(access: Access, vm: str, yes: bool) -> None:
    async with access.open(write=True) as store:
        found = await find_vm(store, vm)
        ask(f"Cut the power of {display_name_of(found)} ({found.name})? What its guest has not written is lost.", yes)


@command(app)
async def shutdown(access: WriteAccess, vm: OneVm, wait: Wait = False) -> ExitCode | None:
    """Shut the guest of a VM down; it is stopped if it does not shut down in time."""
    return await _ask(access, vm, "shutdown", wait)


@command(app)
async def restart(access: WriteAccess, vm: OneVm, wait: Wait = False) -> ExitCode | None:
    """Shut the guest of a VM down, and start it again."""
    return await _ask(access, vm, "restart", wait)


@command(app)
async def disable(
    access: WriteAccess,
    vm: OneVm,
    force: Annotated[bool, typer.Option("--force", help="Stop it at once, and ask before; also a mirror.")] = False,
    wait: Wait = False,
    yes: Yes = False,
) -> ExitCode | None:
    """Shut a VM down, or with --force stop it, until a user starts it."""
    if force:
        await _ask_to_cut_power(access, vm, yes)
    return await _ask(access, vm, "disable", wait, force=force)


@command(app)
async def move(
    access: WriteAccess, vm: OneVm, to: ToHost = "", force_live: ForceLive = False, wait: Wait = False
) -> ExitCode | None:
    """Move a VM to another host, which is its home from then on."""
    return await _ask(access, vm, "move", wait, target=to, force_live=force_live)


@command(app)
async def migrate(
    access: WriteAccess,
    vm: OneVm,
    to: ToHost = "",
    force: Annotated[bool, typer.Option("--force", help="Also if it is away from home already.")] = False,
    force_live: ForceLive = False,
    wait: Wait = False,
) -> ExitCode | None:
    """Move a VM to another host for a while: outlive vm unmigrate brings it home."""
    return await _ask(access, vm, "migrate", wait, target=to, force=force, force_live=force_live)


@command(app)
async def unmigrate(
    access: WriteAccess, vm: OneVm, force_live: ForceLive = False, wait: Wait = False
) -> ExitCode | None:
    """Bring a VM home that was migrated."""
    return await _ask(access, vm, "unmigrate", wait, force_live=force_live)


@command(app, "flush-locks")
async def flush_locks(
    access: WriteAccess,
    vm: OneVm,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also locks of clients that are no host of the cluster: they are cut off. Asks before."
        ),
    ] = False,
    wait: Wait = False,
    yes: Yes = False,
) -> ExitCode | None:
    """Remove the locks on the disks of a stopped VM, except those of a host that may be using them."""
    if force:
        ask(f"Cut off every client that has a disk of {vm} locked? If one still writes, the disk is corrupted.", yes)
    return await _ask(access, vm, "flush-locks", wait, force=force)


@command(app)
async def attach(
    access: WriteAccess,
    vm: OneVm,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An <interface> of domain XML; - for standard input.")],
) -> None:
    """Give a VM a network interface while it runs, and from then on. Waits for its host's answer."""
    try:
        device = read_input(file, limit=SIZE_LIMIT).decode()
    except UnicodeDecodeError:
        raise BadInput("a device is text in UTF-8", place=str(file), remedy="write libvirt's domain XML") from None
    async with access.open(write=True) as store:
        found = await find_vm(store, vm)
        try:
            write(f"{await attach_device(store, access.clock, SystemIds(), found, device, _say)}\n")
        except BadInput as error:
            raise BadInput(error.message, place=str(file), remedy=error.remedy) from None


@command(app)
async def detach(
    access: WriteAccess,
    vm: OneVm,
    device: Annotated[
        str, typer.Argument(metavar="DEVICE", help="Target or id of a disk, or MAC address of an interface.")
    ],
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also one without a PCI address in the definition: live moves may fail until a restart.",
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """Take a disk or interface away from a VM while it runs, and from then on; waits for its host's answer.

    It asks before. The disk keeps its data; data that the guest has not written yet is lost.
    """
    async with access.open(write=True) as store:
        found = await find_vm(store, vm)
        ask(
            f"Take {device} away from {display_name_of(found)} ({found.name})? What its guest has open there fails.",
            yes,
        )
        write(f"{await detach_device(store, access.clock, SystemIds(), found, device, _say, force=force)}\n")


async def _ask(access: Access, name: str, verb: RequestVerb, wait: bool, **how: Any) -> ExitCode | None:
    async with access.open(write=True) as store:
        vm = await find_vm(store, name)
        asked: AskedVm = await request_vm(store, access.clock, SystemIds(), vm.name, verb, **how)
        write(f"{asked.text}\n")
        return await _follow(access, store, vm, asked.request) if wait else None


async def _follow(access: Access, store: Store, vm: VirtualMachine, request: Request) -> ExitCode | None:
    done = await follow_request(store, access.clock, vm.name, request, _say)
    return None if done else ExitCode.NO


def _say(line: str) -> None:
    write(f"{line}\n")


# Names, and the end


@command(app)
async def rename(
    access: WriteAccess, vm: OneVm, name: Annotated[str, typer.Argument(metavar="NAME", help="Its new display name.")]
) -> None:
    """Give a VM that is stopped or disabled another display name; its UUID stays."""
    async with access.open(write=True) as store:
        write(f"{await rename_vm(store, access.clock, await find_vm(store, vm), name)}\n")


@command(app)
async def undefine(access: WriteAccess, vm: OneVm, yes: Yes = False) -> None:
    """Stop a VM, wait until it is, and delete it. Its disks stay."""
    async with access.open(write=True) as store:
        found = await find_vm(store, vm)
        ask(f"Stop and delete {display_name_of(found)} ({found.name})? Its disks stay.", yes)
        write(f"{await undefine_vm(store, access.clock, SystemIds(), found, _say)}\n")
