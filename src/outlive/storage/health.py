"""What ``/healthz`` of the storage agent answers, by which Kubernetes starts a process that hangs anew."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final, Literal

import msgspec

from outlive.runtime.decisions import Decision
from outlive.storage.options import AgentOptions, Profile


class HealthInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the process knows about itself; ages in seconds."""

    profile: Profile = "hardened"
    options: AgentOptions = msgspec.field(default_factory=AgentOptions)
    since_tick_s: float | None = None
    """Since the last tick began; absent: none has."""
    caches_filled: bool = False
    own_node_known: bool = False
    """Whether a Kubernetes node of the own name exists."""
    snapshot_age_s: float | None = None
    """Age of the last state of DRBD; absent: there is none."""


class HealthAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An answer of HTTP."""

    status: int
    code: Literal["ok", "late", "caches", "node-missing", "stale"]
    body: str


def check_health(given: HealthInput) -> HealthAnswer:
    """The first check that fails: ticks, caches, own node, and unless ``compat`` the age of what DRBD says."""
    options, tick_s, age_s = given.options, given.since_tick_s, given.snapshot_age_s
    if tick_s is None or tick_s > options.deadline_s + options.reconcile_interval_s:
        shown = "infinite " if tick_s is None else f"{tick_s:.1f}"
        return _unhealthy("late", f"too long since last update: {shown}s")
    if not given.caches_filled:
        return _unhealthy("caches", "informers not synced")
    if not given.own_node_known:
        return _unhealthy("node-missing", f"no Kubernetes node is called {options.node_name!r}: check --node-name")
    if given.profile == "hardened" and (age_s is None or age_s > options.drbd_stale_after_s):
        shown = "there is none yet" if age_s is None else f"it is {age_s:.1f}s old"
        return _unhealthy("stale", f"no recent state of DRBD: {shown}; does drbdsetup hang or fail?")
    return HealthAnswer(status=HTTPStatus.OK, code="ok", body="ok")


def _unhealthy(code: Literal["late", "caches", "node-missing", "stale"], body: str) -> HealthAnswer:
    return HealthAnswer(status=HTTPStatus.INTERNAL_SERVER_ERROR, code=code, body=body)


HEALTH: Final = Decision(
    "storage.health",
    check_health,
    HealthInput,
    HealthAnswer,
    "Whether the storage agent does its work",
    nulls_are_absent=True,
)
