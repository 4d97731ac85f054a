"""Nova as a source of hosts, VMs and flavors: everything at first, and what has changed from then on.

Between two full readings only servers that changed, the hypervisors that they are on or left, and the states of
services are asked for; all flavors, hypervisors or groups are read again when a changed server names one that is not
known. Each question about changes goes back further
than the last, by Nova's own clock, so that a change is rather seen twice than missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from outlive.base import Clock, Unavailable
from outlive.drivers.libvirt.threads import Threads
from outlive.drivers.openstack.inventory import HOST_FIELDS, Item, Lists, fill_inventory, service_host
from outlive.drivers.openstack.nova import DELETED, NovaClient, Record
from outlive.inventory import Inventory, OpenStackSettings, Reading
from outlive.resources import Problems

NOVA: Final = "nova"
HYPERVISORS_LIMIT: Final = 32
"""Hypervisors that are asked for one by one; where more have changed, all are listed."""
STATE_FIELDS: Final = ("host", "state", "status", "zone", "disabled_reason", "forced_down")
"""What of a service a host's record is made from."""


class NovaInventory:
    """An ``InventorySource``."""

    name: str = NOVA

    def __init__(self, nova: NovaClient, settings: OpenStackSettings, clock: Clock) -> None:
        self._nova = nova
        self._settings = settings
        self._clock = clock
        self._threads = Threads(1, "records of Nova")
        self._full_at: float | None = None
        """When everything was read last, by the monotonic clock."""
        self._as_of = 0.0
        """By Nova's clock."""
        self._servers: dict[str, Record] = {}
        self._lists: dict[str, list[Record] | None] = {}

    def forget(self) -> None:
        """See ``InventorySource``."""
        self._full_at = None

    async def find_missing(self, vm_ids: Iterable[str]) -> frozenset[str]:
        """See ``InventorySource``."""
        return await self._nova.find_deleted(vm_ids)

    async def read(self) -> Reading:
        """See ``InventorySource``."""
        now = self._clock.monotonic()
        if self._full_at is None or now - self._full_at >= float(self._settings.full_interval):
            return await self._read_all(now)
        listed, as_of = await self._nova.list_servers(since=self._as_of - float(self._settings.overlap))
        services = await self._nova.list_services()
        found = _index_by_id(listed)
        deleted = frozenset(key for key, one in found.items() if one.get("status") == DELETED)
        changed = {key: one for key, one in found.items() if key not in deleted and self._servers.get(key) != one}
        before, after = (
            {str(one.get("host")): tuple(one.get(name) for name in STATE_FIELDS) for one in each}
            for each in (self._lists["services"] or [], services)
        )
        hosts = frozenset(host for host, state in after.items() if before.get(host) != state)
        lists = {**self._lists, "services": services}
        # hosts that these servers are on now, or were on as far as we know
        moved = {**changed, **{key: found[key] for key in deleted}}
        records = [*moved.values(), *(self._servers[key] for key in moved if key in self._servers)]
        touched = frozenset(host for one in records if isinstance(host := one.get(HOST_FIELDS[0]), str) and host)
        fresh = await self._read_stale_lists(changed, lists)
        if "hypervisors" not in fresh:
            lists["hypervisors"] = await self._refresh_hypervisors(lists["hypervisors"] or [], touched)
        inventory = Inventory(what=NOVA, problems=Problems(), has_hosts=True, has_vms=True)
        if changed or hosts or touched or fresh:
            inventory = await self._map_records(lists, changed.values(), with_flavors="flavors" in fresh)
            if "hypervisors" not in fresh:
                inventory.hosts = [host for host in inventory.hosts if host.name in hosts | touched]
        self._as_of, self._lists = as_of, lists
        self._servers.update(changed)
        for key in deleted:
            self._servers.pop(key, None)
        return Reading(inventory, full=False, deleted=deleted)

    async def _read_all(self, now: float) -> Reading:
        # servers first: a host that one of them is on is listed afterwards
        servers, as_of = await self._nova.list_servers()
        lists: dict[str, list[Record] | None] = {
            "hypervisors": await self._nova.list_hypervisors(),
            "services": await self._nova.list_services(),
            "aggregates": await self._nova.list_aggregates(),
            "flavors": await self._nova.list_flavors(),
            "server_groups": await self._nova.list_server_groups(),
        }
        by_id = _index_by_id(servers)
        inventory = await self._map_records(lists, by_id.values(), with_flavors=True)
        self._full_at, self._as_of, self._servers, self._lists = now, as_of, by_id, lists
        return Reading(inventory, full=True)

    async def _refresh_hypervisors(self, hypervisors: list[Record], hosts: frozenset[str]) -> list[Record]:
        """The hypervisors, those of these hosts as they are now: what they have left changes with their servers."""
        concerned = [one for one in hypervisors if service_host(_build_item("", one)) in hosts]
        if len(concerned) > HYPERVISORS_LIMIT:
            return await self._nova.list_hypervisors()
        now: dict[str, Record] = {}
        for one in concerned:
            known = str(one.get("id"))
            now[known] = await self._nova.find_hypervisor(known) or one
        return [now.get(str(one.get("id")), one) for one in hypervisors]

    async def _read_stale_lists(
        self, changed: Mapping[str, Record], lists: dict[str, list[Record] | None]
    ) -> frozenset[str]:
        """Read those lists again that lack what a changed server names; which ones."""
        flavors = {one.get("name") for one in lists["flavors"] or ()}
        hosts = {service_host(_build_item("", one)) for one in lists["hypervisors"] or ()}
        fresh: set[str] = set()
        for one in changed.values():
            flavor, host = one.get("flavor"), one.get(HOST_FIELDS[0])
            if isinstance(flavor, dict) and flavor.get("original_name") not in flavors:
                fresh.add("flavors")
            if host and host not in hosts:
                fresh.update(("hypervisors", "aggregates"))
        if changed.keys() - self._servers.keys():
            fresh.add("server_groups")
        for name in sorted(fresh):
            lists[name] = await getattr(self._nova, f"list_{name}")()
        return frozenset(fresh)

    async def _map_records(
        self, lists: Mapping[str, list[Record] | None], servers: Iterable[Record], *, with_flavors: bool
    ) -> Inventory:
        """The records as an inventory, in a thread: there may be many."""
        servers = list(servers)

        def work() -> Inventory:
            inventory = Inventory(what=NOVA, problems=Problems(), has_hosts=True, has_vms=True)
            inventory.sizes_remedy = "see openstack flavor list --all"
            groups = lists["server_groups"]
            filled = fill_inventory(
                inventory,
                Lists(
                    hypervisors=items_of("hypervisor", lists["hypervisors"], inventory.problems),
                    servers=items_of("server", servers, inventory.problems),
                    flavors=items_of("flavor", lists["flavors"], inventory.problems),
                    aggregates=items_of("aggregate", lists["aggregates"], inventory.problems),
                    services=items_of("service", lists["services"], inventory.problems),
                    server_groups=None if groups is None else items_of("server group", groups, inventory.problems),
                ),
            )
            if not with_flavors:
                filled.flavors = []
            return filled

        return await self._threads.submit(work)


def _index_by_id(servers: Iterable[Record]) -> dict[str, Record]:
    """Servers by id; ``Unavailable`` for a list in which one has none."""
    found: dict[str, Record] = {}
    for one in servers:
        server_id = one.get("id")
        if not isinstance(server_id, str) or not server_id:
            raise Unavailable("lists a server without an id", place="Nova", remedy="see its log")
        found[server_id] = one
    return found


def items_of(what: str, records: Iterable[Record] | None, problems: Problems | None = None) -> list[Item]:
    """The records of one list as entries of an inventory."""
    return [_build_item(what, one, problems) for one in records or ()]


def _build_item(what: str, record: Record, problems: Problems | None = None) -> Item:
    name = record.get("id") or record.get("name") or record.get("host") or ""
    return Item(f"Nova's {what} {name}", record, {}, problems or Problems())
