"""What is repaired on the node that the agent runs on: frozen volumes, volumes that fail, and taints of its own."""

from __future__ import annotations

from typing import Any, Final

from outlive.runtime import Decision
from outlive.storage.drbd import MAJORITY, DrbdResource
from outlive.storage.objects import (
    CLAIM,
    IGNORE_ANNOTATION,
    NODE,
    POD,
    VOLUME,
    ObjectReference,
    PodView,
    is_launcher,
    is_vm_part,
    reference_to,
)
from outlive.storage.tick import (
    FORCED_ERRORS,
    LOST_QUORUM,
    NO_SCHEDULE,
    PROVED_BY_QUORUM,
    Plan,
    PlannedDemotion,
    PlannedRemoval,
    PlannedTaint,
    ResourceObjects,
    StorageEvent,
    TickInput,
    TickResult,
    TickView,
    has_elapsed,
    view_of,
)


def is_stuck(resource: DrbdResource, *, hardened: bool) -> bool:
    """Whether the resource is primary here and frozen, by something else than a user."""
    return resource.suspended and not (hardened and resource.suspended_user) and resource.is_primary


def demote_suspended(given: TickInput) -> TickResult:
    """Plans that take the role of frozen resources that no local pod wants: its processes hang until they get errors.

    A local pod that runs and is not being deleted wants the volume: quorum may return, and its writes go on.
    """
    view = view_of(given)
    if view.is_stale:
        return TickResult(memory=given.memory, stale=True)
    node = view.options.node_name
    plans = []
    for request in view.requests:
        if not is_stuck(request.resource, hardened=view.is_hardened):
            continue
        wanted = any(pod.is_running and not pod.is_terminating for pod in request.pods_on(node))
        if wanted or (view.is_hardened and not request.volumes):
            continue
        plans.append(
            Plan(
                of="suspended",
                profile=view.profile,
                resource=request.resource.name,
                node=node,
                demotion=PlannedDemotion(
                    resource=request.resource.name,
                    has_volume=bool(request.volumes),
                    events=_demotion_events(view, request),
                ),
            )
        )
    return TickResult(memory=given.memory, plans=tuple(plans))


def _demotion_events(view: TickView, request: ResourceObjects) -> tuple[StorageEvent, ...]:
    if not request.volumes:
        return ()
    volume = request.volumes[0]
    regarding = [reference_to(VOLUME, volume)]
    ref = volume.spec.claim_ref
    if ref is not None:
        version, kind = CLAIM if view.is_hardened and not ref.kind else (ref.api_version, ref.kind)
        regarding.append(
            ObjectReference(kind=kind, name=ref.name, namespace=ref.namespace, uid=ref.uid, api_version=version)
        )
    return tuple(
        StorageEvent(
            type="Warning",
            reason=PROVED_BY_QUORUM,
            action="ForcedVolumeDemotion",
            regarding=one,
            related=request.local_attachment(view.options.node_name),
            note=f"{request.resource.name} was frozen on node {view.options.node_name}, and no pod there wants it",
        )
        for one in regarding
    )


def evict_failing(given: TickInput) -> TickResult:
    """Plans that have local pods go whose volume answers with errors since its role was taken.

    Of a VM of KubeVirt the launcher is evicted, which has it migrate; what is left of it after ``evacuation_limit_s``
    is deleted.
    """
    view = view_of(given)
    if view.is_stale:
        return TickResult(memory=given.memory, stale=True)
    name, options = view.options.node_name, view.options
    node = view.nodes.get(name)
    evacuations = _Evacuations(view)
    plans = []
    missing = False
    for request in view.requests:
        if not request.resource.force_io_failures:
            continue
        users = _failing_users(view, request)
        if not users:
            continue
        if node is None and not options.disable_node_taints:
            missing = True
            if not view.is_hardened:
                continue
        note = f"volume {request.resource.name} answers with I/O errors on node {name}"
        related = request.local_attachment(name)
        taint = view.plan_taint(node, FORCED_ERRORS, "VolumeForcingIoErrors", None, note) if node is not None else None
        plans.append(
            Plan(
                of="forced_errors",
                profile=view.profile,
                resource=request.resource.name,
                node=name,
                node_ready=node is not None and node.is_ready,
                taint=taint,
                removals=tuple(
                    removal
                    for pod in users
                    if not (view.is_hardened and pod.is_terminating)
                    and (removal := evacuations.plan_removal(pod, related, note)) is not None
                ),
            )
        )
    return TickResult(
        memory=evacuations.memory,
        plans=tuple(plan for plan in plans if plan.taint is not None or plan.removals),
        error="node-missing" if missing else None,
    )


def _failing_users(view: TickView, request: ResourceObjects) -> list[PodView]:
    """Pods here that use the volume, with all parts of their VMs here; without those that are to be left alone."""
    found: dict[tuple[str, str], PodView] = {}
    for pod in request.pods_on(view.options.node_name):
        parts = [part for part in view.vms.parts_of(pod) if part.spec.node_name == pod.spec.node_name]
        if all(part.metadata.owner_references and IGNORE_ANNOTATION not in part.metadata.annotations for part in parts):
            found |= {part.metadata.key: part for part in parts}
    return list(found.values())


class _Evacuations:
    """How pods leave volumes that fail; remembers since when VMs of KubeVirt are to migrate away."""

    def __init__(self, view: TickView) -> None:
        self._view = view
        memory = view.given.memory if isinstance(view.given.memory, dict) else {}
        self._before: dict[str, str] = memory.get("evacuating") or {}
        self._since: dict[str, str] = {}
        """Uid of a part of a VM → since when."""

    @property
    def memory(self) -> Any:
        """For the next tick; without the rule of our own what was given."""
        if not self._view.given.own.kubevirt:
            return self._view.given.memory
        return {"evacuating": self._since} if self._since else None

    def plan_removal(self, pod: PodView, related: ObjectReference | None, note: str) -> PlannedRemoval | None:
        """How the pod goes now; ``None``: with its launcher."""
        own, now = self._view.given.own, self._view.given.now
        is_part = own.kubevirt and is_vm_part(pod)
        is_late = False
        refused: tuple[StorageEvent, ...] = ()
        if is_part:
            since = self._since[pod.metadata.uid] = self._before.get(pod.metadata.uid, now)
            is_late = has_elapsed(since, own.evacuation_limit_s, now)
            if not is_late and not is_launcher(pod):
                return None
            refused = (_pod_event(pod, related, "EvacuationAwaited", f"{note}; KubeVirt is to migrate its VM"),)
        if is_late:
            note = f"{note}, and its VM has not migrated within {own.evacuation_limit_s:g} s"
        return PlannedRemoval(
            op="delete_pod" if is_late else "evict",
            namespace=pod.metadata.namespace,
            pod=pod.metadata.name,
            uid=pod.metadata.uid,
            grace=self._view.options.grace_period_s,
            events=(_pod_event(pod, related, "EvictedPod", note),),
            refused=refused,
        )


def _pod_event(pod: PodView, related: ObjectReference | None, action: str, note: str) -> StorageEvent:
    return StorageEvent(
        type="Warning",
        reason="VolumeForcingIoErrors",
        action=action,
        regarding=reference_to(POD, pod),
        related=related,
        note=note,
    )


def set_own_taints(given: TickInput) -> TickResult:
    """The plan that makes the taints of this node say what its volumes are; none where they do.

    A taint of lost quorum is added once a resource is without it for ``own_taint_delay_s``, since a new one has none
    until it is connected, and removed only when no resource is without it.
    """
    view = view_of(given)
    if view.is_stale:
        return TickResult(memory=given.memory, stale=True)
    if view.options.disable_node_taints:
        return TickResult(memory=given.memory)
    lacking = [one.name for one in view.resources if one.quorum == MAJORITY and not one.has_quorum]
    memory = _lost_quorum_since(view, lacking)
    node = view.nodes.get(view.options.node_name)
    if node is None:
        return TickResult(memory=memory, error="node-missing")
    failing = any(one.force_io_failures for one in view.resources)
    delay_s = view.options.own_taint_delay_s
    delay_s = view.options.fail_over_timeout_s if delay_s is None else delay_s
    times = (memory or {}).get("withoutQuorum", {})
    due = any(not view.is_hardened or has_elapsed(times[name], delay_s, given.now) for name in lacking)
    state = {
        LOST_QUORUM: (bool(lacking), due, "NodeStorageQuorumRegained", "NodeStorageQuorumLost"),
        FORCED_ERRORS: (failing, failing, "NoVolumeForcingIoErrors", "VolumeForcingIoErrors"),
    }
    regarding = reference_to(NODE, node)
    kept, events = [], []
    for taint in node.spec.taints:
        key = taint.get("key")
        if key in state and not state[key][0]:
            events.append(
                StorageEvent(
                    type="Normal",
                    reason=state[key][2],
                    action="UntaintedNode",
                    regarding=regarding,
                    note=f"no volume on node {node.metadata.name} needs taint {key} any more",
                )
            )
        else:
            kept.append(taint)
    there = {taint.get("key") for taint in kept}
    for key, (_, adds, _, reason) in state.items():
        if adds and key not in there:
            kept.append({"key": key, "effect": NO_SCHEDULE, "timeAdded": given.now})
            names = lacking if key == LOST_QUORUM else [one.name for one in view.resources if one.force_io_failures]
            events.append(
                StorageEvent(
                    type="Warning",
                    reason=reason,
                    action="TaintedNode",
                    regarding=regarding,
                    note=f"volumes on node {node.metadata.name}: {', '.join(names[:5])}",
                )
            )
    if not events:
        return TickResult(memory=memory)
    plan = Plan(
        of="own_taints",
        profile=view.profile,
        resource=None,
        node=node.metadata.name,
        node_ready=node.is_ready,
        taint=PlannedTaint(
            node=node.metadata.name,
            taints=tuple(kept),
            resource_version=node.metadata.resource_version,
            events=tuple(events),
        ),
    )
    return TickResult(memory=memory, plans=(plan,))


def _lost_quorum_since(view: TickView, lacking: list[str]) -> Any:
    """Since when each resource is without quorum."""
    if not view.is_hardened:
        return view.given.memory
    memory = view.given.memory if isinstance(view.given.memory, dict) else {}
    before = memory.get("withoutQuorum") or {}
    return {"withoutQuorum": {name: before.get(name, view.given.now) for name in lacking}} if lacking else None


def _is_empty(result: TickResult) -> bool:
    return not result.plans and result.error is None


SUSPENDED: Final = Decision(
    "storage.suspended",
    demote_suspended,
    TickInput,
    TickResult,
    "Which frozen volumes of this node give up their role",
    _is_empty,
    nulls_are_absent=True,
)
FORCED_ERRORS_DECISION: Final = Decision(
    "storage.forced_errors",
    evict_failing,
    TickInput,
    TickResult,
    "Which pods of this node leave volumes that answer with errors",
    _is_empty,
    nulls_are_absent=True,
)
OWN_TAINTS: Final = Decision(
    "storage.own_taints",
    set_own_taints,
    TickInput,
    TickResult,
    "Which taints the agent's own node has",
    _is_empty,
    nulls_are_absent=True,
)
