"""``outlive node``: the daemon of this host as a process, from its configuration to its end.

Signals: ``TERM``, ``INT`` and ``QUIT`` end it cleanly, a second one without waiting; ``HUP`` opens the log's file
anew; ``PWR`` says that the machine goes down; ``USR2`` has the installed version take its place in the same process.
Virtual machines run on in all of these, but for those of a machine that goes down (docs/how-to/host-daemon.md).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from outlive import __version__
from outlive.base import (
    BadInput,
    ExitCode,
    OutliveError,
    SystemClock,
    SystemIds,
    configure_logging,
    copy_log,
    get_logger,
    reopen_log,
    system_random,
)
from outlive.cli.access import StoreKind
from outlive.cli.node_join import join
from outlive.cli.node_settings import HostConfig, check_clock, load_node, node_file
from outlive.cli.output import write

if TYPE_CHECKING:
    from outlive.base import Clock
    from outlive.node import HostLogWriter
    from outlive.resources import Hypervisor
    from outlive.roles import NodeRole
    from outlive.store import Store

LOOK_S: Final = 0.1
"""Pause between two looks at whether the host is a member."""
CHECK_S: Final = 20.0
"""How long a new version may take to say that it could start here."""
CHECK_AGAIN_S: Final = 60.0
"""Pause before a version that could not start is tried again, where another storage schema counts."""
NOT_REPLACED: Final = 150
"""Exit code of a daemon whose place no other version could take; its unit starts it again."""

_log = get_logger("node")

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.command("join")(join)


@app.callback()
def node(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Instead of /etc/outlive/node.yaml.")
    ] = None,
    leave_vms: Annotated[
        bool, typer.Option("--leave-vms", help="When asked to end, leave the VMs of this host running.")
    ] = False,
    store: Annotated[
        StoreKind | None,
        typer.Option(
            "--store",
            help="kubernetes or zookeeper: write to the API server or the ensemble itself, as server.store says.",
            case_sensitive=False,
        ),
    ] = None,
    kubeconfig: Annotated[
        str, typer.Option("--kubeconfig", metavar="FILE", help="Of --store kubernetes, instead of server.kubeconfig.")
    ] = "",
    kube_context: Annotated[
        str, typer.Option("--context", metavar="NAME", help="Of the kubeconfig, instead of server.context.")
    ] = "",
    zookeeper: Annotated[
        str, typer.Option("--zookeeper", metavar="FILE", help="Of --store zookeeper, instead of server.zookeeper.")
    ] = "",
    check: Annotated[bool, typer.Option("--check", help="Say whether it could start here, and end.")] = False,
) -> None:
    """Run the daemon of this host: its membership, its VMs, and on a coordinator the fencing of other hosts."""
    if context.invoked_subcommand is not None:
        return
    chosen = None if store is None else "server" if store is StoreKind.SQLITE else store.value
    flags = {"store": chosen, "kubeconfig": kubeconfig or None, "context": kube_context or None}
    flags["zookeeper"] = zookeeper or None
    given = {f"server.{name}": value for name, value in flags.items() if value is not None}
    loaded = load_node(node_file(config), given)
    if check:
        write(f"outlive: {loaded.file} is good for {loaded.name}\n")
        return
    _set_up_log(loaded)
    code = asyncio.run(NodeProcess(loaded, leave_vms=leave_vms).run())
    if code:
        raise typer.Exit(code)


def _set_up_log(config: HostConfig) -> None:
    try:
        configure_logging(level=config.log.level, form=config.log.form, file=config.log.file)
    except OSError as error:
        raise BadInput(
            f"cannot be opened: {error.strerror}", place=f"log.file: {config.log.file}", remedy="make its folder"
        ) from None


class NodeProcess:
    """One process of the daemon. ``run`` returns its exit code."""

    def __init__(self, config: HostConfig, *, leave_vms: bool) -> None:
        self._config = config
        self._leave_vms = leave_vms
        self._clock: Clock = SystemClock()
        self._asked = 0
        """How often it was asked to end."""
        self._refused = False
        self._replaced = asyncio.Event()
        """Set when another version is to take its place."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Until it is asked to end, or must not run."""
        from outlive.cli.node_ports import node_ports, node_store
        from outlive.drivers import CommandDuty, LinuxMachine
        from outlive.drivers.service_manager import notify
        from outlive.node import GuardClient
        from outlive.roles import NodeRole

        config = self._config
        check_clock(self._clock)
        machine = LinuxMachine(config.host, config.name)
        machine.prepare()
        store = node_store(config, self._clock)
        closing = AsyncExitStack()
        guard = GuardClient(config.guard.socket, guests=config.libvirt.slice if config.libvirt.uri else "")
        try:
            log = _make_log_keeper(store, config, self._clock)
            role = NodeRole(
                store,
                store,
                config.node,
                node_ports(config, machine, guard, store, self._clock),
                host=config.name,
                clock=self._clock,
                random=system_random(),
                ids=SystemIds(),
                networks=config.host.addresses,
                newcomer=new_hypervisor(config),
                duties=(CommandDuty("api", config.primary.start, config.primary.stop),),
                log=log,
            )
            self._listen(role)
            fields = {
                "server": config.place,
                "vms": config.libvirt.uri or "none",
                "guard": config.guard.socket,
            }
            found = machine.read_capabilities()
            fields |= {"version": __version__, "level": config.log.level, "kernel": found.kernel, "os": found.os}
            fields |= {"architecture": found.cpu_arch, "cpus": str(found.cpus)}
            _log.info("node.started", host=config.name, pid=os.getpid(), boot=machine.boot_id(), **fields)
            await self._serve_metrics(role, store, closing)
            running = asyncio.ensure_future(role.run())
            ready = asyncio.ensure_future(self._say_when_ready(role))
            replaced = asyncio.ensure_future(self._replaced.wait())
            self._spawn(self._follow_schema(role, store))
            await asyncio.wait((running, replaced), return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
            replaced.cancel()
            if not running.done():
                await role.hand_over()
                running.cancel()
                await asyncio.wait((running,))
                await closing.aclose()  # the next version listens there
                await store.close()
                replace_process(machine.pass_lock())
                return NOT_REPLACED
            await running
        finally:
            notify(STOPPING="1")
            await closing.aclose()
            await store.close()
            await guard.close()
        _log.info("node.stopped", host=config.name)
        return ExitCode.YES

    async def _serve_metrics(self, role: NodeRole, store: Store, closing: AsyncExitStack) -> None:
        """Serve the metrics of this daemon, where its configuration says so. A host whose port is taken works on
        without them: a metric is no reason to lose a membership."""
        settings = self._config.metrics
        if not settings.listen:
            return
        from outlive.api import serve_metrics

        serve = serve_metrics(settings, role.metrics, store, version=__version__, clock=self._clock, ids=SystemIds())
        try:
            url = await closing.enter_async_context(serve)
        except OutliveError as error:
            _log.error("node.metrics_not_served", host=self._config.name, why=str(error))
        else:
            _log.info("node.metrics_served", host=self._config.name, url=url)

    # Signals

    def _listen(self, role: NodeRole) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            loop.add_signal_handler(number, lambda: self._spawn(self._end(role)))
        loop.add_signal_handler(signal.SIGPWR, lambda: self._spawn(self._end(role, going_down=True)))
        loop.add_signal_handler(signal.SIGHUP, reopen_log)
        loop.add_signal_handler(signal.SIGUSR2, lambda: self._spawn(self._replace(role)))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self, role: NodeRole, *, going_down: bool = False) -> None:
        """The first request ends it cleanly; the second one does not wait, and leaves VMs."""
        from outlive.drivers import is_machine_stopping

        self._asked += 1
        if self._asked > 1 and not self._refused:
            _log.warning("node.hurries", host=self._config.name)
            role.hurry()
            return
        going_down = going_down or await is_machine_stopping()
        role.stop(leave_vms=self._leave_vms or self._refused, going_down=going_down)
        self._refused = bool(role.stop_refused)
        if self._refused:
            write(f"outlive: {role.stop_refused}; ask again to leave them\n")

    async def _replace(self, role: NodeRole) -> None:
        """Have the installed version take over, if it could start here."""
        if not await _can_start(_restart_command()):
            _log.error("node.not_replaced", host=self._config.name, why="the installed version cannot start here")
            return
        _log.info("node.replaced", host=self._config.name, held=role.lease.held)
        self._replaced.set()

    async def _follow_schema(self, role: NodeRole, store: Store) -> None:
        """Begin anew in this process once another storage schema counts; until then the store goes by it as well."""
        view = getattr(store, "schema", None)
        if view is None:
            return
        await view.moved.wait()
        _log.info("node.schema_moved", host=self._config.name, version=view.version, before=view.first)
        while not self._replaced.is_set():
            await self._replace(role)
            await self._clock.sleep(CHECK_AGAIN_S)

    async def _say_when_ready(self, role: NodeRole) -> None:
        """One line, once the host holds its membership."""
        from outlive.drivers.service_manager import notify

        while not role.lease.held:
            await self._clock.sleep(LOOK_S)
        config, record = self._config, role.lease.record
        epoch = record.epoch if record is not None else 0
        vms = f"VMs by {config.libvirt.uri}" if config.libvirt.uri else "no VMs"
        text = f"{config.name} is a member of {config.place} in epoch {epoch}"
        notify(READY="1", STATUS=text)
        _log.info("node.ready", host=config.name, epoch=epoch, version=__version__)
        write(f"outlive: ready: {text}, with {vms} and the guard at {config.guard.socket}\n")


def _make_log_keeper(store: Store, config: HostConfig, clock: Clock) -> HostLogWriter | None:
    """Who keeps the last lines of the log in the store, if somebody is to."""
    from outlive.node import HostLogWriter

    if not config.node.log_lines:
        return None
    process = SystemIds().new_uuid()
    kept = HostLogWriter(store, config.name, clock=clock, process=process, lines=config.node.log_lines)
    copy_log(kept.put)
    return kept


def new_hypervisor(config: HostConfig) -> Hypervisor:
    """As what this host registers itself the first time."""
    import msgspec

    from outlive.resources import Hypervisor, HypervisorSpec, ObjectMeta

    spec = msgspec.convert({"management": "node", "mode": config.host.mode}, HypervisorSpec)
    return Hypervisor(metadata=ObjectMeta(name=config.name, labels=dict(config.host.labels)), spec=spec)


def _restart_command() -> list[str]:
    """How this process was started, with the interpreter in front."""
    return [sys.executable, *sys.orig_argv[1:]]


def replace_process(variables: Mapping[str, str] | None = None) -> None:
    """Have the installed version run in this process, by the same command line; returns only where the system
    refuses."""
    arguments = _restart_command()
    try:
        os.execve(arguments[0], arguments, {**os.environ, **(variables or {})})  # noqa: S606 - what runs already
    except OSError as error:
        _log.error("node.not_replaced", why=str(error))


async def _can_start(arguments: list[str]) -> bool:
    """Whether the same command line would start, by the files that are installed now."""
    child = await asyncio.create_subprocess_exec(*arguments, "--check", stdin=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.timeout(CHECK_S):
            return await child.wait() == 0
    except TimeoutError:
        return False
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
