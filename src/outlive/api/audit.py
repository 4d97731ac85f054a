"""What of a request goes into the audit log, and how refusals are counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.types import Scope

from outlive.api.auth import ADMISSION_PATH, HOSTS, Identity, Role
from outlive.api.middleware import ERROR, IDENTITY, REQUEST_ID
from outlive.base import Clock, as_datetime
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
    Notification,
    Resource,
    Secret,
    Token,
)
from outlive.runtime import AuditEntry, AuditLog, Metrics, Refusals, TokenShares, shorten, shorten_fields
from outlive.store import KEY_PATH, SCREEN_PATH

TARGET: Final = "target"
CHANGED: Final = "changed"
DRY_RUN: Final = "dry_run"
WATCH: Final = "watch"
"""Keys of a request's state: what it is about, (name, fields, version) of what it changed, whether it only would have,
and whether it is a watch."""
_RECORDED: Final = "recorded"
"""The key of a request that is in the log before it has ended."""
SECRET_PATHS: Final = (KEY_PATH, SCREEN_PATH.partition("{")[0])
VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "update", "DELETE": "delete"}
UNAUDITED: Final = ("/scheduler/", "/apis/authorization.k8s.io/", ADMISSION_PATH)
"""Below these nothing is written, whatever the method."""
_SECRET_KINDS: Final = (Secret, Console, Token)
_WHOLE: Final = ("",)
_ROUTINE: Final[Mapping[type[Resource], tuple[str, ...]]] = {
    Membership: ("record.seq", "record.nonce", "record.guard", "record.silent"),
    Election: ("record.renewals", "record.nonce"),
    Hypervisor: (
        *(path for path, names in Hypervisor.info.writers.fields.items() if "daemon" in names and path != "spec.drain"),
        *("status.rehearsed", "status.rehearsedSeq", "status.powerAnswerS"),
    ),
    **dict.fromkeys((HypervisorUsage, HostLog, Console, Event, DecisionRecord, Fault, Notification), _WHOLE),
}
"""Fields that hosts and controllers write all the time. Who condemns a host, proves it dead, enters it anew or becomes
primary writes others."""
REFUSED: Final = (401, 403)


class RequestAudit:
    """Writes down requests that change something, read secrets or were refused."""

    def __init__(
        self,
        log: AuditLog | None,
        refusals: Refusals,
        shares: TokenShares,
        metrics: Metrics,
        clock: Clock,
        *,
        routine: bool,
    ) -> None:
        self._log = log
        self._refusals = refusals
        self._shares = shares
        self._clock = clock
        self._routine = routine
        self._failures = Refusals()
        """Requests that failed otherwise, so that nobody fills the log with them until it has forgotten the rest."""
        self._dry_runs = Refusals()
        """Requests that changed nothing, for the same reason."""
        self._left_out = 0
        """Requests since the last entry that were not written down."""
        self._refused = metrics.add_counter(
            "api_refusals_total", "Requests without a valid token (401) or without the right (403)", ("status", "role")
        )

    def begin(self, scope: Scope, status: int) -> None:
        """Record a watch whose answer begins: it may last for an hour, and a server that is killed sees no end."""
        if scope["state"].get(WATCH):
            self.record(scope, status)
            scope["state"][_RECORDED] = True

    def record(self, scope: Scope, status: int) -> None:
        """Record one finished request, unless it is in the log since it began."""
        if scope["state"].get(_RECORDED):
            return
        identity: Identity | None = scope["state"].get(IDENTITY)
        if status in REFUSED:
            self._refused.labels(str(status), identity.role if identity is not None else "").inc()
        elif self._log is None or not is_audited(scope, status, routine=self._routine):
            return
        counts = self._refusals if status in REFUSED else self._failures if status >= 400 else None
        if counts is None and scope["state"].get(DRY_RUN):
            counts = self._dry_runs
        now = self._clock.now()
        if counts is not None:
            client, token = (scope.get("client") or ("",))[0], identity.name if identity is not None else ""
            if not counts.add(now, client, token):
                self._left_out += 1
                return
        if self._log is None:
            return
        entry = audit_entry(scope, status, now)
        if self._shares.take(entry, now, changed=counts is None and is_audited(scope, status, routine=False)):
            self._log.put(msgspec.structs.replace(entry, omitted=self._left_out))
            self._left_out = 0
        for summary in self._shares.take_summaries(now):
            self._log.put(summary)


def is_audited(scope: Scope, status: int, *, routine: bool) -> bool:
    """Whether the request is one that goes into the log. ``routine``: also what hosts write all the time."""
    path, state = scope["path"], scope["state"]
    identity: Identity | None = state.get(IDENTITY)
    if status in REFUSED:
        return True
    if identity is None:  # nobody is let in to do anything: a path or method that is not there
        return False
    kind: type[Resource] | None = state[TARGET].kind if TARGET in state else None
    if scope["method"] in ("GET", "HEAD"):
        return path.startswith(SECRET_PATHS) or (kind is not None and issubclass(kind, _SECRET_KINDS))
    if path.startswith(UNAUDITED) or scope["method"] == "OPTIONS":
        return False
    if routine or status >= 400 or kind is None:
        return True
    if identity.role not in HOSTS | {Role.CONTROLLER}:
        return True
    routinely = _ROUTINE.get(kind, ())
    if routinely == _WHOLE:
        return False
    fields: tuple[str, ...] = state[CHANGED][1] if CHANGED in state else ("",)
    return any(not any(one == path or one.startswith(f"{path}.") for path in routinely) for one in fields)


def audit_entry(scope: Scope, status: int, now: float) -> AuditEntry:
    """The entry of a finished request."""
    state, method = scope["state"], scope["method"]
    identity: Identity | None = state.get(IDENTITY)
    verb, what = method.lower(), scope["path"]
    if (target := state.get(TARGET)) is not None:
        verb = VERBS.get(method, "read")
        what = f"{target.kind.kind()}/{target.name}{'/status' if target.status else ''}"
    if state.get(WATCH):
        verb = "watch"
    if state.get(DRY_RUN):
        verb = f"dry-run {verb}"
    changed: tuple[str, tuple[str, ...], str] = state.get(CHANGED, ("", (), ""))
    name, fields, version = changed
    return AuditEntry(
        at=as_datetime(now),
        token=shorten(identity.name) if identity is not None else "",
        role=identity.role if identity is not None else "",
        host=identity.host if identity is not None else "",
        client=(scope.get("client") or ("",))[0],
        verb=verb,
        object=shorten(f"{what}{name}" if what.endswith("/") else what),
        fields=shorten_fields(fields),
        version=version,
        status=status,
        code=state.get(ERROR, ""),
        request_id=state.get(REQUEST_ID, ""),
    )
