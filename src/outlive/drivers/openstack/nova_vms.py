"""VMs straight from Nova's API, for clouds whose VMs are not kept as objects.

The first list is whole; from then on only what has changed is asked for, and now and then everything again. A list is
as old as ``pollInterval`` at most, or the call fails. A server that a whole list lacks stays until Nova says of it that
it is gone (``nova``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from outlive.base import Clock, Unavailable
from outlive.drivers.libvirt.threads import Threads
from outlive.drivers.openstack.inventory import BareMetal, Lists, find_bare_metal
from outlive.drivers.openstack.nova import DELETED, NovaClient, Record
from outlive.drivers.openstack.nova_inventory import items_of
from outlive.drivers.synced_tables import RAM_MIB_MOST, VCPUS_MOST, flavor_row, parse_rows, server_row
from outlive.inventory import OpenStackSettings
from outlive.placement import MIB, MILLI, FlavorRow, VmList, VmView, join_row, join_rows

SOURCE: Final = "nova"


class NovaVms:
    """A ``VMSource``."""

    def __init__(self, nova: NovaClient, settings: OpenStackSettings, clock: Clock) -> None:
        self._nova = nova
        self._settings = settings
        self._clock = clock
        self._turn = asyncio.Lock()
        self._threads = Threads(1, "records of Nova")
        self._servers: dict[str, Record] = {}
        self._flavors: list[Record] = []
        self._metal = find_bare_metal(Lists())
        self._as_of = 0.0
        self._full_at: float | None = None
        self._read_at: float | None = None

    async def list_vms(self) -> VmList:
        """Every server with a host and a flavor whose size is known, by id."""
        async with self._turn:
            await self._refresh()
            return await self._threads.submit(lambda: _join_records(self._servers, self._flavors))

    async def get_vm(self, vm_id: str) -> VmView | None:
        """One server as Nova has it now."""
        record = await self._nova.find_server(vm_id)
        if record is None or _is_on_metal(self._metal, record):
            return None
        servers, _ = parse_rows([_server_fields(record)], server_row)
        flavors, _ = parse_rows(map(_flavor_fields, self._flavors), flavor_row)
        server = next(iter(servers), None)
        known = (*flavors, *_find_deleted_flavors([record], flavors))
        flavor = next((one for one in known if server is not None and one.name == server.flavor_name), None)
        view = join_row(server, flavor)
        return _apply_own_size(view, record) if view is not None else None

    async def _refresh(self) -> None:
        now = self._clock.monotonic()
        if self._read_at is not None and now - self._read_at < float(self._settings.poll_interval):
            return
        if self._full_at is None or now - self._full_at >= float(self._settings.full_interval):
            await self._read_all(now)
        else:
            listed, as_of = await self._nova.list_servers(since=self._as_of - float(self._settings.overlap))
            for key, one in [(_server_id(one), one) for one in listed]:
                if one.get("status") == DELETED or _is_on_metal(self._metal, one):
                    self._servers.pop(key, None)
                else:
                    self._servers[key] = one
            self._as_of = as_of
        self._read_at = now

    async def _read_all(self, now: float) -> None:
        listed, as_of = await self._nova.list_servers()
        flavors, hypervisors = await self._nova.list_flavors(), await self._nova.list_hypervisors()
        services = await self._nova.list_services()
        found = {_server_id(one): one for one in listed}
        missing = sorted(self._servers.keys() - found.keys())
        gone = await self._nova.find_deleted(missing) if missing else frozenset()
        found.update((key, self._servers[key]) for key in missing if key not in gone)
        metal, vms = await self._threads.submit(lambda: _exclude_metal(found, hypervisors, services, flavors))
        self._servers, self._flavors, self._metal, self._as_of, self._full_at = vms, flavors, metal, as_of, now


def _exclude_metal(
    by_id: Mapping[str, Record],
    hypervisors: Iterable[Record],
    services: Iterable[Record],
    flavors: Iterable[Record],
) -> tuple[BareMetal, dict[str, Record]]:
    """The machines of Ironic, and the servers that are on none."""
    lists = Lists(
        hypervisors=items_of("hypervisor", hypervisors),
        services=items_of("service", services),
        flavors=items_of("flavor", flavors),
    )
    metal = find_bare_metal(lists)
    return metal, {key: one for key, one in by_id.items() if not _is_on_metal(metal, one)}


def _is_on_metal(metal: BareMetal, server: Record) -> bool:
    return metal.is_server(items_of("server", [server])[0])


def _join_records(by_id: Mapping[str, Record], listed: Iterable[Record]) -> VmList:
    servers, bad_servers = parse_rows((_server_fields(by_id[key]) for key in sorted(by_id)), server_row)
    flavors, bad_flavors = parse_rows(map(_flavor_fields, listed), flavor_row)
    found = join_rows(servers, (*flavors, *_find_deleted_flavors(by_id.values(), flavors)))
    unreadable = {"servers": bad_servers, "flavors": bad_flavors}
    return msgspec.structs.replace(
        found,
        vms=tuple(_apply_own_size(vm, by_id.get(vm.id, {})) for vm in found.vms),
        unreadable={what: number for what, number in unreadable.items() if number},
    )


class _Size(msgspec.Struct, frozen=True):
    """Of a server, as Nova keeps it with the server. ``ram`` is MiB."""

    vcpus: Annotated[int, Meta(ge=0, le=VCPUS_MOST)]
    ram: Annotated[int, Meta(ge=0, le=RAM_MIB_MOST)]


def _apply_own_size(view: VmView, record: Record) -> VmView:
    """The VM with the size that it was made with: its flavor's name may be that of another one by now."""
    try:
        size = msgspec.convert(record.get("flavor"), _Size)
    except msgspec.ValidationError:
        return msgspec.structs.replace(view, source=SOURCE)
    cpu, memory = size.vcpus * MILLI, size.ram * MIB
    return msgspec.structs.replace(view, source=SOURCE, cpu_milli=cpu, memory_bytes=memory)


def _server_id(record: Record) -> str:
    found = record.get("id")
    if not isinstance(found, str) or not found:
        raise Unavailable("lists a server without an id", place="Nova", remedy="see its log")
    return found


def _server_fields(record: Record) -> Record:
    """A record of Nova as a row: the flavor's name stands beside the other members."""
    flavor = record.get("flavor")
    return {
        "id": record.get("id"),
        "name": record.get("name"),
        "status": record.get("status"),
        "tenant_id": record.get("tenant_id"),
        "os_ext_srv_attr_host": record.get("OS-EXT-SRV-ATTR:host"),
        "os_ext_az_availability_zone": record.get("OS-EXT-AZ:availability_zone"),
        "created": record.get("created"),
        "flavor_name": flavor.get("original_name") if isinstance(flavor, dict) else {},
        "os_type": None,
    }


def _flavor_fields(record: Record) -> Record:
    specs = record.get("extra_specs")
    return {
        "name": record.get("name"),
        "vcpus": record.get("vcpus"),
        "ram": record.get("ram"),
        "disk": record.get("disk"),
        "extra_specs": msgspec.json.encode(specs if isinstance(specs, dict) else {}).decode(),
    }


def _find_deleted_flavors(records: Iterable[Record], known: Iterable[FlavorRow]) -> list[FlavorRow]:
    """Flavors that were deleted and that servers still have, with the sizes that Nova kept with the server."""
    names = {flavor.name for flavor in known}
    kept: dict[str, Record] = {}
    for record in records:
        flavor: Any = record.get("flavor")
        if isinstance(flavor, dict) and isinstance(name := flavor.get("original_name"), str) and name not in names:
            kept.setdefault(name, _flavor_fields({**flavor, "name": name}))
    return list(parse_rows(kept.values(), flavor_row)[0])
