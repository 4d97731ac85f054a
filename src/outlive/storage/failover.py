"""Pods leave a node that this one has lost, once DRBD proves that the node can write their volume no more.

This node has quorum with ``majority`` and its own data is current, so that the lost side has no quorum: what it wrote
last is here, and what it writes from now on is never part of the volume. Node after node of a resource is decided for
itself; each has its own timer (docs/reference/storage-decisions.md#storagefailover).
"""

from __future__ import annotations

from typing import Any, Final

from outlive.runtime.decisions import Decision
from outlive.storage.drbd import CONNECTED, MAJORITY, promotion_facts
from outlive.storage.mapping import unsafe_reason
from outlive.storage.objects import (
    ATTACHMENT,
    IGNORE_ANNOTATION,
    POD,
    VOLUME,
    NodeView,
    PodView,
    reference_to,
)
from outlive.storage.tick import (
    LOST_QUORUM,
    PROVED_BY_QUORUM,
    PendingLoss,
    Plan,
    PlannedDetachment,
    PlannedRemoval,
    ResourceObjects,
    SkippedPod,
    StorageEvent,
    TickInput,
    TickResult,
    TickView,
    has_elapsed,
)


def fail_over(given: TickInput) -> TickResult:
    """Plans for every lost node whose time is over; the times of those whose time is not are in ``pending``."""
    view = TickView(given)
    if view.is_stale:
        return TickResult(memory=given.memory, stale=True)
    run = _FailoverRun(view)
    for request in view.requests():
        run.decide_resource(request)
    return run.result()


class _FailoverRun:
    """One run; timers are kept by resource in ``compat``, by resource and node in ``hardened``."""

    def __init__(self, view: TickView) -> None:
        self.view = view
        self.plans: list[Plan] = []
        self.pending: list[PendingLoss] = []
        self.skipped: list[SkippedPod] = []
        before = view.given.memory if isinstance(view.given.memory, dict) else {}
        self.before: dict[str, Any] = before.get("firstSeen") or {}
        self.timers: dict[str, Any] = {} if view.is_hardened else dict(self.before)
        """In ``hardened`` every timer is cleared that this run does not keep."""

    def result(self) -> TickResult:
        return TickResult(
            memory={"firstSeen": self.timers} if self.timers else None,
            plans=tuple(self.plans),
            pending=tuple(self.pending),
            skipped=tuple(self.skipped),
        )

    def decide_resource(self, request: ResourceObjects) -> None:
        resource = request.resource
        facts = promotion_facts(resource, self.view.options.promotion_source)
        if not (facts.may_take_over if self.view.is_hardened else facts.may_promote):
            self.timers.pop(resource.name, None)
            return
        if resource.quorum != MAJORITY or not request.claims:
            return
        lost = [
            (name, self.view.nodes[name])
            for name, connection in zip(request.node_names, resource.connections, strict=True)
            if name != self.view.options.node_name
            and connection.connection_state != CONNECTED
            and name in self.view.nodes
        ]
        if not lost:
            return
        if request.is_read_only():
            for name, _ in lost:
                self.skipped += [_skip(request, name, pod, "read-only") for pod in _users(request, name)]
            return
        for name, node in lost:
            self._decide_loss(request, name, node)

    def _decide_loss(self, request: ResourceObjects, name: str, node: NodeView) -> None:
        users, attachments = _users(request, name), request.attachments_on(name)
        if not users and not attachments:
            return
        since = self._since(request.resource.name, name)
        if not has_elapsed(since, self.view.options.fail_over_timeout_s, self.view.given.now):
            self.pending.append(PendingLoss(resource=request.resource.name, node=name, since=since))
            return
        self.plans.append(self._plan(request, node, users))

    def _since(self, resource: str, node: str) -> str:
        """When the loss was first seen: now, if it was not seen before."""
        now = self.view.given.now
        if not self.view.is_hardened:
            return str(self.timers.setdefault(resource, now))
        before = self.before.get(resource)
        since = before.get(node, now) if isinstance(before, dict) else now
        return str(self.timers.setdefault(resource, {}).setdefault(node, since))

    def _plan(self, request: ResourceObjects, node: NodeView, users: list[PodView]) -> Plan:
        name, options, hardened = node.metadata.name, self.view.options, self.view.is_hardened
        grace = options.grace_period_s if node.is_ready else 0
        attachments = request.attachments_on(name)[: None if hardened else 1]
        skipped = [one for pod in users if (one := self._exemption(request, name, pod)) is not None]
        self.skipped += skipped
        exempt = {(one.namespace, one.pod) for one in skipped}
        removals = [
            self._removal(request, node, pod, grace)
            for pod in users
            if pod.metadata.key not in exempt and not (hardened and node.is_ready and pod.is_terminating)
        ]
        detachments = [
            PlannedDetachment(
                name=one.metadata.name,
                uid=one.metadata.uid,
                grace=grace,
                events=(
                    StorageEvent(
                        type="Warning",
                        reason=PROVED_BY_QUORUM,
                        action="VolumeAttachmentDeleted",
                        regarding=reference_to(ATTACHMENT, one),
                        note=f"node {name} cannot write {request.resource.name} any more: it has no quorum there",
                    ),
                ),
            )
            for one in attachments
        ]
        return Plan(
            of="failover",
            profile=self.view.profile,
            resource=request.resource.name,
            node=name,
            node_ready=node.is_ready,
            taint=self.view.plan_taint(
                node,
                LOST_QUORUM,
                "NodeStorageQuorumLost",
                reference_to(ATTACHMENT, attachments[0]) if attachments else None,
                f"node {name} lost quorum of {request.resource.name}, as {options.node_name} sees it",
            ),
            removals=tuple(removals),
            # what goes on running must keep its volume: Kubernetes would give it to another pod as well
            detachments=() if hardened and exempt else tuple(detachments),
        )

    def _exemption(self, request: ResourceObjects, node: str, pod: PodView) -> SkippedPod | None:
        """Why a pod is left alone; ``None``: it is not."""
        if not pod.metadata.owner_references:
            return _skip(request, node, pod, "unowned")
        if IGNORE_ANNOTATION in pod.metadata.annotations:
            return _skip(request, node, pod, "annotation")
        if self.view.options.fail_over_unsafe_pods:
            return None
        for volume in pod.spec.volumes:
            why = unsafe_reason(volume, pod.metadata.namespace, self.view.volumes_by_claim)
            if why:
                return _skip(request, node, pod, "unsafe", f"{volume.name}: {why}")
        return None

    def _removal(self, request: ResourceObjects, node: NodeView, pod: PodView, grace: int) -> PlannedRemoval:
        return PlannedRemoval(
            op="evict" if node.is_ready else "delete_pod",
            namespace=pod.metadata.namespace,
            pod=pod.metadata.name,
            uid=pod.metadata.uid,
            grace=grace,
            events=(
                StorageEvent(
                    type="Warning",
                    reason=PROVED_BY_QUORUM,
                    action="EvictedPod",
                    regarding=reference_to(POD, pod),
                    related=reference_to(VOLUME, request.volumes[0]),
                    note=f"node {node.metadata.name} lost quorum of volume {request.resource.name}",
                ),
            ),
        )


def _users(request: ResourceObjects, node: str) -> list[PodView]:
    """Pods that run there; those that are being deleted still do."""
    return [pod for pod in request.pods_on(node) if pod.is_running]


def _skip(request: ResourceObjects, node: str, pod: PodView, reason: Any, detail: str = "") -> SkippedPod:
    return SkippedPod(
        resource=request.resource.name,
        node=node,
        namespace=pod.metadata.namespace,
        pod=pod.metadata.name,
        reason=reason,
        detail=detail,
    )


FAILOVER: Final = Decision(
    "storage.failover",
    fail_over,
    TickInput,
    TickResult,
    "Which pods leave nodes that can write their volumes no more",
    lambda result: not result.plans and result.error is None,
    nulls_are_absent=True,
)
