"""``outlive storage-agent``: the agent of one node, and what it says about a pod, a volume or a node.

It takes the options of the piraeus HA controller under their names, as Go programs take them, so that the command line
of a DaemonSet keeps its meaning (docs/how-to/storage-agent.md).
"""

from __future__ import annotations

import asyncio
import enum
import os
import signal
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlive.base import (
    BadInput,
    ExitCode,
    NotFound,
    SystemClock,
    SystemIds,
    Unavailable,
    configure_logging,
    system_random,
)
from outlive.cli.commands import DefaultGroup, command
from outlive.cli.output import Report, make_table, write
from outlive.runtime import OrderedTaskGroup
from outlive.storage import FLAGS

if TYPE_CHECKING:
    from outlive.drivers.storage import StorageSettings
    from outlive.storage import AgentFlags
    from outlive.store.kubernetes import AccessOverrides

CONTROLLER = "linstor.linbit.com/HighAvailabilityController"
"""By which name the agent reports events: that of the controller which it stands in for."""
PAGE_OBJECTS = 50
"""Of listings: pods have some 10 KiB each, of which little is kept."""
ANSWER_S = 10.0
"""An agent answers within so long."""
ANSWER_BYTES = 16 * 2**20


class AgentSubject(enum.StrEnum):
    """What an agent explains."""

    POD = "pod"
    VOLUME = "volume"
    NODE = "node"


class AgentGroup(DefaultGroup):
    """``storage-agent`` runs the agent unless its first word is another command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """With the name of the first command also where there is no word at all."""
        return super().parse_args(ctx, args or [next(iter(self.commands))])


app = typer.Typer(
    cls=AgentGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Move pods off nodes whose DRBD volumes lost quorum: the agent of one node, and its explanations.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(cls=AgentGroup)
def _group() -> None:
    return


def _options_text() -> str:
    """All options with their defaults, for --help."""
    lines = []
    for flag in FLAGS:
        name = f"-{flag.name}=N" if flag.name == "v" else f"--{flag.name}"
        default = "" if flag.default in ("", False) else f" [default: {flag.default}]"
        lines += [f"  {name}", f"      {flag.doc.replace('`', '')}{default}"]
    return "\b\nOptions of the agent:\n" + "\n".join(lines)


@command(app, "run", raw=True, epilog=_options_text())
async def run(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="--OPTION=VALUE…", help="See docs/reference/storage-agent.md.")
    ] = None,
) -> ExitCode | None:
    """Run the agent of this node. Its options are in docs/reference/storage-agent.md; the node is NODE_NAME."""
    from outlive.storage import read_options

    flags = read_options(arguments or (), os.environ)
    configure_logging(level="debug" if int(flags.flags["v"]) >= 4 else "info", form="json")
    return await _serve(flags)


async def _serve(flags: AgentFlags) -> ExitCode | None:
    """Until SIGTERM or SIGINT; ends with an error where the profile ends the process."""
    from outlive.base import limit_collections
    from outlive.drivers import AgentListener
    from outlive.drivers.kubernetes import KubernetesEvents, KubernetesVerbs
    from outlive.drivers.storage import Drbd, DrbdSetup
    from outlive.roles import StorageCuts
    from outlive.storage import AgentMetrics, StorageAgent
    from outlive.store.kubernetes import KubernetesStore, cluster_access

    limit_collections()
    clock, random = SystemClock(), system_random()
    metrics = AgentMetrics(lambda: agent.observer.age_s())
    access = cluster_access(
        str(flags.client.get("kubeconfig", "")),
        str(flags.client.get("context", "")),
        overrides=access_overrides(flags),
    )
    store = KubernetesStore(access, clock=clock, random=random, page_objects=PAGE_OBJECTS)
    events = KubernetesEvents(
        store, clock=clock, ids=SystemIds(), controller=CONTROLLER, instance=flags.options.node_name
    )
    agent = StorageAgent(
        flags,
        store=store,
        verbs=KubernetesVerbs(store),
        events=events,
        drbd=DrbdSetup(flags.own.drbdsetup, Path(flags.own.drbd_proc_file)),
        clock=clock,
        random=random,
        metrics=metrics,
    )
    loop, received = asyncio.get_running_loop(), list[int]()

    def stop(number: int) -> None:
        received.append(number)
        agent.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        async with AgentListener(agent, metrics, flags) as listener:
            write(f"outlive: storage agent of {flags.options.node_name}, health on {listener.url or 'nothing'}\n")
            async with OrderedTaskGroup() as group:
                beside = [group.create_task(events.run(), name="events")]
                if flags.own.record_cuts:
                    cuts = StorageCuts(
                        store,
                        Drbd(_storage_settings(flags), _state_dir(flags), flags.options.node_name),
                        agent.lost_volumes,
                        host=flags.options.node_name,
                        clock=clock,
                        random=random.fork("cuts"),
                    )
                    beside.append(group.create_task(cuts.run(), name="cuts"))
                await agent.run()
                for task in beside:
                    task.cancel()
    finally:
        await store.close()
    return ExitCode.INTERRUPTED if received[:1] == [signal.SIGINT] else None


def _state_dir(flags: AgentFlags) -> Path:
    path = Path(flags.own.state_dir)
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise BadInput(f"{path} cannot be made: {error.strerror}", place="--state-dir", remedy="mount it") from None
    return path


def _storage_settings(flags: AgentFlags) -> StorageSettings:
    from outlive.drivers.storage import StorageSettings
    from outlive.runtime import Duration

    return StorageSettings(
        drbd_program=flags.own.drbdsetup, command_limit=Duration(flags.options.drbd_command_timeout_s)
    )


def access_overrides(flags: AgentFlags) -> AccessOverrides:
    """The options of the client that count more than its kubeconfig."""
    import msgspec

    from outlive.store.kubernetes import AccessOverrides

    names = {one.encode_name for one in msgspec.structs.fields(AccessOverrides)}
    return msgspec.convert({name: value for name, value in flags.client.items() if name in names}, AccessOverrides)


@command(app, "explain")
async def explain(
    name: Annotated[str, typer.Argument(metavar="POD|VOLUME|NODE", help="NAMESPACE/POD, a volume, or a node.")],
    output: Report,
    kind: Annotated[AgentSubject | None, typer.Option("--kind", help="What NAME is; else all three are tried.")] = None,
    agent: Annotated[
        str, typer.Option("--agent", metavar="URL", envvar="OUTLIVE_STORAGE_AGENT_URL", help="The agent that is asked.")
    ] = "http://127.0.0.1:8000",
) -> ExitCode | None:
    """Explain why pods are moved or stay: every check with its value and timer, as one agent sees it.

    Inside of an agent's pod it asks that agent: kubectl exec POD -- outlive storage-agent explain NAME.
    """
    answers = []
    for one in [kind] if kind is not None else list(AgentSubject):
        found = await _ask(agent, one.value, name)
        if found is not None:
            answers.append(found)
    if not answers:
        raise NotFound(
            f"no DRBD volume at {agent} concerns {name}", remedy="ask the agent of a node that has a replica of it"
        )
    # notices come with every answer; kinds of which there is nothing else say no more
    answers = [one for one in answers if one["resources"]] or answers[:1]
    output.show(
        answers[0] if len(answers) == 1 else answers, lambda: [line for one in answers for line in _render_lines(one)]
    )
    return None


async def _ask(agent: str, kind: str, name: str) -> dict[str, Any] | None:
    """What the agent answers; ``None``: it knows nothing of that. ``Unavailable``."""
    import aiohttp
    import msgspec

    url, query = f"{agent.rstrip('/')}/explain", {"kind": kind, "name": name}
    try:
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, params=query) as answer:
            raw = await answer.content.read(ANSWER_BYTES)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        why = str(error) or f"no answer within {ANSWER_S:g} s"
        raise Unavailable(
            f"{agent} does not answer: {why}", remedy="does an agent run there? give --agent URL"
        ) from None
    if answer.status == HTTPStatus.NOT_FOUND:
        return None
    if answer.status != HTTPStatus.OK:
        raise Unavailable(f"{agent} answered {answer.status}: {raw[:200].decode(errors='replace')}")
    found: dict[str, Any] = msgspec.json.decode(raw)
    return found


def _render_lines(found: dict[str, Any]) -> list[Any]:
    """For people."""
    lines: list[Any] = [f"{found['subject']}, as the agent of {found['seenFrom']} sees it"]
    lines += [f"! {notice}" for notice in found["notices"]]
    if not found["resources"]:
        lines.append("no DRBD volume of this agent's node concerns it, as far as the agent knows")
    for one in found["resources"]:
        lines.append(f"volume {one['resource']}: {one['role']} here, quorum {one['quorum']}")
        rows = [
            (check["check"], "yes" if check["holds"] else "NO", check["node"], check["pod"], check["value"])
            for check in one["checks"]
        ]
        lines.append(make_table(("check", "holds", "node", "pod", "value"), rows))
        lines += [f"next: {step}" for step in one["next"]]
    return lines
