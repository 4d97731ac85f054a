"""Every interval and limit by which Outlive paces itself: ``outlive config timings``.

A value stands once, where it is used; ``FIXED`` names it and says what it is for. What an operator can choose comes
from the settings and from the profiles of memberships. ``tests/unit/cli/test_timings.py`` finds a constant that paces
a loop and is missing here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final, Literal, NamedTuple

import msgspec

from outlive.base import parse_duration

FIXED: Final[Mapping[str, Mapping[str, str]]] = {
    "membership and guard": {
        "outlive.node.membership.registration.RETRY_S": "Pause between two rounds of registering what a host runs.",
        "outlive.node.membership.join.DISK_LIMIT_S": "How long the host's own disk may take for a write of a join.",
        "outlive.node.membership.pause.AGAIN_S": "Least pause between two checks whether a paused cluster may go on.",
        "outlive.node.guard_client.CALL_LIMIT_S": "How long the guard may take to answer the daemon.",
        "outlive.node.daemon.RESTART_S": "First pause before a part of the daemon that failed starts again.",
        "outlive.guard.states.FEED_INTERVAL_S": "Longest pause between two feeds of the watchdog.",
        "outlive.guard.states.KILL_INTERVAL_S": "Pause between two attempts of the guard to kill guests.",
        "outlive.guard.states.LOST_KILL_INTERVAL_S": "The same once the guard waits for the watchdog.",
        "outlive.guard.states.CREATE_LIMIT_S": "A start whose end nobody reported counts as ended after this.",
    },
    "fencing": {
        "outlive.node.fencing.fencer.ROUND_S": "Least pause between two rounds over the silent hosts.",
        "outlive.node.fencing.fencer.IDLE_S": "Longest pause between two rounds.",
        "outlive.node.fencing.fencer.ASKED_AGAIN_S": "Pause before a fence that an operator asks for is tried again.",
        "outlive.node.fencing.fencer.RETRY_S": "Pause before a fence goes on whose task failed.",
        "outlive.node.fencing.fencer.TRUST_S": "How often distrusted proofs are checked.",
        "outlive.node.fencing.fencer.FAULTS_S": "How often the fencer compares its faults.",
        "outlive.node.fencing.fencer.ISOLATIONS_S": "How often the fencer ends isolations that are over.",
        "outlive.node.fencing.fencer.POWER_ON_S": "How often the fencer looks for hosts to switch on again.",
        "outlive.node.fencing.fencer.FORECAST_S": "How often hosts are noted that maintenance spares.",
        "outlive.node.fencing.fence.BACKOFF_S": "Pauses between attempts that proved nothing; the last one repeats.",
        "outlive.node.fencing.fence.SLOW_PAUSE_S": "Pause before a slow BMC is asked again.",
        "outlive.node.fencing.fence.RETRY_S": "Pause of a fence after the store failed.",
        "outlive.node.fencing.fence.LOOK_S": "How often a fence that waits for an operator or a setting looks again.",
        "outlive.node.fencing.watcher.LOOK_S": "How often every host is checked at least.",
        "outlive.node.fencing.watcher.AGAIN_S": "When a silent host that could not be condemned is checked again.",
        "outlive.node.fencing.rules.STALLED_S": "A fencer that comes later than this was paused itself, and waits.",
        "outlive.node.fencing.rules.TAKE_OVER_S": "A fence that stands still for this long is carried on by another.",
        "outlive.node.fencing.rules.TAKE_OVER_RESTING_S": "The same for a fence that rests between attempts.",
        "outlive.node.fencing.rules.TAKE_OVER_ORPHANED_S": "The same if the fencer itself is condemned or silent.",
        "outlive.node.fencing.proofs.GUARD_SLACK_S": "The guard's tick and the time that a reset takes.",
        "outlive.node.fencing.proofs.READINGS_APART_S": "Least time between two readings of a power state that prove.",
        "outlive.node.fencing.policy.WRITE_LIMIT_S": "How long one renewal may take before it counts as lost.",
        "outlive.node.fencing.suspicion.TRANSITION_GRACE_S": "How long a host with VMs may start or stop in silence.",
        "outlive.node.fencing.power.ANSWER_LEAST_S": "Least time that a BMC has for an answer.",
        "outlive.node.fencing.power.ANSWER_MOST_S": "Most time that a BMC has for an answer.",
        "outlive.node.fencing.power.POLL_S": "Pause between two readings of a power state.",
        "outlive.node.fencing.power.POLLS_FOR_S": "How long readings may say that the host is still on.",
        "outlive.node.fencing.isolation.CALL_LIMIT_S": "How long one call that isolates a host may take.",
        "outlive.node.fencing.isolation.RENEW_S": "How often an isolation without an end is checked.",
        "outlive.node.fencing.isolation.AGAIN_S": "When an isolation that failed is tried again.",
        "outlive.node.fencing.isolation.DISTRUSTED_S": "How often a distrusted isolation is checked.",
        "outlive.node.fencing.isolation.UNRECORDED_S": "How often the fencer looks for isolations without a record.",
        "outlive.node.fencing.rehearsals.EVERY_S": "How often BMCs are rehearsed.",
        "outlive.node.fencing.rehearsals.STRICT_EVERY_S": "The same for hosts whose VMs have strict objectives.",
        "outlive.node.fencing.rehearsals.IN_DATE_S": "How long a rehearsal counts.",
        "outlive.node.fencing.rehearsals.PAUSES_S": "Pauses between the attempts of one rehearsal.",
        "outlive.roles.storage_cuts.LOOK_S": "How often the memberships of hosts that storage shut out are checked.",
    },
    "primary and elections": {
        "outlive.runtime.election.RENEW_S": "How often a leader writes and candidates read, unless the election says.",
        "outlive.runtime.election.SILENCE_S": "Silence of a leader after which another takes over, unless it says.",
        "outlive.node.primary.LOOK_S": "How often the primary looks for requests, and its guard at the role.",
        "outlive.node.primary.SETTLE_S": "From the last step of a hand-over until it counts as done.",
        "outlive.node.primary.RESIGN_LOOK_S": "How often a host that resigns looks whether it has no duty left.",
        "outlive.node.primary.GUARD_S": "How long duties and addresses may outlast the role.",
        "outlive.node.primary.WATCH_S": "How often a host checks whether it may still have the role's addresses.",
        "outlive.node.primary.MARGIN_S": "How long the process that guards addresses lets the daemon act first.",
        "outlive.node.primary.RETRY_S": "Pause before a step of a hand-over that the store did not take is repeated.",
        "outlive.node.handover.POLL_S": "How often both sides of a hand-over read the record.",
        "outlive.node.handover.LEAVER_S": "How long the leaver waits for the new holder in one phase.",
        "outlive.node.handover.HOLDER_S": "How long the new holder waits for the leaver in one phase.",
        "outlive.node.handover.UNTAKEN_S": "How long the leaver keeps addresses while nobody has taken the role.",
        "outlive.node.primary_elector.STALL_S": "How long a leaver may stop its duties before the role is taken.",
        "outlive.node.handover.DUTY_S": "How long one duty may take to start or to stop.",
        "outlive.node.former_primary.LOOK_S": "How often the former primary is looked for.",
    },
    "hosts": {
        "outlive.node.credentials.LOOK_S": "How often a host checks its token and the authorities; up to half later.",
        "outlive.node.host_log.EVERY_S": "How often a host writes its log into the store.",
        "outlive.node.host_log.WRITE_S": "How long one such write may take.",
        "outlive.node.status.COLLECT_S": "How long a host collects changes before it publishes them together.",
        "outlive.node.status.RETRY_S": "Pause after a report that the store did not take.",
        "outlive.node.storage_watch.WATCH_S": "How often a host checks whether it reaches its storage.",
        "outlive.node.storage_watch.STUCK_S": "A guest that its disks do not answer for this long is stuck.",
        "outlive.node.storage_statistics.REFRESH_S": "How often unchanged figures of storage are written again.",
        "outlive.node.stop.JOBS_S": "How long a daemon that stops waits for jobs of VMs.",
        "outlive.node.stop.GUESTS_S": "How often it checks whether its guests have ended.",
        "outlive.node.stop.HANDOVER_LIMIT_S": "How long it waits until another host has the role of primary.",
        "outlive.node.interventions.LOOK_S": "How often arming and disarming are followed.",
    },
    "vms": {
        "outlive.node.vm.console.LOOK_S": "How often the logs of serial consoles are read.",
        "outlive.node.vm.console.WRITE_S": "First pause between two writes of one console's log; it doubles.",
        "outlive.node.vm.console.PAUSE_S": "Longest pause between two writes of one console's log.",
        "outlive.node.vm.locks.FLUSH_S": "How long hosts have to report before locks are removed on request.",
        "outlive.node.vm.locks.FLUSH_LOOK_S": "How often the host checks whether they have.",
        "outlive.node.vm.reconciler.RETRY_BASE_S": "First pause after an error with a VM; it doubles.",
        "outlive.node.vm.reconciler.RETRY_CAP_S": "Longest pause after errors with a VM.",
        "outlive.node.vm.reconciler.CALM_S": "The part of that pause that nothing shortens.",
        "outlive.node.vm.start.BACK_OFF_S": "Pauses before a VM that ended or did not start is started again.",
        "outlive.node.vm.stop.WATCH_S": "How often a guest that shuts down is checked.",
        "outlive.node.vm.stop.ASK_AGAIN_S": "How often a guest is asked again to shut down.",
        "outlive.node.vm.requests.RELEASE_S": "How long a guest may take to release a device.",
        "outlive.node.vm.requests.RELEASE_LOOK_S": "How often the host checks whether it has.",
        "outlive.node.vm.operator.LOOK_S": "How often a command follows its request.",
        "outlive.node.vm.operator.WAIT_LIMIT_S": "How long a command follows its request.",
        "outlive.node.vm.operator.BLOCKED_S": "How long a command waits for another VM or host that is in the way.",
        "outlive.node.relocation.WATCH_S": "How often a VM on its way to another host is checked.",
        "outlive.node.migration.migration.ATTEMPT_PAUSE_S": "Pause between two attempts to begin a live migration.",
        "outlive.node.functions.reconciler.READY_S": "How long a start waits for the virtual functions of the cards.",
    },
    "networks": {
        "outlive.node.links.reconciler.LOOK_S": "How often the kernel's links are compared with the wanted ones.",
        "outlive.node.links.reconciler.PAUSE_S": "How often the store is asked for an answer after a change.",
        "outlive.node.links.mtus.LOOK_S": "How often the primary writes the MTUs of networks at least.",
        "outlive.node.links.vm_ports.LOOK_S": "How often the traffic of interfaces is counted.",
        "outlive.node.services.network_services.LOOK_S": "How often DHCP, DNS and firewall are compared at least.",
        "outlive.node.services.network_services.GATEWAY_LOOK_S": "The same while a network waits for its gateway.",
        "outlive.node.services.network_services.SYNC_S": "How long a start waits for the first comparison.",
        "outlive.node.services.network_services.ZONES_S": "How often every DNS zone is transferred.",
        "outlive.node.services.network_services.FIREWALL_S": "How often the firewall's table is looked for.",
        "outlive.node.services.network_services.USAGE_S": "How often leases are counted that only time changes.",
        "outlive.network.faults.EVERY_S": "How often the network controller compares its faults.",
        "outlive.network.inspector.SETTLE_S": "Pause before what differs is compared again.",
        "outlive.network.pod_follower.DNS_S": "How often the addresses of the cluster's DNS service are read.",
    },
    "failover and recovery": {
        "outlive.failover.reconciler.reconciler.GATHER_S": "How long failover gathers changes.",
        "outlive.failover.reconciler.reconciler.REPEAT_S": "Pause before coverage is reported again.",
        "outlive.failover.reconciler.reconciler.QUIET_S": "How long the number of VMs without slots must rest.",
        "outlive.failover.reconciler.cache.STALE_S": "Failover does not act on a cache that is older.",
        "outlive.failover.reconciler.coverage.REREAD_S": "How long the memory of reported coverage is believed.",
        "outlive.recovery.controller.SETTLE_S": "How long recovery waits for more hosts after a proof.",
        "outlive.recovery.controller.SETTLE_MOST_S": "How long it waits at most.",
        "outlive.recovery.controller.GATHER_S": "How long recovery gathers other changes.",
        "outlive.recovery.controller.TICK_S": "How often recovery plans while anything is under way.",
        "outlive.recovery.controller.IDLE_S": "How often recovery plans otherwise.",
        "outlive.recovery.controller.OFFERS_S": "How long placement may take for all VMs of one plan.",
        "outlive.recovery.view.START_LIMIT_S": "How long a host may take to hold a VM that was assigned to it.",
        "outlive.recovery.view.FORGIVE_S": "First pause before hosts that refused a VM are asked again.",
        "outlive.recovery.view.FORGIVE_MOST_S": "Longest pause before they are asked again.",
        "outlive.recovery.view.UNATTENDED_S": "Silence after which a host counts as unattended.",
        "outlive.recovery.liveness.LOOK_S": "How often the conditions of hosts are compared.",
        "outlive.recovery.cluster_gauges.EVERY_S": "How often the gauges of the cluster are counted.",
        "outlive.recovery.faults.EVERY_S": "How often recovery compares its faults.",
        "outlive.recovery.rebalancer.LOOK_S": "How often the rebalancer looks for work.",
        "outlive.recovery.balance.MOVE_LIMIT_S": "How long the rebalancer waits for one move.",
        "outlive.recovery.balance.MOVE_POLL_S": "How often it checks whether the move is over.",
    },
    "placement, commitments, inventory": {
        "outlive.placement.descheduling.LOOK_S": "How often detectors run; up to a tenth earlier or later.",
        "outlive.placement.history.CLEANUP_S": "How often histories of deleted objects are looked for.",
        "outlive.commitments.assembly.HISTORY_S": "How often old histories of usage are looked for.",
        "outlive.commitments.assembly.HISTORY_AGAIN_S": "The same after an error.",
        "outlive.commitments.change_log.SWEEP_S": "How often old records of changes are looked for.",
        "outlive.commitments.change_log.RETRY_S": "First pause after a write without an answer; it doubles.",
        "outlive.commitments.change_log.RETRY_CAP_S": "Longest pause after such writes.",
        "outlive.commitments.changes.RESTORED_S": "How often the store is asked whether it went back to a backup.",
        "outlive.commitments.domains.REFRESH_S": "How often Keystone is asked for all domains and projects.",
        "outlive.commitments.domains.AGAIN_S": "Least pause between two questions to Keystone.",
        "outlive.commitments.survival.LOOK_S": "How often the loss of each host is tried for the metric.",
        "outlive.commitments.survival.PAUSE_S": "Pause between two hosts in that.",
        "outlive.commitments.syncer.FAILED_AGAIN_S": "First pause after a synchronisation that failed.",
        "outlive.commitments.syncer.ASKED_S": "Least pause between two synchronisations.",
        "outlive.commitments.vm_table.VMS_S": "How often a VM source is asked for all VMs.",
        "outlive.commitments.vm_table.STALE_S": "A listing of a VM source that is older is not used.",
        "outlive.inventory.cloud_sync.LOOK_S": "How often the inventory of clouds compares its faults.",
        "outlive.inventory.sync.BACKOFF_CAP_S": "Longest pause between two readings of a source that does not answer.",
        "outlive.inventory.sync.TRY_AGAIN_S": "First pause before a conflict with another writer is tried again.",
    },
    "server and controllers": {
        "outlive.api.connections.SWEEP_SECONDS": "How often the server looks for connections that take nothing.",
        "outlive.api.levels.REFUSED_SECONDS": "How long an answer 429 is kept back.",
        "outlive.api.levels.SUSPICIOUS_SECONDS": "How long a request with a wrong token keeps its seat.",
        "outlive.api.lifetimes.LOOK_S": "How often ends and uses of tokens are written.",
        "outlive.api.tls.LOOK_S": "How often the server checks the age of its certificate.",
        "outlive.cli.controller.INCARNATION_S": "How often a controller checks whether the store was restored.",
        "outlive.cli.controller.KINDS_S": "How often a controller checks the kinds of the API server.",
        "outlive.cli.output.FOLLOW_S": "How often a log that is followed is read.",
        "outlive.runtime.backups.LOOK_S": "How often the directory of backups is read at least.",
        "outlive.runtime.backups.FIRST_S": "How long a server runs before its first backup.",
        "outlive.runtime.backups.RETRY_S": "Pause after a backup that failed.",
        "outlive.runtime.controller.ROOM_S": "How long a controller waits for room in a full queue.",
        "outlive.runtime.controller.RETRY_BASE_S": "First pause after an error with an object; it doubles.",
        "outlive.runtime.controller.RETRY_CAP_S": "Longest pause after errors with an object.",
        "outlive.runtime.crashes.FIRST_PAUSE_S": "First pause of a part after an unexpected error; it doubles.",
        "outlive.runtime.crashes.LONGEST_PAUSE_S": "Longest pause of a part after unexpected errors.",
        "outlive.runtime.faults.LOOK_S": "How often a set of faults is compared at least.",
        "outlive.runtime.faults.REFRESH_S": "How often a fault that goes on is written again.",
        "outlive.runtime.faults.LIST_AGAIN_S": "How often a recorder reads its own faults again.",
        "outlive.runtime.informer.BACKOFF_BASE_S": "First pause after a lost stream of the store; it doubles.",
        "outlive.runtime.informer.BACKOFF_CAP_S": "Longest pause after lost streams.",
        "outlive.runtime.manager.RESTART_BASE_S": "First pause before a task that failed starts again; it doubles.",
        "outlive.runtime.manager.RESTART_CAP_S": "Longest pause before a task starts again.",
        "outlive.runtime.notifier.LOOK_S": "How often due notifications are looked for at least.",
        "outlive.runtime.notifier.GATHER_S": "How long changes are gathered for one notification.",
        "outlive.runtime.notifier.RETRY_FIRST_S": "First pause after a notification that failed; it doubles.",
        "outlive.runtime.notifier.RETRY_MOST_S": "Longest pause after notifications that failed.",
        "outlive.runtime.retention.RETRY_S": "First pause after a write in the background that failed; it doubles.",
        "outlive.runtime.retention.SWEEP_S": "How often old events, faults and records are looked for.",
        "outlive.runtime.retention.SWEEP_REST_S": "The same while there is more to delete.",
        "outlive.runtime.schema_upgrade.LOOK_S": "How often the storage schema is checked.",
        "outlive.runtime.schema_upgrade.RETRY_S": "The same after an error.",
        "outlive.runtime.schema_upgrade.AGAIN_S": "The same after a change that took too long.",
    },
    "storage agent": {
        "outlive.storage.agent.TROUBLES_S": "How often the storage agent logs what is wrong.",
        "outlive.storage.observer.AGAIN_S": "First and longest pause before the events of DRBD are followed again.",
        "outlive.storage.observer.SETTLE_S": "How long more events of DRBD are waited for.",
    },
    "store": {
        "outlive.store.access.CALL_S": "Limit of one call of the store, unless the caller has another.",
        "outlive.store.access.LIST_S": "Limit of reading all objects of a kind.",
        "outlive.store.access.RETRY_S": "First pause after a write that others were faster with; it doubles.",
        "outlive.store.http.SILENCE_SECONDS": "Silence after which a watch over HTTP begins anew.",
        "outlive.store.rest.PAUSE_LEAST_SECONDS": "First pause before a watch begins anew; it doubles.",
        "outlive.store.rest.PAUSE_MOST_SECONDS": "Longest pause before a watch begins anew.",
        "outlive.store.troubles.LASTS_S": "A request that fails for this long is a fault.",
        "outlive.store.kubernetes.store.SILENCE_S": "Silence after which a watch of Kubernetes begins anew.",
        "outlive.store.kubernetes.store.WATCH_S": "Shortest and longest life of one watch of Kubernetes.",
        "outlive.store.kubernetes.store.AGAIN_S": "Longest pause before a broken watch of Kubernetes goes on.",
        "outlive.store.zookeeper.access.SESSION_S": "How long a session of ZooKeeper lasts without its client.",
        "outlive.store.zookeeper.observers.LOOK_S": "How often a log of ZooKeeper is read at least.",
        "outlive.store.zookeeper.observers.AGAIN_S": "Pause before it is read again after an error.",
        "outlive.store.zookeeper.schema_view.LOOK_S": "How often the schema in ZooKeeper is read at least.",
        "outlive.store.zookeeper.schema_view.AGAIN_S": "Pause before it is read again after an error.",
        "outlive.store.zookeeper.store.PAUSE_LEAST_S": "First pause before objects in ZooKeeper are observed anew.",
        "outlive.store.zookeeper.store.PAUSE_MOST_S": "Longest pause before they are observed anew.",
    },
}
"""Topic → constant → what it is for."""
PROFILE_TIMES: Final[Mapping[str, str]] = {
    "renew_s": "Between two renewals of a membership.",
    "silence_s": "Silence after which a host is suspected.",
    "throw_s": "Between two checks of a suspected host.",
    "guard_timeout_s": "The guard stops the VMs of a host that was not acknowledged for this long.",
    "watchdog_s": "The watchdog's own time-out.",
    "grace_s": "The guard's tick and the time that a reset takes.",
}


class TimingRow(NamedTuple):
    """An interval or a limit of time."""

    topic: str
    name: str
    seconds: tuple[float, ...]
    """Several: a sequence of pauses, or the shortest and the longest."""
    kind: Literal["fixed", "profile", "setting"]
    """``profile``: the operator chooses it with the profile of a membership."""
    meaning: str


def list_timings(sections: Mapping[str, msgspec.Struct], hosts: Mapping[str, msgspec.Struct]) -> list[TimingRow]:
    """All timings: fixed ones by topic, then those of profiles and those of these settings.

    Constants of a store that is not installed are left out.
    """
    from outlive.node.fencing import PROFILES

    found: list[TimingRow] = []
    for topic, constants in FIXED.items():
        for place, meaning in constants.items():
            with contextlib.suppress(ModuleNotFoundError):
                found.append(TimingRow(topic, place.removeprefix("outlive."), read_constant(place), "fixed", meaning))
    for profile_name, profile in PROFILES.items():
        for field, meaning in PROFILE_TIMES.items():
            found.append(
                TimingRow("profiles", f"{profile_name}.{field}", (float(getattr(profile, field)),), "profile", meaning)
            )
    for topic, group in (("outlive.yaml", sections), ("node.yaml", hosts)):
        for name, section in group.items():
            found += _list_durations(topic, name, section)
    return found


def read_constant(place: str) -> tuple[float, ...]:
    """The value of the constant in seconds, which is named with its module."""
    module, _, name = place.rpartition(".")
    value = getattr(import_module(module), name)
    return tuple(map(float, value)) if isinstance(value, tuple) else (float(value),)


def _list_durations(topic: str, path: str, section: msgspec.Struct) -> Iterator[TimingRow]:
    from outlive.resources import field_docs
    from outlive.runtime import Duration

    docs = field_docs(type(section))
    for field in msgspec.structs.fields(section):
        value, place = getattr(section, field.name), f"{path}.{field.encode_name}"
        meaning = " ".join(docs.get(field.name, "").replace("``", "").split())
        if isinstance(value, Duration):
            yield TimingRow(topic, place, (float(value),), "setting", meaning)
        elif isinstance(value, str) and value and field.name.endswith(("_interval", "_timeout")):
            yield TimingRow(topic, place, (parse_duration(value),), "setting", meaning)
        elif isinstance(value, msgspec.Struct):
            yield from _list_durations(topic, place, value)


def timing_rows(timings: list[TimingRow]) -> list[tuple[Any, ...]]:
    """Rows of topic, name, value, kind and meaning."""
    rows: list[tuple[Any, ...]] = []
    for one in timings:
        value = " … ".join(f"{each:.10g} s" for each in one.seconds)
        rows.append((one.topic, one.name, value, one.kind, one.meaning))
    return rows
