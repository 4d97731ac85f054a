"""What the agent gathers for its decisions from the caches of the cluster."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.unit.storage.builders import node, pod, volume

from outlive.base import LoopClock, Random, SeededIds
from outlive.resources.foreign import KubernetesNode, KubernetesPod, PersistentVolume
from outlive.simulation.kubernetes import ApiServer
from outlive.storage import ClusterCache, DrbdResource, KubernetesObjects, parse_options


async def gathered(server: ApiServer, *resources: str) -> KubernetesObjects:
    """What the agent of ``k2`` would decide about."""
    cache = ClusterCache(parse_options((), {"NODE_NAME": "k2"}), server, LoopClock(), Random(1))
    running = asyncio.create_task(cache.run())
    await cache.wait_filled()
    found = cache.gather([DrbdResource(name=name) for name in resources], "k2")
    running.cancel()
    await asyncio.wait([running])
    return found


def launcher(name: str, claim: str, vm: str) -> dict[str, Any]:
    return pod(name, claim=claim, labels={"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": vm})


def hotplug(name: str, claim: str, owner: dict[str, Any]) -> dict[str, Any]:
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": owner["metadata"]["uid"]}]
    return pod(name, claim=claim, labels={"kubevirt.io": "hotplug-disk"}, ownerReferences=owners)


async def test_a_vm_is_gathered_whole_by_any_of_its_disks_with_the_volumes_of_all() -> None:
    """The node of the agent may have a replica of a hot-plugged disk, and none of the VM's others."""
    server = ApiServer(LoopClock(), SeededIds(Random(1)))
    server.add(KubernetesNode, node("k2"))
    claims = ("root", "extra", "more", "other")
    for name in claims:
        server.add(PersistentVolume, volume(f"pvc-{name}", name))
    source = server.add(KubernetesPod, launcher("source", "root", "vm-1"))
    target = server.add(KubernetesPod, launcher("target", "root", "vm-1"))
    server.add(KubernetesPod, launcher("another", "other", "vm-2"))
    server.add(KubernetesPod, hotplug("hp-1", "extra", source))
    server.add(KubernetesPod, hotplug("hp-2", "more", source))
    server.add(KubernetesPod, hotplug("hp-3", "extra", target))
    found = await gathered(server, "pvc-more")
    assert {one.metadata.name for one in found.pods} == {"source", "target", "hp-1", "hp-2", "hp-3"}
    assert {one.metadata.name for one in found.persistentvolumes} == {"pvc-root", "pvc-extra", "pvc-more"}
    assert {one.metadata.name for one in (await gathered(server, "pvc-other")).pods} == {"another"}
