"""Pods leave a node that this one has lost, once DRBD proves that the node can write their volume no more.

This node has quorum with ``majority`` and its own data is current, so that the lost side has no quorum: what it wrote
last is here, and what it writes from now on is never part of the volume. Node after node of a resource is decided for
itself; each has its own timer (docs/design/storage-decisions.md#storagefailover).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from outlive.runtime import Decision
from outlive.storage.drbd import CONNECTED, MAJORITY, UP_TO_DATE, DrbdResource, promotion_facts, take_over_checks
from outlive.storage.objects import (
    ATTACHMENT,
    IGNORE_ANNOTATION,
    POD,
    VOLUME,
    NodeView,
    PodView,
    is_vm_part,
    reference_to,
)
from outlive.storage.tick import (
    LOST_QUORUM,
    PROVED_BY_QUORUM,
    PendingLoss,
    Plan,
    PlannedDetachment,
    PlannedRemoval,
    RecordedCheck,
    ResourceObjects,
    SkippedPod,
    StorageEvent,
    TickInput,
    TickResult,
    TickView,
    WaitingLoss,
    has_elapsed,
    view_of,
)

# The brake on mass failovers, and who acts first: rules of our own about many losses, and about many survivors.
#
# A loss is proven by quorum, so that neither rule is needed for the data. The brake gives a network that flaps the
# time to come back before half of a cluster is moved; the stand-by keeps survivors from all doing the same at once.


def is_mass_loss(lost: Iterable[str], nodes: Iterable[str], domains: Mapping[str, str], fraction: float) -> bool:
    """Whether more than the fraction is lost, of all nodes and of their failure domains: a rack is one failure."""
    gone, everybody = set(lost), set(nodes)
    units = {domains.get(node, f"node {node}") for node in everybody}
    lost_units = {domains.get(node, f"node {node}") for node in gone}
    return len(gone) > fraction * len(everybody) and len(lost_units) > fraction * len(units)


def first_actor(resource: DrbdResource, own_name: str) -> str:
    """The survivor that acts first on losses of the resource: of those with current data that of the lowest node id.

    The own name where that is this node, or where nobody can say.
    """
    if resource.node_id is None:
        return own_name
    candidates = [(resource.node_id, own_name)]
    for connection in resource.connections:
        current = connection.peer_disk_states and set(connection.peer_disk_states) == {UP_TO_DATE}
        if connection.connection_state == CONNECTED and current and connection.peer_node_id is not None:
            candidates.append((connection.peer_node_id, connection.name))
    return min(candidates)[1]


def fail_over(given: TickInput) -> TickResult:
    """Plans for every lost node whose time is over; the times of those whose time is not are in ``pending``."""
    return _run(given)


def explain_failover(given: TickInput) -> tuple[TickResult, tuple[RecordedCheck, ...]]:
    """The answer of ``fail_over``, and every check that led to it with the value that it saw."""
    checks: list[RecordedCheck] = []
    return _run(given, checks), tuple(checks)


def _run(given: TickInput, checks: list[RecordedCheck] | None = None) -> TickResult:
    view = view_of(given)
    if view.is_stale:
        return TickResult(memory=given.memory, stale=True)
    run = _FailoverRun(view, checks)
    for request in view.requests:
        run.find_losses(request)
    run.decide()
    return run.build_result()


def is_lost_to(request: ResourceObjects, node: str) -> bool:
    """Whether that node can write the resource no more, as far as this node's own replica proves it."""
    resource = request.resource
    lost = any(
        name == node and connection.connection_state != CONNECTED
        for name, connection in zip(request.node_names, resource.connections, strict=True)
    )
    return lost and resource.quorum == MAJORITY and promotion_facts(resource).may_take_over


class _Loss(NamedTuple):
    """A peer that looks lost to a resource, with pods or attachments there."""

    request: ResourceObjects
    node: NodeView
    users: list[PodView]
    since: str


class _FailoverRun:
    """One run; timers are kept by resource in ``compat``, by resource and node in ``hardened``."""

    def __init__(self, view: TickView, checks: list[RecordedCheck] | None) -> None:
        self.view = view
        self.checks = checks
        self.losses: list[_Loss] = []
        self.plans: list[Plan] = []
        self.pending: list[PendingLoss] = []
        self.waiting: list[WaitingLoss] = []
        self.skipped: list[SkippedPod] = []
        self.braked = False
        before = view.given.memory if isinstance(view.given.memory, dict) else {}
        self.before: dict[str, Any] = before.get("firstSeen") or {}
        self.undone: dict[str, Any] = before.get("undone") or {}
        """Of losses that another survivor acts on first: since when the same was left undone."""
        self.still_undone: dict[str, Any] = {}
        self.timers: dict[str, Any] = {} if view.is_hardened else dict(self.before)
        """In ``hardened`` every timer is cleared that this run does not keep."""

    def build_result(self) -> TickResult:
        found = {"firstSeen": self.timers, "undone": self.still_undone}
        memory = {name: value for name, value in found.items() if value}
        return TickResult(
            memory=memory or None,
            plans=tuple(self.plans),
            pending=tuple(self.pending),
            skipped=tuple(self.skipped),
            waiting=tuple(self.waiting),
            braked=self.braked,
        )

    def check(self, request: ResourceObjects, name: str, holds: bool, value: object = "", **where: str) -> bool:
        """Whether it holds; kept where somebody wants to know why."""
        if self.checks is not None:
            one = RecordedCheck(resource=request.resource.name, check=name, holds=holds, value=str(value), **where)
            self.checks.append(one)
        return holds

    def find_losses(self, request: ResourceObjects) -> None:
        """The checks of a resource, then those of each of its connections."""
        resource, options = request.resource, self.view.options
        if not self._is_proven(request):
            self.timers.pop(resource.name, None)
            return
        if not self.check(request, "quorum-option", resource.quorum == MAJORITY, resource.quorum or "not given"):
            return
        claims = ", ".join(f"{claim.namespace}/{claim.name}" for claim in request.claims)
        if not self.check(request, "has-claim", bool(request.claims), claims or "no volume with a claim"):
            return
        lost = []
        for name, connection in zip(request.node_names, resource.connections, strict=True):
            state, known = connection.connection_state, name in self.view.nodes
            if (
                name != options.node_name
                and self.check(request, "connection-lost", state != CONNECTED, state, node=name)
                and self.check(request, "node-exists", known, name, node=name)
            ):
                lost.append((name, self.view.nodes[name]))
        if not lost:
            return
        if not self.check(request, "has-writer", not request.is_read_only(), f"{len(request.pods)} pods"):
            for name, _ in lost:
                self.skipped += [_skipped_pod(request, name, pod, "read-only") for pod in running_users(request, name)]
            return
        for name, node in lost:
            users, attachments = running_users(request, name), request.attachments_on(name)
            seen = f"{len(users)} running pods, {len(attachments)} attachments"
            if self.check(request, "is-used-there", bool(users or attachments), seen, node=name):
                self.losses.append(_Loss(request, node, users, self._first_seen(resource.name, name)))

    def _is_proven(self, request: ResourceObjects) -> bool:
        resource, source = request.resource, self.view.options.promotion_source
        if not self.view.is_hardened:
            return self.check(request, "may-promote", promotion_facts(resource, source).may_promote)
        values = {
            "has-devices": f"{len(resource.devices)} volumes",
            "data-current": ", ".join(device.disk_state for device in resource.devices),
            "no-primary-peer": resource.primary_peer or "no peer is primary",
        }
        checks = take_over_checks(resource, source)
        failed = [name for name, holds in checks if not self.check(request, name, holds, values.get(name, ""))]
        return not failed

    def decide(self) -> None:
        """Which losses are acted on now."""
        own, options, now = self.view.given.own, self.view.options, self.view.given.now
        if own.brake_fraction is not None:
            names = {name for request in self.view.requests for name in request.node_names}
            lost = {loss.node.metadata.name for loss in self.losses}
            self.braked = is_mass_loss(lost, names | {options.node_name}, own.domains, own.brake_fraction)
        acted = []
        for loss in self.losses:
            resource, name = loss.request.resource, loss.node.metadata.name
            where: dict[str, Any] = {"resource": resource.name, "node": name, "since": loss.since}
            is_over = has_elapsed(loss.since, options.fail_over_timeout_s, now)
            seen = f"lost since {loss.since}, acts after {options.fail_over_timeout_s:g} s"
            if not self.check(loss.request, "time-over", is_over, seen, node=name):
                self.pending.append(PendingLoss(**where))
                continue
            held = self.braked and not has_elapsed(loss.since, options.fail_over_timeout_s + own.brake_window_s, now)
            seen = "so much is lost at once that it is waited for" if self.braked else "few nodes are lost"
            if not self.check(loss.request, "no-mass-failover", not held, seen, node=name):
                self.waiting.append(WaitingLoss(**where, rule="brake"))
                continue
            acted.append(loss)
        for loss in acted:
            resource, name = loss.request.resource, loss.node.metadata.name
            nodes = {one.node.metadata.name for one in acted if one.request is loss.request}
            where = {"resource": resource.name, "node": name, "since": loss.since}
            other = self._find_unproven(loss, nodes)
            seen = f"another part is on {other}, which is not lost for long enough" if other else "no part is missing"
            if not self.check(loss.request, "vms-whole", not other, seen, node=name):
                self.waiting.append(WaitingLoss(**where, rule="migration", detail=other))
                continue
            plan, skipped = self._plan_loss(loss, nodes)
            actor = first_actor(resource, options.node_name) if own.standby_delay_s else options.node_name
            acts = actor == options.node_name or self._is_left_undone(plan)
            if not self.check(loss.request, "acts-first", acts, f"{actor} acts first", node=name):
                self.waiting.append(WaitingLoss(**where, rule="standby", detail=actor))
                continue
            self.skipped += skipped
            self.plans.append(plan)

    def _is_left_undone(self, plan: Plan) -> bool:
        """Whether the survivor that acts first has not done this for as long as a stand-by waits.

        The time begins anew when there was nothing left to do, and when the node's pods are to be deleted instead of
        evicted: the first one needs its time for that as well.
        """
        if plan.taint is None and not plan.removals and not plan.detachments:
            return False
        kind = "ready" if plan.node_ready else "not-ready"
        before = self.undone.get(str(plan.resource), {}).get(plan.node)
        known = isinstance(before, list) and len(before) == 2 and before[0] == kind
        since = str(before[1]) if known else self.view.given.now
        self.still_undone.setdefault(str(plan.resource), {})[plan.node] = [kind, since]
        return has_elapsed(since, self.view.given.own.standby_delay_s, self.view.given.now)

    def _first_seen(self, resource: str, node: str) -> str:
        """When the loss was first seen: now, if it was not seen before."""
        now = self.view.given.now
        if not self.view.is_hardened:
            return str(self.timers.setdefault(resource, now))
        before = self.before.get(resource)
        since = before.get(node, now) if isinstance(before, dict) else now
        return str(self.timers.setdefault(resource, {}).setdefault(node, since))

    def _find_unproven(self, loss: _Loss, nodes: set[str]) -> str:
        """A node that this resource has lost as well, whose time is not over, and on which another part of a VM is;
        empty: there is none. Both ends of a migration go together."""
        unproven = {one.node.metadata.name for one in self.losses if one.request is loss.request} - nodes
        parts = (part for pod in loss.users for part in self.view.vms.parts_of(pod))
        return next((part.spec.node_name for part in parts if part.spec.node_name in unproven), "")

    def _plan_loss(self, loss: _Loss, nodes: set[str]) -> tuple[Plan, list[SkippedPod]]:
        """What is done about a loss, and the pods that are left alone. ``nodes``: those that are lost to the resource
        and acted on."""
        request, node = loss.request, loss.node
        name, options, hardened = node.metadata.name, self.view.options, self.view.is_hardened
        ready = self.view.counts_as_ready(node)
        grace = options.grace_period_s if ready else 0
        attachments = request.attachments_on(name)[: None if hardened else 1]
        found = {pod.metadata.key: pod for pod in loss.users}
        for pod in loss.users:
            for part in self.view.vms.parts_of(pod):
                if part.spec.node_name in nodes:
                    found.setdefault(part.metadata.key, part)
        users = list(found.values())
        skipped = [one for pod in users if (one := self._find_exemption(request, name, pod)) is not None]
        exempt = {(one.namespace, one.pod) for one in skipped}
        removals = [
            self._plan_removal(request, pod)
            for pod in users
            if pod.metadata.key not in exempt and not (hardened and self._is_ready(pod) and pod.is_terminating)
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
        plan = Plan(
            of="failover",
            profile=self.view.profile,
            resource=request.resource.name,
            node=name,
            further_nodes=tuple(sorted({pod.spec.node_name for pod in users} - {name})),
            node_ready=ready,
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
        return plan, skipped

    def _find_exemption(self, request: ResourceObjects, node: str, pod: PodView) -> SkippedPod | None:
        """Why a pod is left alone, be it for another part of its VM; ``None``: it is not."""
        for part in self.view.vms.parts_of(pod):
            found = self._exempt_itself(part)
            if found is not None:
                reason, detail = found
                if part is not pod:
                    detail = f"{part.metadata.namespace}/{part.metadata.name} of the same VM {detail}".rstrip()
                return _skipped_pod(request, node, pod, reason, detail)
        return None

    def _exempt_itself(self, pod: PodView) -> tuple[str, str] | None:
        """Reason and detail."""
        if not pod.metadata.owner_references:
            return "unowned", ""
        if IGNORE_ANNOTATION in pod.metadata.annotations:
            return "annotation", ""
        unsafe = [] if self.view.options.fail_over_unsafe_pods else self.view.unsafe_volumes(pod)
        return ("unsafe", unsafe[0]) if unsafe else None

    def _is_ready(self, pod: PodView) -> bool:
        node = self.view.nodes.get(pod.spec.node_name)
        return node is not None and self.view.counts_as_ready(node)

    def _plan_removal(self, request: ResourceObjects, pod: PodView) -> PlannedRemoval:
        ready = self._is_ready(pod)
        by_budget = ready and not (self.view.given.own.kubevirt and is_vm_part(pod))
        return PlannedRemoval(
            op="evict" if by_budget else "delete_pod",
            namespace=pod.metadata.namespace,
            pod=pod.metadata.name,
            uid=pod.metadata.uid,
            grace=self.view.options.grace_period_s if ready else 0,
            events=(
                StorageEvent(
                    type="Warning",
                    reason=PROVED_BY_QUORUM,
                    action="EvictedPod",
                    regarding=reference_to(POD, pod),
                    related=reference_to(VOLUME, request.volumes[0]),
                    note=f"node {pod.spec.node_name} lost quorum of volume {request.resource.name}",
                ),
            ),
        )


def running_users(request: ResourceObjects, node: str) -> list[PodView]:
    """Pods that run there; those that are being deleted still do."""
    return [pod for pod in request.pods_on(node) if pod.is_running]


def _skipped_pod(request: ResourceObjects, node: str, pod: PodView, reason: Any, detail: str = "") -> SkippedPod:
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
