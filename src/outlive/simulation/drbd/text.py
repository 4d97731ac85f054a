"""What ``drbdsetup`` prints: ``status --json``, ``show --json``, and the lines of ``events2``.

The forms are those of drbd-utils with DRBD 9.3, as recorded on real hosts; ``newer`` adds what later tools print
(paths, ``tls``, ``open``). Lines of change show the values that changed; a few values are always shown together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from outlive.simulation.drbd.network import DrbdTimes
from outlive.simulation.drbd.replicas import DISKLESS, DrbdOptions, DrbdPeer, DrbdReplica
from outlive.simulation.drbd.resource import ReplicatedResource

NOTHING_SHOWN: Final = "[\n]\n"
DUMP_END: Final = "exists -"
KINDS: Final = ("resource", "connection", "device", "peer-device", "path")
"""In the order in which changes of one moment are printed."""

_ENCODER: Final = msgspec.json.Encoder()


class DrbdObject(msgspec.Struct, frozen=True):
    """One object of events2."""

    identity: str
    values: tuple[tuple[str, ...], ...]
    """Groups of ``key:value`` that are printed together."""
    hidden: int = 0
    """A change of it is printed as a line without values."""


ObjectKey = tuple[int, int, int]
"""Number of the kind, node id of the peer, volume."""


# --- status


def status_text(found: Iterable[tuple[ReplicatedResource, DrbdReplica]], newer: bool = False) -> str:
    """``status --json`` of these replicas, in this order."""
    texts = [_format_status(resource, replica, newer) for resource, replica in found]
    return "[\n" + "".join(f"{{\n{text}}}\n" + ("" if text is texts[-1] else ",\n") for text in texts) + "]\n\n"


def _format_status(resource: ReplicatedResource, replica: DrbdReplica, newer: bool) -> str:
    head = {
        "name": resource.name,
        "node-id": replica.node_id,
        "role": replica.role,
        "suspended": bool(replica.suspended),
        "suspended-user": replica.suspended_user,
        "suspended-no-data": replica.suspended_no_data,
        "suspended-fencing": False,
        "suspended-quorum": replica.suspended_quorum,
        "force-io-failures": replica.force_io_failures,
        "write-ordering": "none" if replica.client else "flush",
    }
    devices = []
    for number, volume in enumerate(replica.volumes):
        device = {
            "volume": number,
            "minor": replica.minor + number,
            "disk-state": volume.disk,
            "client": replica.client,
            **({"open": bool(replica.openers)} if newer else {}),
            "quorum": volume.quorum,
            "size": resource.size_kib,
            "read": 0,
            "written": volume.written_kib,
            "al-writes": int(volume.written_kib > 0),
            "bm-writes": int(volume.written_kib > 0),
            "upper-pending": replica.pending,
            "lower-pending": 0,
        }
        devices.append(f"    {{\n{_format_members(device, 6)}    }}")
    connections = [_format_connection(resource, replica, peer, newer) for peer in replica.peers.values()]
    return (
        _format_members(head, 2, more=True)
        + '  "devices": [\n'
        + ",\n".join(devices)
        + ' ],\n  "connections": [\n'
        + ",\n".join(connections)
        + " ]\n"
    )


def _format_connection(resource: ReplicatedResource, replica: DrbdReplica, peer: DrbdPeer, newer: bool) -> str:
    waiting = 0 if peer.is_connected or peer.client else replica.pending
    head = {
        "peer-node-id": peer.node_id,
        "name": peer.node,
        "connection-state": peer.state,
        "congested": False,
        "peer-role": peer.role,
        **({"tls": False} if newer else {}),
        "ap-in-flight": 8 * waiting,
        "rs-in-flight": 0,
    }
    text = _format_members(head, 6, more=True).replace(f'"{peer.state}",', f'"{peer.state}", ', 1)
    if newer:
        text += f'      "paths": [ {json.dumps(_path_document(resource, replica, peer))} ],\n'
    devices = []
    for number, disk in enumerate(peer.disks):
        missing = peer.out_of_sync_kib[number]
        device = {
            "volume": number,
            "replication-state": peer.replication[number],
            "peer-disk-state": disk,
            "peer-client": peer.client and peer.is_connected,
            "resync-suspended": "no",
            "received": peer.received_kib,
            "sent": peer.sent_kib,
            "out-of-sync": missing,
            "pending": waiting,
            "unacked": 0,
            "has-sync-details": False,
            "has-online-verify-details": False,
        }
        share = 100 * (1 - missing / resource.size_kib)
        members = f'{_format_members(device, 10, more=True)}          "percent-in-sync": {share:.2f}\n'
        devices.append(f"        {{\n{members}        }}")
    return f"    {{\n{text}" + '      "peer_devices": [\n' + ",\n".join(devices) + " ]\n    }"


def _format_members(members: Mapping[str, object], indent: int, *, more: bool = False) -> str:
    lines = [f'{" " * indent}"{key}": {_ENCODER.encode(value).decode()}' for key, value in members.items()]
    return ",\n".join(lines) + (",\n" if more else "\n")


def _path_document(resource: ReplicatedResource, replica: DrbdReplica, peer: DrbdPeer) -> dict[str, Any]:
    def describe_endpoint(node: str) -> dict[str, Any]:
        return {"address": resource.address_of(node), "port": resource.port, "family": "ipv4"}

    return {
        "this_host": describe_endpoint(replica.node),
        "remote_host": describe_endpoint(peer.node),
        "established": peer.established,
    }


# --- show


def show_text(found: Iterable[tuple[ReplicatedResource, DrbdReplica]], times: DrbdTimes) -> str:
    """``show --json`` of these replicas: of the options those that differ from the kernel's defaults."""
    shown = [_resource_document(resource, replica, times) for resource, replica in found]
    return msgspec.json.format(_ENCODER.encode(shown), indent=4).decode() + "\n" if shown else NOTHING_SHOWN


def _resource_document(resource: ReplicatedResource, replica: DrbdReplica, times: DrbdTimes) -> dict[str, Any]:
    return {
        "resource": resource.name,
        "options": _changed_options(resource.options),
        "_this_host": {
            "node-id": replica.node_id,
            "volumes": [
                {
                    "volume_nr": number,
                    "device_minor": replica.minor + number,
                    **(
                        {"backing-disk": "none"}
                        if volume.disk == DISKLESS
                        else {"backing-disk": resource.disk_path(number), "meta-disk": "internal"}
                    ),
                }
                for number, volume in enumerate(replica.volumes)
            ],
        },
        "connections": [
            {
                "path": {
                    "_this_host": f"ipv4 {resource.address_of(replica.node)}:{resource.port}",
                    "_remote_host": f"ipv4 {resource.address_of(peer.node)}:{resource.port}",
                },
                "net": {
                    **({"allow-two-primaries": True} if resource.options.allow_two_primaries else {}),
                    **_format_number("connect-int", times.connect_interval_s, 10),
                    **_format_number("ping-int", times.ping_interval_s, 10),
                    **({"rr-conflict": "retry-connect"} if resource.options.rr_conflict == "retry-connect" else {}),
                    **_format_number("ping-timeout", times.ping_timeout_s * 10, 5),
                    "_name": peer.node,
                },
                "_peer_node_id": peer.node_id,
            }
            for peer in replica.peers.values()
        ],
    }


def _changed_options(options: DrbdOptions) -> dict[str, Any]:
    shown = {
        "on-no-data-accessible": (options.on_no_data_accessible, "io-error"),
        "auto-promote": (options.auto_promote, True),
        "quorum": (options.quorum, "off"),
        "on-no-quorum": (options.on_no_quorum, "suspend-io"),
        "on-suspended-primary-outdated": (options.on_suspended_primary_outdated, "disconnect"),
    }
    return {name: value for name, (value, default) in shown.items() if value != default}


def _format_number(name: str, value: float, default: int) -> dict[str, str]:
    return {} if value == default else {name: f"{value:g}"}


# --- events2


def event_objects(
    resource: ReplicatedResource, replica: DrbdReplica, newer: bool = False
) -> dict[ObjectKey, DrbdObject]:
    """What events2 knows of a replica, in the order of its first dump."""
    name = f"name:{resource.name}"
    promotion = (f"may_promote:{_format_bool(replica.may_promote)}", f"promotion_score:{replica.promotion_score}")
    suspended = ",".join(replica.suspended) or "no"
    found: dict[ObjectKey, DrbdObject] = {
        (0, 0, 0): DrbdObject(
            name,
            (
                (f"role:{replica.role}",),
                (f"suspended:{suspended}",),
                (f"force-io-failures:{_format_bool(replica.force_io_failures)}",),
                promotion,
            ),
        )
    }
    peers = sorted(replica.peers.values(), key=lambda peer: -peer.node_id)
    for peer in peers:
        identity = f"{name} peer-node-id:{peer.node_id} conn-name:{peer.node}"
        found[1, peer.node_id, 0] = DrbdObject(identity, ((f"connection:{peer.state}",), (f"role:{peer.role}",)))
    for number, volume in enumerate(replica.volumes):
        backing = "none" if volume.disk == DISKLESS else resource.disk_path(number)
        identity = f"{name} volume:{number} minor:{replica.minor + number} backing_dev:{backing}"
        opened = (f"open:{_format_bool(bool(replica.openers))}",) if newer else ()
        values = (
            f"disk:{volume.disk}",
            f"client:{_format_bool(replica.client)}",
            *opened,
            f"quorum:{_format_bool(volume.quorum)}",
        )
        found[2, 0, number] = DrbdObject(identity, (values,))
    for peer in peers:
        identity = f"{name} peer-node-id:{peer.node_id} conn-name:{peer.node}"
        for number, disk in enumerate(peer.disks):
            client = _format_bool(peer.client and peer.is_connected)
            found[3, peer.node_id, number] = DrbdObject(
                f"{identity} volume:{number}",
                (
                    (f"replication:{peer.replication[number]}",),
                    (f"peer-disk:{disk}", f"peer-client:{client}"),
                    ("resync-suspended:no",),
                ),
                peer.hidden,
            )
        ends = [f"ipv4:{resource.address_of(node)}:{resource.port}" for node in (replica.node, peer.node)]
        found[4, peer.node_id, 0] = DrbdObject(
            f"{identity} local:{ends[0]} peer:{ends[1]}", ((f"established:{_format_bool(peer.established)}",),)
        )
    return found


def dump_lines(objects: Mapping[ObjectKey, DrbdObject]) -> list[str]:
    """The ``exists`` lines of one resource."""
    return [_format_event("exists", key, one.identity, one.values) for key, one in objects.items()]


def change_lines(before: Mapping[ObjectKey, DrbdObject], after: Mapping[ObjectKey, DrbdObject]) -> Iterator[str]:
    """What became of the objects of one resource, as the lines of one moment."""
    for key in sorted(before.keys() - after.keys(), reverse=True):
        yield _format_event("destroy", key, before[key].identity, ())
    for key in sorted(after):
        old, new = before.get(key), after[key]
        if old is None:
            yield _format_event("create", key, new.identity, new.values)
        elif old != new:
            groups = [group for earlier, group in zip(old.values, new.values, strict=True) if earlier != group]
            yield _format_event("change", key, new.identity, groups)


def _format_event(action: str, key: ObjectKey, identity: str, groups: Iterable[tuple[str, ...]]) -> str:
    return " ".join([action, KINDS[key[0]], identity, *(value for group in groups for value in group)])


def _format_bool(value: bool) -> str:
    return "yes" if value else "no"
