"""Faults: what an operator has to know about the state of the cluster, and what each takes off its health.

A fault is a code about one object (``{subject}``). A role computes from what it sees which faults are active now, and
``outlive.runtime.faults`` records them; no decision rests on one (docs/concepts/safety.md#woken).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from outlive.resources.reasons.model import Message, Value, fill
from outlive.resources.reasons.recovery import MAY_RUN

FULL_HEALTH: Final = 100
"""Health without a fault."""


class Severity(enum.StrEnum):
    """How soon somebody has to see to a fault; by it alerts and notifications are chosen."""

    CRITICAL = "critical"
    """At once, at night as well: a VM is down or may be lost, or nobody would notice the next failure."""
    WARNING = "warning"
    """On the same day: nothing is lost yet, and the next failure could cost something."""
    INFO = "info"
    """When there is time."""


class FaultCode(enum.StrEnum):
    """All faults, by who reports them."""

    # daemons, fencers and recovery, each of its own parts
    WORKER_CRASHED = "worker-crashed"
    # fencers
    HOST_DEAD = "host-dead"
    FENCE_UNCONFIRMED = "fence-unconfirmed"
    FENCE_WAITS = "fence-waits"
    STORM_HOLD = "storm-hold"
    RATE_HOLD = "rate-hold"
    POWER_UNREACHABLE = "power-unreachable"
    PROOF_CONTRADICTED = "proof-contradicted"
    CUT_FAILING = "cut-failing"
    ISOLATION_UNRECORDED = "isolation-unrecorded"
    # daemons
    MEMBERSHIP_GONE = "membership-gone"
    HOST_UNKNOWN = "host-unknown"
    HOST_NOT_EMPTY = "host-not-empty"
    HOST_CANNOT_JOIN = "host-cannot-join"
    HOST_ISOLATED = "host-isolated"
    GUARD_NOT_ARMED = "guard-not-armed"
    GUESTS_OUTSIDE_SLICE = "guests-outside-slice"
    HYPERVISOR_AUTOSTART = "hypervisor-autostart"
    SYSTEM_DIFFERS = "system-differs"
    FOREIGN_DOMAINS = "foreign-domains"
    FUNCTIONS_MISSING = "functions-missing"
    FUNCTIONS_REFUSED = "functions-refused"
    STORE_WENT_BACK = "store-went-back"
    UNKNOWN_VM = "unknown-vm"
    HOST_DEGRADING = "host-degrading"
    HOST_STORAGE_LOST = "host-storage-lost"
    VM_STORAGE_LOST = "vm-storage-lost"
    DRAIN_INCOMPLETE = "drain-incomplete"
    FIGURES_STALE = "figures-stale"
    CLUSTER_KEY_OLD = "cluster-key-old"
    VERSION_BEHIND = "version-behind"
    LINKS_NOT_MADE = "links-not-made"
    NETWORKS_NOT_MADE = "networks-not-made"
    PRIMARY_DUTY = "primary-duty"
    PRIMARY_STALLED = "primary-stalled"
    PRIMARY_ADDRESS = "primary-address"
    DHCP_FAILED = "dhcp-failed"
    DHCP_RANGE_FULL = "dhcp-range-full"
    NAME_SERVER_FAILED = "name-server-failed"
    METADATA_FAILED = "metadata-failed"
    FIREWALL_REFUSED = "firewall-refused"
    NETWORK_NOT_SERVED = "network-not-served"
    # the primary coordinator
    STORAGE_DAEMON_OUT = "storage-daemon-out"
    STORAGE_DAEMONS_OUT = "storage-daemons-out"
    STORAGE_WARN = "storage-warn"
    STORAGE_ERROR = "storage-error"
    STORAGE_UNKNOWN = "storage-unknown"
    # failover
    VM_LOCATION_UNKNOWN = "vm-location-unknown"
    # commitments
    COMMITMENTS_DISAGREE = "commitments-disagree"
    COMMITMENTS_NOT_SYNCED = "commitments-not-synced"
    # recovery
    VM_HELD = "vm-held"
    VM_FAILED = "vm-failed"
    DELETION_WAITS = "deletion-waits"
    RULES_CONTRADICT = "rules-contradict"
    STORE_RESTORED = "store-restored"
    CLUSTER_DISARMED = "cluster-disarmed"
    NO_COORDINATOR = "no-coordinator"
    HOST_QUARANTINED = "host-quarantined"
    POWER_NOT_REHEARSED = "power-not-rehearsed"
    MEMORY_OVERCOMMITTED = "memory-overcommitted"
    MEMORY_OVERPROVISIONED = "memory-overprovisioned"
    # the network controller
    NETWORK_AWAY = "network-away"
    NETWORK_PORT_REFUSED = "network-port-refused"
    NETWORK_CONFLICT = "network-conflict"
    CHASSIS_SILENT = "chassis-silent"
    CHASSIS_UNCLEAR = "chassis-unclear"
    # the syncer or the mirror of an inventory
    INVENTORY_STALE = "inventory-stale"
    INVENTORY_LEFT_OUT = "inventory-left-out"
    # the server, the first for as long as it lasts
    STORE_NOT_WRITABLE = "store-not-writable"
    STORE_QUOTA = "store-quota"
    STORE_REFUSES = "store-refuses"
    OBJECT_MALFORMED = "object-malformed"
    SCHEMA_UPGRADE_WAITING = "schema-upgrade-waiting"
    SCHEMA_UPGRADE_STUCK = "schema-upgrade-stuck"
    AUDIT_NOT_WRITTEN = "audit-not-written"
    AUDIT_SUMMARIZED = "audit-summarized"
    AUDIT_LOST = "audit-lost"
    REFUSALS_SURGE = "refusals-surge"
    TOKEN_ENDS = "token-ends"  # noqa: S105 - a code
    TOKENS_FILE = "tokens-file-old"
    AUTHORITY_ENDS = "authority-ends"
    NOTIFY_FAILING = "notify-failing"
    BACKUP_FAILED = "backup-failed"
    BACKUP_OLD = "backup-old"

    @property
    def delta(self) -> int:
        """What it takes off the cluster's health."""
        return FAULTS[self].delta

    @property
    def severity(self) -> Severity:
        """How soon somebody has to see to it."""
        return FAULTS[self].severity


def severity_of(code: str) -> Severity:
    """Of the code of a fault in the store; one that this version does not know is critical, to be seen."""
    return FaultCode(code).severity if code in FaultCode.__members__.values() else Severity.CRITICAL


POWER_CODES: Final = frozenset({FaultCode.POWER_NOT_REHEARSED, FaultCode.POWER_UNREACHABLE})
"""Faults of BMCs: nothing is said of them while somebody works on the controller."""


class FaultEntry(NamedTuple):
    """How a fault reads, how soon somebody has to see to it, and what it takes off the cluster's health of 100."""

    severity: Severity
    delta: int
    text: str | Callable[[Mapping[str, Value]], str]
    remedy: str | Callable[[Mapping[str, Value]], str] = ""


def _unconfirmed_text(fields: Mapping[str, Value]) -> str:
    if fields.get("cut"):
        return "{subject} is condemned, cut off, and not proven dead; VMs that it can still reach wait: {why}"
    return "{subject} is condemned and cannot be proven dead, so its VMs wait: {why}"


def _render_held(fields: Mapping[str, Value]) -> str:
    what = "is not restarted elsewhere" if fields["reason"] in MAY_RUN else "is not running"
    return f"VM {fields['subject']} {what}: {fields['why']}"


def _disagreement_text(fields: Mapping[str, Value]) -> str:
    return "{count} times what is said of commitments disagrees ({subject}), such as {first}: {why}".format_map(fields)


def _disagree_remedy(fields: Mapping[str, Value]) -> str:
    if fields["safe"]:
        return "set commitments.enableConsistencyRepair, which repairs this class without losing anything"
    return "see docs/reference/commitments.md#consistency: this is the business of {owner}, and people judge it"


_RESTORED: Final[Mapping[Value, str]] = {
    "restored": "the store was restored from a backup",
    "went-back": "the store went back behind what it had acknowledged, and nobody said that it was restored",
}


def _restored_text(fields: Mapping[str, Value]) -> str:
    waits = "the cluster is paused until every host has registered what it runs, and waits for"
    return f"{_RESTORED[fields['reason']]}: {waits} {fields['hosts']}"


FAULTS: Final[Mapping[FaultCode, FaultEntry]] = {
    FaultCode.WORKER_CRASHED: FaultEntry(
        Severity.WARNING,
        25,
        "{subject}: {part} failed with an unexpected error, and is retried: {why}",
        "see the log of the process for part.crashed, and report it as a defect; restarting the process may help",
    ),
    FaultCode.HOST_DEAD: FaultEntry(
        Severity.CRITICAL,
        50,
        "{subject} is dead ({proof})",
        "see what happened to {subject}: outlive why {subject}",
    ),
    FaultCode.FENCE_UNCONFIRMED: FaultEntry(
        Severity.CRITICAL,
        50,
        lambda fields: _unconfirmed_text(fields).format_map(fields),
        "make sure that it is off, then: outlive fence {subject} --confirm-off --reason ...",
    ),
    FaultCode.FENCE_WAITS: FaultEntry(
        Severity.CRITICAL,
        10,
        "{subject} is to be fenced, and no other coordinator lives: nobody would be left to prove it dead",
        "start the daemon of another coordinator, or make a living one (outlive host promote HOST) and restart its "
        "daemon: it fences {subject} at once; or empty it (outlive drain {subject}) and switch it off",
    ),
    FaultCode.STORM_HOLD: FaultEntry(
        Severity.CRITICAL,
        50,
        "so many hosts are silent at once that nobody is condemned: it may be the network, or the store",
        "look at the network between hosts and store; if the hosts are really dead: outlive fence release --reason ...",
    ),
    FaultCode.RATE_HOLD: FaultEntry(
        Severity.CRITICAL,
        50,
        "{host} is silent and is not condemned: {limit} failure domains were fenced within {window_s:g} s",
        "see what goes on; then, if the hosts are really dead: outlive fence release --reason ...",
    ),
    FaultCode.POWER_UNREACHABLE: FaultEntry(
        Severity.CRITICAL,
        10,
        "{subject} cannot be switched {to}: {why}",
        "check its BMC, address, credentials and system uuid (spec.fencing)",
    ),
    FaultCode.PROOF_CONTRADICTED: FaultEntry(
        Severity.CRITICAL,
        50,
        "{subject} was proven dead by {kinds}, and still ran virtual machines",
        "find out why {kinds} was wrong; it is not trusted for this host until: outlive host trust {subject} {words}",
    ),
    FaultCode.CUT_FAILING: FaultEntry(
        Severity.CRITICAL,
        50,
        "{subject} may reach its VMs' disks and networks again: {why}",
        "make sure at once that {subject} is off",
    ),
    FaultCode.ISOLATION_UNRECORDED: FaultEntry(
        Severity.CRITICAL,
        25,
        "{subject} is isolated through epoch {through} although its Membership knows of no isolation, and none of its "
        "epochs after {dead_through} is dead: VMs that start there do not reach their disks",
        "make sure that {subject} has booted since it was isolated, then remove the isolation by hand "
        "(docs/how-to/storage.md); or move its VMs away",
    ),
    FaultCode.MEMBERSHIP_GONE: FaultEntry(
        Severity.CRITICAL,
        25,
        "{why}",
        "a Membership that is applied again does not help; switch {subject} off, then: "
        "outlive fence {subject} --confirm-off --reason ...; it joins again when it is switched on",
    ),
    FaultCode.HOST_UNKNOWN: FaultEntry(
        Severity.WARNING,
        25,
        "Hypervisor/{subject} is not in the store, so {subject} does not join; what runs there runs on",
        "apply the document of {subject} again (outlive apply -f FILE), or import the inventory that it is in",
    ),
    FaultCode.HOST_NOT_EMPTY: FaultEntry(Severity.CRITICAL, 25, "{why}", "{remedy}"),
    FaultCode.HOST_CANNOT_JOIN: FaultEntry(Severity.WARNING, 25, "{why}", "{remedy}"),
    FaultCode.HOST_ISOLATED: FaultEntry(
        Severity.CRITICAL, 25, "{why}", "reboot {subject}: it joins again in its new boot, and its isolation ends"
    ),
    FaultCode.HOST_QUARANTINED: FaultEntry(
        Severity.WARNING,
        25,
        "{subject} died {deaths} times and is in quarantine until {until}: it takes no VM, and those on it stay",
        "see why it dies, then: outlive host release {subject}",
    ),
    FaultCode.HOST_STORAGE_LOST: FaultEntry(
        Severity.CRITICAL,
        50,
        "{subject} has lost the storage of {vms}: {why}; of each of them: {then}",
        "check the network of {subject} to the storage, and the storage: outlive why {subject}",
    ),
    FaultCode.VM_STORAGE_LOST: FaultEntry(
        Severity.CRITICAL,
        25,
        "the disks of VM {subject} do not serve it on {host}: {why}; {then}",
        "check its storage: whether it is full, and whether it answers; outlive why {subject}",
    ),
    FaultCode.GUESTS_OUTSIDE_SLICE: FaultEntry(
        Severity.CRITICAL,
        25,
        "{vms} on {subject} have processes outside the slice of guests, which its guard would not end: {subject} does "
        "not count as armed",
        "find with systemd-cgls the group that all guests are below (machine.slice; machine without systemd-machined), "
        "set it as libvirt.slice in node.yaml and as --cgroup of the guard, then move them away or restart them",
    ),
    FaultCode.HYPERVISOR_AUTOSTART: FaultEntry(
        Severity.CRITICAL,
        25,
        "{subject} starts no VM, because something besides its daemon starts domains there: {why}",
        "run on {subject} what the fault says, and destroy (virsh destroy) what has been started that way",
    ),
    FaultCode.SYSTEM_DIFFERS: FaultEntry(
        Severity.WARNING,
        5,
        "{subject} may have another machine's BMC: {why}",
        "see on {subject} which machine it is (dmidecode -s system-uuid) and which one {address} controls, and mend "
        "spec.fencing; where its controller really says another uuid than its firmware, acknowledge the fault",
    ),
    FaultCode.FUNCTIONS_MISSING: FaultEntry(
        Severity.WARNING,
        5,
        "{subject} does not have the virtual functions that its configuration names: {why}",
        "check the card, or correct links.sriov of node.yaml on {subject}; everything else of {subject} is served",
    ),
    FaultCode.FUNCTIONS_REFUSED: FaultEntry(
        Severity.INFO,
        2,
        "virtual functions of {subject} are not as they are wanted: {why}",
        "take the setting away (outlive host function set), or check the card; the other functions are served",
    ),
    FaultCode.FOREIGN_DOMAINS: FaultEntry(
        Severity.INFO,
        5,
        "{domains} on {subject} are no VMs of this cluster: they run on, nobody restarts them elsewhere, and their "
        "use is not counted",
        "move them to another machine; or end them (virsh shutdown), and then outlive vm define their definitions",
    ),
    FaultCode.STORE_WENT_BACK: FaultEntry(
        Severity.CRITICAL,
        25,
        "the store went back behind what it had acknowledged to {subject}, and nobody had said so: the cluster is "
        "paused until every host has registered what it runs",
        "find out who restored the store, and from which backup; start the daemons of the hosts that it waits for",
    ),
    FaultCode.UNKNOWN_VM: FaultEntry(
        Severity.WARNING,
        10,
        "{host} runs {subject}, which the store does not know: it was restored from a backup, or somebody deleted "
        "{subject} while the daemon of {host} was away",
        "import it again, or stop it on {host}; if {host} is off for good: outlive fence {host} --confirm-off "
        "--reason ...",
    ),
    FaultCode.HOST_DEGRADING: FaultEntry(Severity.WARNING, 10, "{subject} degrades: {causes}; {vms}", "{remedy}"),
    FaultCode.DRAIN_INCOMPLETE: FaultEntry(
        Severity.INFO,
        5,
        "{count} virtual machines are still on {subject} or on their way to it, such as {vm}",
        "make room on other hosts, widen their host limits, or stop them",
    ),
    FaultCode.FIGURES_STALE: FaultEntry(
        Severity.WARNING,
        5,
        "figures of {subject} are old: {who} {how}",
        "check that on {subject}, and the log of its daemon; VMs that run go on",
    ),
    FaultCode.VM_LOCATION_UNKNOWN: FaultEntry(
        Severity.WARNING, 10, "VM {subject} is covered by nothing: {why}", "{remedy}"
    ),
    FaultCode.COMMITMENTS_DISAGREE: FaultEntry(Severity.INFO, 5, _disagreement_text, _disagree_remedy),
    FaultCode.COMMITMENTS_NOT_SYNCED: FaultEntry(
        Severity.WARNING,
        5,
        "commitments were not compared with Limes since {since}: {why}",
        "check Keystone and Limes, and Outlive's user there; until they answer no commitment is lost",
    ),
    FaultCode.VM_HELD: FaultEntry(Severity.CRITICAL, 5, _render_held, "{remedy}"),
    FaultCode.VM_FAILED: FaultEntry(
        Severity.CRITICAL,
        10,
        "VM {subject} has failed: {why}",
        "remove the cause, then: outlive vm start {subject}",
    ),
    FaultCode.DELETION_WAITS: FaultEntry(Severity.WARNING, 5, "{why}", "{remedy}"),
    FaultCode.RULES_CONTRADICT: FaultEntry(
        Severity.WARNING, 5, "the rules of VM {subject} cannot be met: {why}", "{remedy}"
    ),
    FaultCode.STORE_RESTORED: FaultEntry(
        Severity.CRITICAL,
        30,
        _restored_text,
        "start the daemons of the hosts that it waits for; or, once you know that one of them runs nothing: outlive "
        "fence HOST --confirm-off --reason ...; or, once all of them run nothing: outlive restore --confirm HOST,...",
    ),
    FaultCode.NO_COORDINATOR: FaultEntry(
        Severity.CRITICAL,
        30,
        "no coordinator lives: a host that dies is not fenced, and one that is isolated stays so",
        "start the daemon of a coordinator; or outlive host promote HOST, of a living one, and restart its daemon",
    ),
    FaultCode.CLUSTER_DISARMED: FaultEntry(
        Severity.WARNING,
        10,
        "the cluster is disarmed ({mode}) since {since}, {until}: no host is condemned and nothing is recovered{still}",
        "outlive arm --cluster, once the work is done",
    ),
    FaultCode.VERSION_BEHIND: FaultEntry(
        Severity.WARNING,
        25,
        "the daemon of {subject} takes no new orders and fences nobody, because it is older than the server: {why}",
        "install the server's version on {subject}, then: systemctl reload outlive-node",
    ),
    FaultCode.CLUSTER_KEY_OLD: FaultEntry(
        Severity.WARNING,
        10,
        "{subject} does not have the cluster's key {key}, so it opens no secret that is sealed for it: {why}",
        "remove the cause on {subject}; its daemon tries again automatically",
    ),
    FaultCode.LINKS_NOT_MADE: FaultEntry(
        Severity.WARNING,
        10,
        "{subject} has not made its own network as it is wanted: {why}",
        "see section links of its node.yaml and spec.systemNetworks of Cluster/default; what was undone is tried again "
        "when one of them changes, or its daemon is restarted",
    ),
    FaultCode.NETWORKS_NOT_MADE: FaultEntry(
        Severity.WARNING,
        10,
        "{subject} has not made networks of VMs: {why}",
        "remove the cause on {subject}: it tries again automatically, and takes no VM on these networks meanwhile",
    ),
    FaultCode.PRIMARY_DUTY: FaultEntry(
        Severity.WARNING,
        10,
        "{subject} could not {what}, which only the primary coordinator does: {why}",
        "see the log of its daemon; what did not stop may still run there beside that of the primary, and what did not "
        "start another host can do: outlive host primary NAME",
    ),
    FaultCode.PRIMARY_STALLED: FaultEntry(
        Severity.WARNING,
        10,
        "{previous} did not give up the role of the primary coordinator within {limit_s:g} s: {subject} took it over",
        "check the daemon of {previous}: some of its duties may still be running there",
    ),
    FaultCode.PRIMARY_ADDRESS: FaultEntry(
        Severity.WARNING,
        25,
        "{subject} is the primary coordinator and could not {what}: {why}",
        "check the device on {subject}; or hand the role over: outlive host primary NAME",
    ),
    FaultCode.DHCP_FAILED: FaultEntry(
        Severity.WARNING,
        25,
        "{subject} serves no DHCP on {networks}: {why}",
        "remove the cause on {subject}: it tries again; or hand the role over: outlive host primary NAME",
    ),
    FaultCode.DHCP_RANGE_FULL: FaultEntry(
        Severity.WARNING,
        25,
        "new guests of {networks} get no address: {why}",
        "enlarge the range of the network, or delete leases of guests that are gone: outlive get dhcpleases",
    ),
    FaultCode.NAME_SERVER_FAILED: FaultEntry(
        Severity.WARNING,
        10,
        "{subject} answers no names of {networks} networks: {why}",
        "remove the cause on {subject}: it tries again; or hand the role over: outlive host primary NAME",
    ),
    FaultCode.METADATA_FAILED: FaultEntry(
        Severity.WARNING,
        10,
        "{subject} answers no metadata on {networks}: {why}",
        "remove the cause on {subject}: it tries again; or hand the role over: outlive host primary NAME",
    ),
    FaultCode.FIREWALL_REFUSED: FaultEntry(
        Severity.WARNING,
        25,
        "the rules of {networks} are not in force on {subject}, the former ones are: {why}",
        "correct the rule: outlive network acl; without former ones nothing is routed to or from the network",
    ),
    FaultCode.NETWORK_NOT_SERVED: FaultEntry(
        Severity.WARNING,
        10,
        "{subject} serves nothing to {networks}: {why}",
        "correct the network: outlive network modify NAME",
    ),
    FaultCode.STORAGE_DAEMON_OUT: FaultEntry(
        Severity.WARNING,
        50,
        "storage daemon {subject} of {cluster} is out: its data is copied to others, and nothing new is put on it",
        "check its disk and its host; then: ceph osd in {subject}; or remove it for good",
    ),
    FaultCode.STORAGE_DAEMONS_OUT: FaultEntry(
        Severity.WARNING,
        50,
        "{count} storage daemons of {subject} are out, {first} and others: their data is copied to others",
        "check their hosts and their network: outlive storage daemons; then: ceph osd in ID",
    ),
    FaultCode.STORAGE_WARN: FaultEntry(
        Severity.WARNING,
        10,
        "storage cluster {subject} warns: {why}",
        "see what it says: outlive storage status {subject}",
    ),
    FaultCode.STORAGE_ERROR: FaultEntry(
        Severity.CRITICAL,
        50,
        "storage cluster {subject} is in error, and may not serve every disk: {why}",
        "see what it says: outlive storage status {subject}",
    ),
    FaultCode.STORAGE_UNKNOWN: FaultEntry(
        Severity.WARNING,
        5,
        "nobody knows how storage cluster {subject} does, its figures are old: {why}",
        "check its monitors and managers: ceph status; virtual machines are renewed and recovered all the same",
    ),
    FaultCode.GUARD_NOT_ARMED: FaultEntry(
        Severity.WARNING,
        10,
        "{subject} is to be armed and is not, so that its watchdog proves nothing: {why}",
        "remove what the guard of {subject} names, or outlive disarm {subject}",
    ),
    FaultCode.POWER_NOT_REHEARSED: FaultEntry(
        Severity.WARNING,
        10,
        "if {subject} died now its BMC would prove nothing: {why}",
        "check its BMC, its address, and spec.fencing.systemUuid",
    ),
    FaultCode.MEMORY_OVERCOMMITTED: FaultEntry(
        Severity.CRITICAL,
        50,
        "running VMs have {taken} of memory, and without the largest host there are {room}",
        "add a host, or stop VMs",
    ),
    FaultCode.MEMORY_OVERPROVISIONED: FaultEntry(
        Severity.INFO,
        10,
        "if all VMs ran they would have {taken} of memory, and without the largest host there are {room}",
        "add a host, or delete VMs that are not needed",
    ),
    FaultCode.NETWORK_AWAY: FaultEntry(
        Severity.CRITICAL,
        25,
        "OVN does not answer ({names}), so no network follows a VM that moves or is recovered: {why}",
        "check the database and the network to it; guests that stay where they are keep their network",
    ),
    FaultCode.NETWORK_PORT_REFUSED: FaultEntry(
        Severity.WARNING,
        10,
        "{subject} is not programmed, so its VM lacks that network: {why}",
        "outlive describe virtualmachineport {subject}",
    ),
    FaultCode.NETWORK_CONFLICT: FaultEntry(
        Severity.CRITICAL, 25, "rows in OVN about {subject} contradict each other: {why}", "{remedy}"
    ),
    FaultCode.CHASSIS_SILENT: FaultEntry(
        Severity.CRITICAL,
        25,
        "{subject} does not follow OVN: its chassis {chassis} has change {change}, and OVN is at {now}",
        "see ovn-controller on {subject}, and its way to the southbound database; moves there are aborted until then",
    ),
    FaultCode.CHASSIS_UNCLEAR: FaultEntry(
        Severity.CRITICAL, 25, "{subject} could not be isolated from its ports: {why}", "{remedy}"
    ),
    FaultCode.INVENTORY_STALE: FaultEntry(
        Severity.WARNING,
        20,
        "what is known of the hosts and VMs of {subject} is as of {since}: {why}",
        "check its Nova and Keystone, or its API server; until they answer nothing is deleted, and changes there are "
        "not known",
    ),
    FaultCode.INVENTORY_LEFT_OUT: FaultEntry(
        Severity.WARNING,
        10,
        "not as in its cluster, but as it was understood last: {what}",
        "mend the objects there, or inventory.clusters in the settings",
    ),
    FaultCode.STORE_NOT_WRITABLE: FaultEntry(
        Severity.CRITICAL,
        50,
        "the store cannot write, so nothing is planned, fenced or recovered: {why}",
        "free space where the store is, or repair it: the disk of the state directory, or etcd",
    ),
    FaultCode.STORE_REFUSES: FaultEntry(
        Severity.CRITICAL,
        50,
        "the API server does not do what the controllers need, so that some of their work stands still: {what}",
        "mend what it names; nothing is lost, and all of it is tried again",
    ),
    FaultCode.AUDIT_NOT_WRITTEN: FaultEntry(
        Severity.WARNING,
        25,
        "the server does not write down who does what, {omitted} entries are missing so far: {why}",
        "free space on the disk of the state directory, or see who owns its folder audit",
    ),
    FaultCode.AUDIT_SUMMARIZED: FaultEntry(
        Severity.INFO,
        10,
        "the audit log only counts further entries of tokens that have written their share of a day: {count}",
        "see what they do: outlive audit list --name TOKEN; revoke a token that is misused, or raise audit.files",
    ),
    FaultCode.AUDIT_LOST: FaultEntry(
        Severity.WARNING,
        10,
        "the audit log begins at {begin}: older entries are gone, although audit.keep asks for them",
        "see who writes so much: outlive audit list; raise audit.files, or copy finished files to another machine and "
        "lower audit.keep",
    ),
    FaultCode.REFUSALS_SURGE: FaultEntry(
        Severity.WARNING,
        10,
        "the server refused many requests within {window_s:g} s: {count}",
        "see who sends them: outlive audit list --refused; renew the token of a program that has an old one, and keep "
        "others away from the server's port",
    ),
    FaultCode.OBJECT_MALFORMED: FaultEntry(
        Severity.WARNING,
        5,
        "objects are not understood, so that what was last understood of them counts: {what}",
        "mend or delete them (kubectl explain KIND); an object of a newer version needs a newer Outlive",
    ),
    FaultCode.SCHEMA_UPGRADE_WAITING: FaultEntry(
        Severity.INFO,
        5,
        "the storage schema stays {version}, as some hosts do not know {to} yet: {what}",
        "install this version of Outlive there; one that is gone for more than a day: "
        "outlive schema upgrade --exclude HOST",
    ),
    FaultCode.SCHEMA_UPGRADE_STUCK: FaultEntry(
        Severity.WARNING,
        20,
        "the storage schema does not come from {version} to {to}: {why}",
        "see outlive schema status; it is tried again, and nothing is lost meanwhile",
    ),
    FaultCode.STORE_QUOTA: FaultEntry(
        Severity.WARNING,
        10,
        "the store is near a quota and will refuse new objects of it: {what}",
        "see whose objects they are (outlive get KIND) and why there are so many; delete those that are not needed",
    ),
    FaultCode.TOKEN_ENDS: FaultEntry(
        Severity.WARNING,
        10,
        "the token {subject} ({role}) ends on {end}: who uses it is refused from then on",
        "outlive token rotate {subject}; a host renews its own while its daemon runs; or revoke it if it is not used",
    ),
    FaultCode.TOKENS_FILE: FaultEntry(
        Severity.WARNING,
        10,
        "tokens in {file} end soon, or are older than 90 days: {names}",
        "write new ones into the file and restart outlive up",
    ),
    FaultCode.AUTHORITY_ENDS: FaultEntry(
        Severity.WARNING,
        10,
        "the server's own authority ends on {end}, and no host believes the server after that",
        "replace it: outlive tls rotate",
    ),
    FaultCode.NOTIFY_FAILING: FaultEntry(
        Severity.WARNING,
        10,
        "{subject} took no message in {tries} tries: {why}",
        "see section notify of outlive.yaml and what it names, then: outlive notify test {subject}",
    ),
    FaultCode.BACKUP_FAILED: FaultEntry(
        Severity.WARNING,
        10,
        "no backup could be made in {place}: {why}",
        "mend that, or name another directory in backup.directory; until then: outlive backup FILE",
    ),
    FaultCode.BACKUP_OLD: FaultEntry(
        Severity.WARNING,
        10,
        "the newest backup in {place} is {what}: what changed since would be lost with the disk",
        "see backup-failed, or the log of outlive up; make one now: outlive backup FILE",
    ),
}
"""The one table."""


def fault_message(code: FaultCode, subject: str, fields: Mapping[str, Value]) -> Message:
    """What is wrong, and what helps. ``KeyError`` for a missing field."""
    entry, fields = FAULTS[code], {"subject": subject, **fields}
    return Message(fill(entry.text, fields), fill(entry.remedy, fields))
