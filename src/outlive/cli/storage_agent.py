"""``outlive storage-agent``: the agent of one node, and what it says about a pod, a volume or a node.

It takes the options of the piraeus HA controller under their names, as Go programs take them, so that the command line
of a DaemonSet keeps its meaning (docs/roles/storage-agent.md).
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlive.base.clock import SystemClock
from outlive.base.errors import ExitCode
from outlive.base.ids import SystemIds
from outlive.base.logging import configure_logging, get_logger
from outlive.base.random import system_random
from outlive.cli.commands import DefaultGroup, command
from outlive.cli.output import write
from outlive.runtime.tasks import OrderedTaskGroup

if TYPE_CHECKING:
    from outlive.storage.options import AgentFlags

CONTROLLER = "linstor.linbit.com/HighAvailabilityController"
"""By which name the agent reports events: that of the controller which it stands in for."""
_log = get_logger("storage-agent")


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
    help="Have pods leave nodes whose DRBD volumes lost quorum: the agent of one node, and what it says.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(cls=AgentGroup)
def _group() -> None:
    return


@command(app, "run", raw=True)
async def run(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="--OPTION=VALUE…", help="See docs/reference/storage-agent.md.")
    ] = None,
) -> ExitCode | None:
    """Run the agent of this node. Its options are in docs/reference/storage-agent.md; the node is NODE_NAME."""
    from outlive.storage.options import read_options

    flags = read_options(arguments or (), os.environ)
    configure_logging(level="debug" if int(flags.flags["v"]) >= 4 else "info", form="json")
    return await _serve(flags)


async def _serve(flags: AgentFlags) -> ExitCode | None:
    """Until SIGTERM or SIGINT; ends with an error where the profile ends the process."""
    from outlive.base import garbage
    from outlive.drivers.agent_http import AgentListener
    from outlive.drivers.kubernetes.events import KubernetesEvents
    from outlive.drivers.kubernetes.verbs import KubernetesVerbs
    from outlive.drivers.storage.drbdsetup import DrbdSetup
    from outlive.storage.agent import StorageAgent
    from outlive.storage.metrics import AgentMetrics
    from outlive.store.kubernetes import KubernetesStore, cluster_access

    garbage.spare()
    clock, random = SystemClock(), system_random()
    metrics = AgentMetrics(lambda: agent.observer.age_s())
    client = flags.client
    access = cluster_access(str(client.get("kubeconfig", "")), str(client.get("context", "")))
    store = KubernetesStore(access, clock=clock, random=random)
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
                writing = group.create_task(events.run(), name="events")
                await agent.run()
                writing.cancel()
    finally:
        await store.close()
    return ExitCode.INTERRUPTED if received[:1] == [signal.SIGINT] else None
