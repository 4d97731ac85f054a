"""What of a request goes into the audit log, and how refusals are counted."""

from __future__ import annotations

from typing import Final

from starlette.types import Scope

from outlive.api.auth import HOSTS, Identity, Role
from outlive.api.middleware import ERROR, IDENTITY, REQUEST_ID
from outlive.base.clock import Clock, as_datetime
from outlive.resources import (
    Console,
    DecisionRecord,
    Election,
    Event,
    Fault,
    HostLog,
    Hypervisor,
    HypervisorUsage,
    Membership,
    Resource,
    Secret,
    Token,
)
from outlive.runtime.audit import FIELDS, TEXT, AuditEntry, AuditLog, Refusals
from outlive.runtime.metrics import Metrics
from outlive.store.tls import KEY_PATH, SCREEN_PATH

TARGET: Final = "target"
CHANGED: Final = "changed"
"""Keys of a request's state: what it is about, and (name, fields, version) of what it changed."""
SECRET_PATHS: Final = (KEY_PATH, SCREEN_PATH.partition("{")[0])
VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "update", "DELETE": "delete"}
UNAUDITED: Final = ("/scheduler/", "/apis/authorization.k8s.io/")
"""Below these nothing is written, whatever the method."""
_SECRET_KINDS: Final = (Secret, Console, Token)
_ROUTINE: Final = (Membership, Election, HypervisorUsage, HostLog, Console, Event, DecisionRecord, Fault)
REFUSED: Final = (401, 403)


class RequestAudit:
    """Writes down requests that change something, read secrets or were refused."""

    def __init__(
        self, log: AuditLog | None, refusals: Refusals, metrics: Metrics, clock: Clock, *, routine: bool
    ) -> None:
        self._log = log
        self._refusals = refusals
        self._clock = clock
        self._routine = routine
        self._refused = metrics.counter(
            "api_refusals_total", "Requests without a valid token (401) or without the right (403)", ("status", "role")
        )

    def record(self, scope: Scope, status: int) -> None:
        """Record one finished request."""
        identity: Identity | None = scope["state"].get(IDENTITY)
        if status in REFUSED:
            self._refused.labels(str(status), identity.role if identity is not None else "").inc()
            client = (scope.get("client") or ("",))[0]
            if not self._refusals.add(self._clock.now(), client):
                return
        if self._log is not None and is_audited(scope, status, routine=self._routine):
            self._log.put(audit_entry(scope, status, self._clock.now()))


def is_audited(scope: Scope, status: int, *, routine: bool) -> bool:
    """Whether the request is one that goes into the log. ``routine``: also what hosts write all the time."""
    path, state = scope["path"], scope["state"]
    if status in REFUSED:
        return True
    kind: type[Resource] | None = state[TARGET].kind if TARGET in state else None
    if scope["method"] in ("GET", "HEAD"):
        return path.startswith(SECRET_PATHS) or (kind is not None and issubclass(kind, _SECRET_KINDS))
    if path.startswith(UNAUDITED) or scope["method"] == "OPTIONS":
        return False
    identity: Identity | None = state.get(IDENTITY)
    if routine or status >= 400 or kind is None or identity is None:
        return True
    if identity.role not in HOSTS | {Role.CONTROLLER}:
        return True
    return not issubclass(kind, _ROUTINE) and not (kind is Hypervisor and state[TARGET].status)


def audit_entry(scope: Scope, status: int, now: float) -> AuditEntry:
    """The entry of a finished request."""
    state, method = scope["state"], scope["method"]
    identity: Identity | None = state.get(IDENTITY)
    verb, what = method.lower(), scope["path"]
    if (target := state.get(TARGET)) is not None:
        verb = VERBS.get(method, "read")
        what = f"{target.kind.kind()}/{target.name}{'/status' if target.status else ''}"
    changed: tuple[str, tuple[str, ...], str] = state.get(CHANGED, ("", (), ""))
    name, fields, version = changed
    return AuditEntry(
        at=as_datetime(now),
        token=identity.name if identity is not None else "",
        role=identity.role if identity is not None else "",
        host=identity.host if identity is not None else "",
        client=(scope.get("client") or ("",))[0],
        verb=verb,
        object=(f"{what}{name}" if what.endswith("/") else what)[:TEXT],
        fields=tuple(fields[:FIELDS]),
        version=version,
        status=status,
        code=state.get(ERROR, ""),
        request_id=state.get(REQUEST_ID, ""),
    )
