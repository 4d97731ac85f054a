"""``outlive network``: what a node of a Kubernetes cluster announces for VMs that have moved."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from outlive.base.clock import SystemClock
from outlive.base.errors import ExitCode, Usage
from outlive.base.logging import configure_logging
from outlive.base.random import system_random
from outlive.cli.commands import command, group
from outlive.cli.output import write
from outlive.runtime.tasks import OrderedTaskGroup

app = group("Networks of VMs: what nodes announce for VMs that are pods.")


@command(app)
async def announce(
    node: Annotated[str, typer.Option("--node", metavar="NAME", envvar="NODE_NAME", help="Name of this node.")],
    pod: Annotated[
        str, typer.Option("--pod", metavar="NAMESPACE/NAME", help="Send what lies at this pod, once, and end.")
    ] = "",
    kubeconfig: Annotated[str, typer.Option("--kubeconfig", metavar="FILE", help="Access to the cluster.")] = "",
    context: Annotated[str, typer.Option("--context", metavar="NAME", help="Its context.")] = "",
) -> ExitCode | None:
    """Send what the network controller has this node announce after VMs have moved, as a DaemonSet does.

    It needs the node's own network and the right to open raw sockets (NET_RAW), and to list pods.
    """
    from outlive.cli.serving import stop_signal
    from outlive.drivers.ovn.announcer import PacketAnnouncer
    from outlive.drivers.ovn.pod_announcer import PodAnnouncer
    from outlive.network.pod_cache import PodCache
    from outlive.store.kubernetes import KubernetesStore, cluster_access

    if pod and pod.count("/") != 1:
        raise Usage(f"{pod[:200]!r} is no pod", place="--pod", remedy="write NAMESPACE/NAME")
    clock, random = SystemClock(), system_random()
    store = KubernetesStore(cluster_access(kubeconfig, context), clock=clock, random=random)
    sender = PodAnnouncer(PodCache(store, clock, random), store, PacketAnnouncer(clock), node, clock)
    try:
        if pod:
            write(f"{await sender.send_pod(pod)} frames sent on {node}\n")
            return None
        configure_logging(level="info", form="json")
        stopped = stop_signal()
        async with OrderedTaskGroup() as running:
            task = running.create_task(sender.run(), name="announcer")
            number = await stopped
            task.cancel()
        return ExitCode.INTERRUPTED if number == signal.SIGINT else None
    finally:
        await store.close()
