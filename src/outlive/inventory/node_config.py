"""The configuration of hosts of another node daemon, read into our own: one host's ``node.yaml``, and the objects of
the cluster that it describes.

What that daemon knew by other names is translated, its defaults and aliases apply, and whatever has no place here is
reported, each key with the reason. Passwords are read and never passed on.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from outlive.base import BadInput
from outlive.inventory.node_networks import read_system_networks
from outlive.node.fencing import FencingConfigInput, FencingConfigResult
from outlive.node.functions import SriovDevice
from outlive.node.links import check_system_networks
from outlive.resources import (
    CLUSTER,
    CONSOLE_LINES,
    LOG_LINES,
    Cluster,
    ClusterSpec,
    FencingPolicy,
    FencingSpec,
    Hypervisor,
    HypervisorSpec,
    ObjectMeta,
    Timing,
)

HOSTS_LIMIT: Final = 5000
SECTIONS: Final = ("cluster", "timer", "fencing")
"""Sections of the format that is read, by which it is told from others."""
DROPPED: Final[Mapping[str, str]] = {
    "subsystem": "what runs on a host follows from its sections",
    "cluster.name": "a cluster has no name here",
    "cluster.networks": "see section links of node.yaml and spec.systemNetworks of Cluster/default",
    "database": "the store is that of outlive up",
    "timer.monitoring_interval": "health is scored with every renewal",
    "fencing.disable_on_ipmi_failure": "a host is recovered only with proof, whatever its BMC says",
    "fencing.actions": "VMs are recovered as soon as their host is proven dead, and never without proof",
    "fencing.transition_grace": "see transitionGraceS of Cluster/default",
    "fencing.watchdog.device": "the guard is started with it: outlive guard --watchdog",
    "fencing.watchdog.mode": "hosts are armed one by one: outlive arm HOST",
    "logging.stdout_logging": "without log.file the log goes to standard error",
    "logging.log_colours": "log.form is console or json",
    "logging.log_dates": "every line has its time",
    "logging.log_keepalives": "figures are in HypervisorUsage",
    "logging.log_cluster_details": "see outlive status",
    "logging.log_monitoring_details": "see outlive describe hypervisor",
    "guest_networking": "see section links of node.yaml",
    "ceph": "see section storage of node.yaml",
    "api": "outlive up serves the API, with tokens of its own",
    "autobackup": "backups of disks are not part of Outlive",
    "automirror": "mirrors of disks are not part of Outlive",
    "path": "see section libvirt of node.yaml for console logs",
}
"""Keys without a place here, each with everything below it, and why."""

_NUMBER = re.compile(r"(\d+)\D*\Z")
_replace = msgspec.structs.replace


@dataclass(slots=True)
class Imported:
    """What was read."""

    host: str
    node: dict[str, dict[str, Any]]
    """Sections of that host's ``node.yaml``."""
    cluster: Cluster
    hypervisors: list[Hypervisor]
    fencing: FencingConfigInput
    """The timing as that daemon had it, for ``config.validate_fencing``."""
    dropped: list[str] = field(default_factory=list)
    """``key: why`` of what has no place here."""
    warnings: list[str] = field(default_factory=list)
    user: str = ""
    """Whom the BMCs know; the password is for ``outlive secret set``."""


class _Source:
    """The document: values by dotted key, which were read, and what is wrong with them."""

    def __init__(self, document: Mapping[str, Any], place: str) -> None:
        self._document = document
        self._place = place
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None, *, kind: type | tuple[type, ...] = object) -> Any:
        value: Any = self._document
        for word in key.split("."):
            if not isinstance(value, Mapping) or word not in value:
                return default
            value = value[word]
        self.read.add(key)
        if value is None:
            return default
        kinds = kind if isinstance(kind, tuple) else (kind,)
        accepts_bool = object in kinds or bool in kinds
        if not isinstance(value, kind) or (isinstance(value, bool) and not accepts_bool):
            raise self.bad_value(key, f"is {type(value).__name__}, which it cannot be")
        return value

    def require(self, key: str, kind: type | tuple[type, ...]) -> Any:
        value = self.get(key, kind=kind)
        if value is None:
            raise self.bad_value(key, "is missing")
        return value

    def read_number(self, default: float, *keys: str) -> float:
        """The first of these keys that is there; at least 0."""
        for key in keys:
            value = self.get(key, kind=(int, float))
            if value is not None:
                if value < 0:
                    raise self.bad_value(key, f"{value} is below 0")
                return float(value)
        return default

    def bad_value(self, key: str, why: str) -> BadInput:
        return BadInput(f"{key} {why}", place=self._place, remedy="correct it there, and import again")

    def unread_keys(self) -> list[str]:
        leaves = _leaf_keys(self._document, "")
        return sorted(key for key in leaves if not any(key == one or key.startswith(f"{one}.") for one in self.read))


def _leaf_keys(value: Any, path: str) -> list[str]:
    if not isinstance(value, Mapping) or not value:
        return [path] if path else []
    return [leaf for key, part in value.items() for leaf in _leaf_keys(part, f"{path}.{key}" if path else str(key))]


def read_node_config(document: Mapping[str, Any], place: str, host: str) -> Imported:
    """Everything; ``BadInput`` names the first key that is missing or wrong. ``host``: whose file it is."""
    _check_format(document, place)
    source = _Source(document, place)
    names = _read_names(source, "cluster.all_nodes")
    coordinators = _read_names(source, "cluster.coordinator_nodes")
    short = host.partition(".")[0].lower()
    if short not in names:
        raise source.bad_value("cluster.all_nodes", f"does not have {short}, whose configuration this is to become")
    if strangers := sorted(set(coordinators) - set(names)):
        raise source.bad_value("cluster.coordinator_nodes", f"has {strangers[0]}, which is not among all nodes")
    interval_s = source.read_number(5, "timer.keepalive_interval")
    if interval_s <= 0:
        raise source.bad_value("timer.keepalive_interval", "must be above 0")
    fencing = _read_fencing(source, interval_s)
    address = str(source.require("fencing.ipmi.hostname", str))
    user = str(source.require("fencing.ipmi.username", str))
    source.require("fencing.ipmi.password", str)
    links, system_networks = read_system_networks(source.get)
    cluster = _build_cluster(source, fencing)
    node = _node_sections(source, short)
    imported = Imported(
        host=short,
        node={**node, "links": links} if links else node,
        cluster=_replace(cluster, spec=_replace(cluster.spec, system_networks=system_networks)),
        hypervisors=[_build_hypervisor(name, name in coordinators, address) for name in names],
        fencing=fencing,
        user=user,
    )
    if functions := _read_functions(source):
        imported.node = {**imported.node, "links": {**imported.node.get("links", {}), "sriov": functions}}
    try:
        check_system_networks(system_networks)
    except BadInput as error:
        raise source.bad_value("cluster.networks", f"cannot be: {error.message}") from None
    if len(coordinators) % 2 == 0:
        imported.warnings.append(f"{len(coordinators)} coordinators are an even number: add or take away one")
    if links:
        imported.warnings.append(
            "the host's own network will be made by its daemon: leave section links out where others make it, and set "
            "links.evpn where a routing daemon enters where VXLANs flood to"
        )
    imported.dropped = [f"{key}: {DROPPED.get(key, 'is not known')}" for key in _group_keys(source.unread_keys())]
    return imported


def _check_format(document: Mapping[str, Any], place: str) -> None:
    """``BadInput`` for a file of another format: no key of it is missing, all are elsewhere."""
    if any(section in document for section in SECTIONS):
        return
    wanted = f"import the one that has {', '.join(SECTIONS)} as sections of their own"
    for name, section in document.items():
        if isinstance(section, Mapping) and {"cluster", "system"} & section.keys():
            message = f"is of an older format, in which section {name} has everything; only the newer one is read"
            raise BadInput(
                message, place=place, remedy=f"upgrade that daemon, which writes its file anew, and {wanted}"
            )
    raise BadInput("is no configuration of that daemon", place=place, remedy=wanted)


def _read_names(source: _Source, key: str) -> list[str]:
    given = source.require(key, (list, tuple))
    if not given or len(given) > HOSTS_LIMIT or not all(isinstance(one, str) and one for one in given):
        raise source.bad_value(key, "is no list of hosts")
    return [str(one).partition(".")[0].lower() for one in given]


def _read_fencing(source: _Source, interval_s: float) -> FencingConfigInput:
    watchdog = source.get("fencing.watchdog.mode", "automatic", kind=(str, bool))
    if watchdog is False:  # so YAML reads a plain off
        watchdog = "off"
    source.read.discard("fencing.watchdog.mode")  # it is checked, and said that it has no place here
    actions = {
        name: source.get(f"fencing.actions.{name}", default, kind=str)
        for name, default in (("successful_fence", "migrate"), ("failed_fence", "none"))
    }
    for name, action in actions.items():
        if action not in ("migrate", "none"):
            raise source.bad_value(f"fencing.actions.{name}", f"is {action!r}: it is migrate or none")
        source.read.discard(f"fencing.actions.{name}")
    if watchdog not in ("off", "automatic", "required"):
        raise source.bad_value("fencing.watchdog.mode", f"is {watchdog!r}: it is off, automatic or required")
    intervals = "fencing.intervals"
    return FencingConfigInput(
        keepalive_interval=interval_s,
        fence_intervals=source.read_number(6, f"{intervals}.fence_intervals"),
        saving_throws=source.read_number(6, f"{intervals}.saving_throws"),
        self_fence_intervals=source.read_number(
            0,
            f"{intervals}.self_fence_intervals",
            f"{intervals}.suicide_intervals",
            f"{intervals}.suicide_interval",
        ),
        watchdog_timeout=source.read_number(15, "fencing.watchdog.timeout"),
        watchdog_mode=watchdog,
        failed_fence=actions["failed_fence"],
        successful_fence=actions["successful_fence"],
    )


def _node_sections(source: _Source, host: str) -> dict[str, dict[str, Any]]:
    """Sections of ``node.yaml``; the server is for ``outlive node join``."""
    coordinator = host in _read_names(source, "cluster.coordinator_nodes")
    section: dict[str, Any] = {
        "name": host,
        "mode": "coordinator" if coordinator else "hypervisor",
        "addresses": {name: _host_address(source, name, host) for name in ("cluster", "storage")},
    }
    node = {"shutdownLimit": f"{source.read_number(180, 'timer.vm_shutdown_timeout'):g}s"}
    means = source.get("migration.mem_means", "provisioned", kind=str)
    if means not in ("provisioned", "free"):
        raise source.bad_value("migration.mem_means", f"is {means!r}: it is provisioned or free")
    lines: dict[str, Any] = {}
    log: dict[str, Any] = {"level": "debug" if source.get("logging.debug_logging", False, kind=bool) else "info"}
    folder = source.get("path.system_log_directory", "", kind=str)
    if source.get("logging.file_logging", False, kind=bool) and folder:
        log["file"] = f"{folder.rstrip('/')}/outlive-node.log"
    kept = source.get("logging.node_log_lines", False, kind=(int, bool))
    if source.get("logging.zookeeper_logging", False, kind=bool):
        lines["logLines"] = min(LOG_LINES, kept or LOG_LINES)
    if (console := source.get("logging.console_log_lines", kind=int)) is not None:
        lines["consoleLines"] = max(0, min(CONSOLE_LINES, console))
    return {"host": section, "node": {**node, "memMeans": means, **lines}, "log": log}


def _host_address(source: _Source, network: str, host: str) -> str:
    """Of the host on a network: a literal, or by the number at the end of its name."""
    key = f"cluster.networks.{network}.ipv4"
    base = f"{source.require(f'{key}.network_address', str)}/{source.require(f'{key}.netmask', (str, int))}"
    try:
        inside = ipaddress.ip_network(base)
    except ValueError as error:
        raise source.bad_value(f"{key}.network_address", f"is no network: {error}") from None
    floating = source.require(f"{key}.floating_address", str)
    if not _is_inside(floating, inside):
        raise source.bad_value(f"{key}.floating_address", f"{floating} is not in {inside}")
    chosen = str(
        source.get(f"cluster.networks.{network}.node_ip_selection", kind=str)
        or source.require(f"{key}.node_ip_selection", str)
    )
    if chosen != "by-id":
        if not _is_inside(chosen, inside):
            raise source.bad_value(f"{key}.node_ip_selection", f"{chosen} is neither by-id nor in {inside}")
        return chosen
    found = _NUMBER.search(host)
    if found is None:
        raise source.bad_value("cluster.all_nodes", f"has {host}, whose name has no number to find its addresses by")
    number = int(found.group(1))
    if not 1 <= number <= inside.num_addresses - 2:
        raise source.bad_value(f"{key}.node_ip_selection", f"has no address number {number} in {inside}")
    return str(inside[number])


def _is_inside(text: str, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    try:
        return ipaddress.ip_address(text.partition("/")[0]) in network
    except ValueError:
        return False


def _build_cluster(source: _Source, fencing: FencingConfigInput) -> Cluster:
    """The timing as that daemon had it, in both of our profiles."""
    interval_s = float(fencing.keepalive_interval)
    timing = Timing(
        renew_s=interval_s,
        silence_s=interval_s * float(fencing.fence_intervals),
        throws=int(fencing.saving_throws),
        throw_s=interval_s,
    )
    steady = timing
    if fencing.self_fence_intervals:
        limit_s = interval_s * float(fencing.self_fence_intervals)
        steady = _replace(timing, guard_timeout_s=limit_s, watchdog_s=float(fencing.watchdog_timeout))
    selector = source.get("migration.target_selector", "mem", kind=str)
    if selector not in ("mem", "memprov", "memfree", "load", "vcpus", "vms"):
        raise source.bad_value("migration.target_selector", f"is {selector!r}, which is no selector")
    policy = FencingPolicy(
        timings={"steady": steady, "fast": timing} if fencing.fence_intervals else {},
        storm_fraction=min(1.0, source.read_number(0.5, "fencing.storm_fraction")),
    )
    spec = ClusterSpec(fencing=policy, default_selector=selector, maintenance=not fencing.fence_intervals)
    return Cluster(metadata=ObjectMeta(name=CLUSTER), spec=spec)


def _build_hypervisor(name: str, coordinator: bool, address: str) -> Hypervisor:
    number = _NUMBER.search(name)
    where = address.replace("{node_id}", number.group(1) if number is not None else name)
    spec = HypervisorSpec(
        management="node",
        mode="coordinator" if coordinator else "hypervisor",
        fencing=FencingSpec(driver="ipmi", address=where, secret="ipmi"),  # noqa: S106 - the name of a secret
    )
    return Hypervisor(metadata=ObjectMeta(name=name), spec=spec)


def _read_functions(source: _Source) -> list[dict[str, Any]]:
    """``links.sriov`` of ``node.yaml``; none if it is not enabled. A card is called ``phy`` or ``device`` there."""
    key = "guest_networking.sriov_device"
    enabled = source.get("guest_networking.sriov_enable", False, kind=bool)
    devices = source.get(key, (), kind=(list, tuple))
    found: list[dict[str, Any]] = []
    for number, entry in enumerate(devices if enabled else ()):
        given = entry if isinstance(entry, dict) else {}
        document = {
            "device": given.get("phy") or given.get("device"),
            "count": given.get("vfcount"),
            **({"mtu": given["mtu"]} if given.get("mtu") else {}),
        }
        try:
            msgspec.convert(document, SriovDevice)
        except msgspec.ValidationError as error:
            raise BadInput(
                f"{key}[{number}] cannot be: {error}", remedy="write phy, vfcount and mtu there, and import again"
            ) from None
        found.append(document)
    return found


def _group_keys(keys: Sequence[str]) -> list[str]:
    """The keys, those of one group that is dropped as a whole together."""
    return list(
        dict.fromkeys(next((one for one in DROPPED if key == one or key.startswith(f"{one}.")), key) for key in keys)
    )


def fencing_lines(result: FencingConfigResult) -> list[str]:
    """What was wrong or doubtful with the timing, for people."""
    said = {**_ERRORS, **_WARNINGS}
    return [f"{code}: {said[code]}" for code in (*result.errors, *result.warnings)]


_ERRORS: Final[Mapping[str, str]] = {
    "failed_fence_needs_self_fence": "VMs of a host that was not off were moved, though it was not empty",
    "failed_fence_needs_watchdog": "VMs of a host that was not switched off were moved, though it needed no watchdog",
    "self_fence_too_late": "hosts emptied themselves later than their VMs were started elsewhere",
}
_WARNINGS: Final[Mapping[str, str]] = {
    "fencing_disabled": "nobody was fenced; the cluster begins in maintenance (outlive maintenance off ends it)",
    "self_fence_exceeds_fence": "hosts emptied themselves later than they were suspected",
    "short_detection": "a host is condemned after less than 30 s of silence",
    "no_recovery": "nothing was recovered; here VMs are, once their host is proven dead",
}
