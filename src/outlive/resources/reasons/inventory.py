"""What an import left out, assumed or found odd: nothing that stops it, everything that its user has to know."""

from __future__ import annotations

import enum
from typing import Final

from outlive.resources.reasons.model import Table, Template


class ImportNotice(enum.StrEnum):
    """What an import reports besides its counts."""

    COLUMN_UNKNOWN = "column-unknown"
    COLUMNS_NOT_MAPPED = "columns-not-mapped"
    VM_ZONE_FROM_HOST = "vm-zone-from-host"
    HOST_ZONE_FROM_VMS = "host-zone-from-vms"
    HOST_ZONE_UNKNOWN = "host-zone-unknown"
    VM_ZONE_KEPT = "vm-zone-kept"
    VM_LARGER_THAN_HOST = "vm-larger-than-host"
    HOST_OVERFULL = "host-overfull"
    HOST_RENAMED = "host-renamed"
    HOST_VANISHED = "host-vanished"
    VM_VANISHED = "vm-vanished"
    HOST_KEPT = "host-kept"
    BARE_METAL = "bare-metal"
    LEVEL_UNKNOWN = "level-unknown"
    HOST_DOWN = "host-down"
    HOST_DISABLED = "host-disabled"
    VM_WITHOUT_HOST = "vm-without-host"
    VM_NOT_RUNNING = "vm-not-running"
    SERVER_WITHOUT_HOST = "server-without-host"
    SERVER_REPEATED = "server-repeated"
    FLAVOR_UNKNOWN = "flavor-unknown"
    ROW_UNREADABLE = "row-unreadable"
    RULES_CONTRADICT = "import-rules-contradict"
    CONTAINERS = "containers"
    NODES_WITHOUT_VMS = "nodes-without-vms"
    MIRRORED_INSTANCES = "mirrored-instances"


TABLE: Final[Table] = {
    ImportNotice.COLUMN_UNKNOWN: Template(
        "{file}: column {column!r} is not read, no field has that name",
        lambda fields: f"did you mean {fields['near']}? rename the column" if fields["near"] else "",
    ),
    ImportNotice.COLUMNS_NOT_MAPPED: Template("{file}: columns that are not read: {columns}"),
    ImportNotice.VM_ZONE_FROM_HOST: Template("VMs without a zone, which take that of their host: {count} ({vms})"),
    ImportNotice.HOST_ZONE_FROM_VMS: Template(
        "hosts whose zone the source does not say, which take that of the VMs: {count} ({hosts})",
        "add services.json if that is wrong: openstack compute service list -f json",
    ),
    ImportNotice.HOST_ZONE_UNKNOWN: Template(
        "hosts without a zone, which hold no slot of a VM that has one: {count} ({hosts})",
        "give their zones, or leave those of the VMs out",
    ),
    ImportNotice.VM_LARGER_THAN_HOST: Template(
        "VMs that are larger than the host that they are on: {count} ({vms})",
        "check sizes and units; where hosts are overcommitted, say so with --overcommit",
    ),
    ImportNotice.VM_ZONE_KEPT: Template(
        "VMs in another zone than their host, set before this import: {count} ({vms})",
        "no slot of theirs is in the zone of their host; give a column zone to change that",
    ),
    ImportNotice.HOST_OVERFULL: Template(
        "VMs need more than their hosts have: {count} ({hosts})",
        "check sizes and units; where hosts are overcommitted, say so with --overcommit {overcommit}",
    ),
    ImportNotice.HOST_RENAMED: Template(
        "hosts whose names cannot be names of objects: {count} ({hosts})",
        "the name of the source is in status.sourceName, and Nova is answered with it",
    ),
    ImportNotice.HOST_VANISHED: Template(
        "hosts that the source no longer lists, which hold no slots until it does: {count} ({hosts})",
        "delete them with --prune; if these files are only a part of the source, import them with --partial",
    ),
    ImportNotice.VM_VANISHED: Template(
        "VMs that the source no longer lists, which get no slots and take no room: {count} ({vms})",
        "delete them with --prune; if these files are only a part of the source, import them with --partial",
    ),
    ImportNotice.HOST_KEPT: Template(
        "hosts that the source no longer lists and whose daemon is ours, which count on: {count} ({hosts})",
        "delete one once its daemon has left the cluster",
    ),
    ImportNotice.BARE_METAL: Template(
        "machines of Ironic and the servers on them, which are no VMs and are left out: {count} ({names})"
    ),
    ImportNotice.LEVEL_UNKNOWN: Template(
        "VMs with a protection level that the settings do not have ({levels}), which count as having none: "
        "{count} ({vms})",
        "define it under protection.levels in outlive.yaml, or correct the column",
    ),
    ImportNotice.HOST_DOWN: Template(
        "hosts that are down by their source, which hold no slots: {count} ({hosts})",
        "import again once they are up",
    ),
    ImportNotice.HOST_DISABLED: Template("hosts that are disabled, which get no new slots: {count} ({hosts})"),
    ImportNotice.VM_WITHOUT_HOST: Template(
        "VMs on no host, which get no slots: {count} ({vms})", "name their hosts, or find some with --place"
    ),
    ImportNotice.VM_NOT_RUNNING: Template("VMs that do not run by their status, which get no slots: {count} ({vms})"),
    ImportNotice.SERVER_WITHOUT_HOST: Template("servers without a host, which are left out: {count}"),
    ImportNotice.SERVER_REPEATED: Template("further rows of the same server, which are left out: {count}"),
    ImportNotice.FLAVOR_UNKNOWN: Template(
        "servers whose flavor is in no table, which are left out: {count} ({flavors})",
        "their size is not known; import them from another source",
    ),
    ImportNotice.RULES_CONTRADICT: Template("VM {vm}: its rules cannot be met: {why}", "{remedy}"),
    ImportNotice.ROW_UNREADABLE: Template("rows of {table} that cannot be read, which are left out: {count}"),
    ImportNotice.CONTAINERS: Template(
        "containers (LXC), which count as VMs because a node that takes them over needs their room: {count}",
        "leave them out with --where type=qemu",
    ),
    ImportNotice.NODES_WITHOUT_VMS: Template("nodes on which KubeVirt runs no VMs, which are left out: {count}"),
    ImportNotice.MIRRORED_INSTANCES: Template(
        "instances with mirrored disks, which can only run on their two nodes; that is not looked at: {count}"
    ),
}
