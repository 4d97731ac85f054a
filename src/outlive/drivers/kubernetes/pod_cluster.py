"""The Kubernetes cluster whose pods networks follow, as the settings name it; and who may write there."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from outlive.base import BadInput, Clock, Ids, Random, get_logger
from outlive.drivers.kubernetes.events import KubernetesEvents
from outlive.drivers.kubernetes.verbs import KubernetesVerbs
from outlive.drivers.ovn.neighbour_table import BridgeNeighbours
from outlive.network import DEFAULT_IDENTITIES, PodIdentities, PodNetworkSettings
from outlive.resources import convert
from outlive.roles import PodCluster
from outlive.runtime import parse_settings
from outlive.store.kubernetes import KubernetesStore, cluster_access

CONTROLLER: Final = "outlive.dev/network"
"""By which name events are reported."""
IDENTITIES_BYTES: Final = 2**18
READ_S: Final = 10.0
"""How often the file of identities is read."""
PAGE_OBJECTS: Final = 50
"""Of listings: pods have some 10 KiB each, of which little is kept."""
_log = get_logger("network")


def open_pod_cluster(
    settings: PodNetworkSettings, closing: AsyncExitStack, *, clock: Clock, random: Random, ids: Ids, instance: str
) -> PodCluster | None:
    """The cluster, or nothing where pods are not followed; ``BadInput`` for a kubeconfig that is none."""
    if not settings.follow:
        return None
    access = cluster_access(settings.kubeconfig, settings.context)
    store = KubernetesStore(access, clock=clock, random=random, page_objects=PAGE_OBJECTS)
    closing.push_async_callback(store.close)
    events = KubernetesEvents(store, clock=clock, ids=ids, controller=CONTROLLER, instance=instance)
    neighbours = BridgeNeighbours(settings.evpn.networks) if settings.evpn.hypervisor else None
    return PodCluster(store, KubernetesVerbs(store), events, events.run, neighbours)


class IdentitiesFile:
    """The identities of a file, which is looked at again from time to time; one that is broken leaves those before."""

    def __init__(self, path: str, clock: Clock) -> None:
        """``BadInput`` where it cannot be read now."""
        self._path = path
        self._clock = clock
        self._known = read_identities(path)
        self._read_s = clock.monotonic()

    def __call__(self) -> PodIdentities:
        """The identities of now."""
        if self._path and self._clock.monotonic() - self._read_s >= READ_S:
            self._read_s = self._clock.monotonic()
            try:
                self._known = read_identities(self._path)
            except BadInput as error:
                _log.warning("network.identities", error=str(error))
        return self._known


def read_identities(path: str) -> PodIdentities:
    """Who may write network annotations: those of the file before those that are always known. ``BadInput``."""
    if not path:
        return DEFAULT_IDENTITIES
    try:
        with Path(path).open("rb") as file:
            raw = file.read(IDENTITIES_BYTES + 1)
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", place=path, remedy="see network.pods.identities") from None
    if len(raw) > IDENTITIES_BYTES:
        raise BadInput(f"is larger than {IDENTITIES_BYTES} bytes", place=path, remedy="list prefixes of names")
    found: PodIdentities = convert(PodIdentities, parse_settings(raw, path)[0])
    return PodIdentities(identities=(*found.identities, *DEFAULT_IDENTITIES.identities))
