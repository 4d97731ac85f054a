"""Why a pod, a volume or a node is left where it is, or is not: every check with the value that it sees now.

The checks are those of the decisions themselves, which record them while they decide (``storage.explain``).
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from outlive.base import NotFound
from outlive.runtime import Decision
from outlive.storage.failover import explain_failover
from outlive.storage.metrics import MALFORMED_NAMED
from outlive.storage.objects import IGNORE_ANNOTATION, PodView
from outlive.storage.own_node import is_stuck
from outlive.storage.tick import RecordedCheck, ResourceObjects, TickInput, TickResult, TickView

Subject = Literal["pod", "volume", "node"]


class StorageExplainInput(msgspec.Struct, frozen=True, kw_only=True):
    """What a tick would be given now, and what is asked about."""

    tick: TickInput
    kind: Subject
    name: str
    """``namespace/name`` of a pod; a persistent volume or a resource; a node."""
    malformed: dict[str, str] = {}
    """``kind/key`` of objects that are not understood → why."""
    failure: str = ""
    """Why the last poll of DRBD failed."""
    troubles: tuple[str, ...] = ()
    """What keeps the agent from knowing or doing something, in words."""


class ResourceExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """One resource: what was checked, up to the first check that does not hold, and what follows."""

    resource: str
    role: str
    quorum: str
    checks: tuple[RecordedCheck, ...]
    next: tuple[str, ...]
    """What would be done at the next tick, or why nothing would."""


class StorageExplanation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer."""

    subject: str
    seen_from: str
    """The node whose agent says it: others see other things."""
    resources: tuple[ResourceExplanation, ...]
    notices: tuple[str, ...]
    """What keeps everything from being done, or is not understood."""


def explain_subject(given: StorageExplainInput) -> StorageExplanation:
    """Every resource that concerns the subject, as this node sees it. ``NotFound``: nothing here concerns it."""
    view = TickView(given.tick)
    result, checks = explain_failover(given.tick)
    requests = [one for one in view.requests if _is_about(one, given.kind, given.name)]
    notices = _list_notices(given, view)
    if not requests and not notices:
        raise NotFound(
            f"no DRBD volume on {view.options.node_name} concerns {given.kind} {given.name}",
            remedy="ask the agent of a node that has a replica of the volume",
        )
    return StorageExplanation(
        subject=f"{given.kind} {given.name}",
        seen_from=view.options.node_name,
        resources=tuple(_explain_resource(view, one, result, checks, given) for one in requests),
        notices=tuple(notices),
    )


def _is_about(request: ResourceObjects, kind: Subject, name: str) -> bool:
    match kind:
        case "pod":
            return any("/".join(pod.metadata.key) == name or pod.metadata.name == name for pod in request.pods)
        case "volume":
            claims = [f"{claim.namespace}/{claim.name}" for claim in request.claims]
            return name in (request.resource.name, *(one.metadata.name for one in request.volumes), *claims)
        case "node":
            users = [pod.spec.node_name for pod in request.pods]
            return name in (*request.node_names, *users, *(one.spec.node_name for one in request.attachments))


def _list_notices(given: StorageExplainInput, view: TickView) -> list[str]:
    snapshot = given.tick.snapshot
    found = []
    if view.is_stale:
        age = "there is none yet" if snapshot is None else f"it is {snapshot.age_s:.0f} s old"
        found.append(f"nothing is done: the state of DRBD is not known ({age}; {given.failure or 'no poll has ended'})")
    found += given.troubles
    mine = [key for key in given.malformed if key.endswith(given.name)]
    others = [key for key in given.malformed if key not in mine]
    found += [f"{key} is not understood: {given.malformed[key]}" for key in mine + others[:MALFORMED_NAMED]]
    if len(others) > MALFORMED_NAMED:
        found.append(f"{len(others) - MALFORMED_NAMED} further objects are not understood: see the agent's log")
    return found


def _explain_resource(
    view: TickView,
    request: ResourceObjects,
    result: TickResult,
    checks: tuple[RecordedCheck, ...],
    given: StorageExplainInput,
) -> ResourceExplanation:
    resource, name = request.resource, request.resource.name
    mine = [one for one in checks if one.resource == name]
    if given.kind == "pod":
        mine += [
            one
            for pod in request.pods
            if given.name in (pod.metadata.name, "/".join(pod.metadata.key))
            for one in _check_pod(view, name, pod)
        ]
    if given.kind == "node":
        mine = [one for one in mine if one.node in ("", given.name)]
    return ResourceExplanation(
        resource=name,
        role=resource.role,
        quorum=resource.quorum or "not given",
        checks=tuple(mine),
        next=tuple(_list_next_steps(view, request, result, mine)),
    )


def _check_pod(view: TickView, resource: str, pod: PodView) -> list[RecordedCheck]:
    """Whether it would be moved if its node were lost."""
    unsafe = view.unsafe_volumes(pod)
    found = (
        ("is-running", pod.is_running, pod.status.phase),
        ("has-owner", bool(pod.metadata.owner_references), f"{len(pod.metadata.owner_references)} owners"),
        ("not-annotated", IGNORE_ANNOTATION not in pod.metadata.annotations, IGNORE_ANNOTATION),
        ("volumes-safe", not unsafe or view.options.fail_over_unsafe_pods, ", ".join(unsafe) or "all of DRBD"),
    )
    return [
        RecordedCheck(
            resource=resource,
            check=check,
            holds=holds,
            value=value,
            node=pod.spec.node_name,
            pod="/".join(pod.metadata.key),
        )
        for check, holds, value in found
    ]


def _list_next_steps(
    view: TickView, request: ResourceObjects, result: TickResult, checks: list[RecordedCheck]
) -> list[str]:
    resource, timeout_s = request.resource, view.options.fail_over_timeout_s
    steps = [
        f"node {plan.node}: {len(plan.removals)} pods leave, {len(plan.detachments)} attachments go"
        for plan in result.plans
        if plan.resource == resource.name
    ]
    steps += [
        f"node {one.node}: lost since {one.since}, acted on after {timeout_s:g} s"
        for one in result.pending
        if one.resource == resource.name
    ]
    steps += [
        f"node {one.node}: lost since {one.since}, waits: {one.rule} {one.detail}".rstrip()
        for one in result.waiting
        if one.resource == resource.name
    ]
    steps += [
        f"pod {one.namespace}/{one.pod} on {one.node} is left alone: {one.reason} {one.detail}".rstrip()
        for one in result.skipped
        if one.resource == resource.name
    ]
    if is_stuck(resource, hardened=view.is_hardened):
        steps.append("the volume is frozen here: its role is taken once no pod here wants it")
    if resource.force_io_failures:
        own = view.given.own
        then = f"; VMs of KubeVirt have {own.evacuation_limit_s:g} s to migrate away" if own.kubevirt else ""
        steps.append(f"the volume answers with I/O errors here: its pods here are evicted{then}")
    if not steps:
        failed = next((one for one in checks if not one.holds), None)
        steps.append("nothing: no peer is lost" if failed is None else f"nothing: {failed.check} does not hold")
    return steps


EXPLAIN: Final = Decision(
    "storage.explain",
    explain_subject,
    StorageExplainInput,
    StorageExplanation,
    "Why pods of a volume, or of a node, are moved or left where they are",
    lambda _: True,
    nulls_are_absent=True,
)
