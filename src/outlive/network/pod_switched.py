"""What follows a switch-over besides rows: announcements for nodes to send, and neighbours of an EVPN fabric.

Announcements lie in an annotation of the migration's target. They are written once; a node sends each once.
"""

from __future__ import annotations

from typing import Final

from outlive.base import Conflict, NotFound, OutliveError, Unknown
from outlive.network.addressing import parse_any
from outlive.network.copies import Copy, PortAddresses
from outlive.network.names import DEFAULT_NETWORK, ROUTED
from outlive.network.pod_announcements import (
    DEFAULT_NUMBER,
    POD_ANNOUNCEMENTS,
    HomeNeighbour,
    PodAnnouncement,
    PodAnnouncementsInput,
)
from outlive.network.pod_cache import PodCache
from outlive.network.pod_facts import ANNOUNCEMENTS
from outlive.network.pod_rows import VmRowsInput
from outlive.network.pods import PodNetwork, follows_default
from outlive.network.ports import NeighbourTable
from outlive.network.settings import NetworkSettings
from outlive.network.status import (
    NEIGHBOURS,
    MigrationState,
    MigrationStatus,
    NeighboursInput,
    StatusView,
    discover_migration,
)
from outlive.resources import encode
from outlive.resources.foreign import KubernetesPod
from outlive.runtime import ClusterVerbs, PatchOperation

_POINTER: Final = f"/metadata/annotations/{ANNOUNCEMENTS.replace('/', '~1')}"


class PodSwitched:
    """See the module. ``neighbours``: of this machine, where it is in an EVPN fabric."""

    def __init__(
        self, cache: PodCache, verbs: ClusterVerbs, settings: NetworkSettings, neighbours: NeighbourTable | None
    ) -> None:
        self._cache = cache
        self._verbs = verbs
        self._settings = settings
        self._neighbours = neighbours

    async def act(self, given: VmRowsInput, *, changed: bool, problems: dict[str, OutliveError]) -> None:
        """Announce a switch-over whose rows are committed, and have the fabric's entries right. ``changed``: they were
        committed just now."""
        try:
            status = discover_migration(given.copies)
        except OutliveError as error:
            problems.setdefault("", error)
            return
        try:
            await self._announce(given, status, changed=changed)
        except NotFound:
            pass  # the target is gone: so is what it would have to be told
        except OutliveError as error:
            problems["announcements"] = error
        for network in given.networks:
            if self._neighbours is not None and network.network in given.settings.evpn.networks:
                try:
                    await self._tell_fabric(self._neighbours, given, network, status)
                except OutliveError as error:
                    problems[f"neighbours on {network.network}"] = error

    async def _announce(self, given: VmRowsInput, status: MigrationStatus | None, *, changed: bool) -> None:
        """Write the announcements of a migration into the target's annotation, unless it has them."""
        if status is None or status.state is not MigrationState.TARGET_READY or not given.zone.is_local(status.target):
            return
        target = status.target
        if status.source is None and not changed:
            return  # an old migration: the target keeps its ready time as long as it lives
        if any(
            one.announced.startswith(target.id) for one in self._cache.pods_of(given.vm) if one.copy.id == target.id
        ):
            return
        announcements = self.plan(given, status)
        if announcements:
            key, value = f"{target.namespace}/{target.name}", encode(list(announcements)).decode()
            operations = [
                PatchOperation("test", "/metadata/uid", target.id),
                PatchOperation("add", _POINTER, value),
            ]
            try:
                await self._verbs.patch(KubernetesPod, key, operations, subresource="status")
            except (Conflict, Unknown):
                return  # another pod of that name, or it is there: the next look says which

    def plan(self, given: VmRowsInput, status: MigrationStatus) -> tuple[PodAnnouncement, ...]:
        """The announcements of all networks of the target."""
        found: list[PodAnnouncement] = []
        target = status.target
        entry = target.networks.get(DEFAULT_NETWORK)
        if entry is not None and follows_default(target):
            home = given.zone.home_of(entry.addresses)
            found += POD_ANNOUNCEMENTS.function(
                PodAnnouncementsInput(
                    id=f"{target.id}/{DEFAULT_NETWORK}",
                    topology=ROUTED,
                    number=DEFAULT_NUMBER,
                    state=status.state,
                    target=target.hypervisor or "",
                    home=home,
                    entry=entry,
                    dhcp_router=given.settings.dhcp_router,
                    neighbours=self._neighbours_at(given, home, entry),
                )
            ).announcements
        joins = given.settings.primary_join_subnets
        for network in given.networks:
            entry = target.networks.get(network.nad)
            if entry is None or network.role != "primary":
                continue
            addresses = {name: one.join_addresses(joins) for name, one in given.zone.nodes.items()}
            found += POD_ANNOUNCEMENTS.function(
                PodAnnouncementsInput(
                    id=f"{target.id}/{network.nad}",
                    topology=network.topology,
                    role=network.role,
                    number=network.number,
                    state=status.state,
                    target=target.hypervisor or "",
                    entry=entry,
                    join_addresses={name: one for name, one in addresses.items() if one},
                    join_subnet_v6=next((one for one in joins if ":" in one), ""),
                    transit_router=network.transit_router,
                )
            ).announcements
        return tuple(found)

    def _neighbours_at(self, given: VmRowsInput, home: str | None, entry: PortAddresses) -> tuple[HomeNeighbour, ...]:
        """Living addresses of the home subnet, but the VM's own."""
        most = self._settings.announce_neighbours_max
        if home is None or not most:
            return ()
        own = {str(parse_any(one)) for one in entry.addresses}
        found: dict[str, HomeNeighbour] = {}
        for copy in self._cache.copies_near(given.zone.nodes[home].subnets):
            port = copy.networks[DEFAULT_NETWORK]
            for address in (str(parse_any(one)) for one in port.addresses):
                if address not in own and given.zone.home_of((address,)) == home:
                    at_home = copy.hypervisor == home
                    found[address] = HomeNeighbour(address=address, mac=port.mac, at_home=at_home)
            if len(found) >= most:
                break
        return tuple(list(found.values())[:most])

    async def _tell_fabric(
        self, table: NeighbourTable, given: VmRowsInput, network: PodNetwork, status: MigrationStatus | None
    ) -> None:
        """See that the entries of this machine for the VM's copies here are as they have to be."""
        own = given.settings.evpn.hypervisor
        for copy in given.copies:
            entry = copy.networks.get(network.nad)
            if copy.hypervisor != own or entry is None:
                continue
            wanted = NEIGHBOURS.function(
                NeighboursInput(hypervisor=own, completed=copy.completed, status=_status_by_hypervisor(status))
            )
            addresses = [str(parse_any(one)) for one in entry.addresses]
            lives_here = any(one.hypervisor == own and not one.completed for one in given.copies)
            if wanted.delete and not (copy.completed and lives_here):
                await table.delete(network.network, entry.mac, addresses)
            elif wanted.ensure:
                await table.ensure(network.network, entry.mac, addresses)


def _status_by_hypervisor(status: MigrationStatus | None) -> StatusView | None:
    if status is None:
        return None
    source: Copy | None = status.source
    return StatusView(
        state=status.state,
        source=source.hypervisor if source is not None else None,
        target=status.target.hypervisor or "",
    )
