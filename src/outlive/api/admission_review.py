"""``POST /admission/KEY``: the validating admission webhook for a Kubernetes API server that daemons write to directly.

It judges a write by the functions that judge one over this server's own API: the table of who writes what and its rules
(``api.permission``), and what is checked before an object is written or deleted (``api.admission``,
``api.neighbours``). What is judged is the version that the write replaces, which the API server sends. Nothing is
written, so that any controller answers, the leader or not. Users of the cluster have roles by their names and groups
(``identity_of``), which docs/how-to/kubernetes.md#direct tells.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from outlive.api.admission import check_admission, check_deletion, fill_from_definition
from outlive.api.auth import ADMISSION_PATH, CHECKED, HOSTS, LEASES_PATH, Identity, Role, may_write
from outlive.api.errors import TimedOut, status_document
from outlive.api.middleware import REQUEST_ID
from outlive.api.neighbours import DiskOwners, Neighbours
from outlive.api.permission import permit_write, require_readable
from outlive.api.quotas import HostQuotas
from outlive.api.requests import JSON, json_response, media_type
from outlive.base import BadInput, Clock, Forbidden, Invalid, NotFound, OutliveError, Refused, get_logger
from outlive.resources import (
    COORDINATOR_ACCOUNTS,
    GROUP,
    HOST_ACCOUNTS,
    PLURALS,
    Election,
    Hypervisor,
    Membership,
    Resource,
    Token,
)
from outlive.store import Malformed, Store, decode_stored, list_all

REVIEW_VERSION: Final = "admission.k8s.io/v1"
REVIEW_S: Final = 4.0
"""How long a judgement may take; the API server waits a second longer (``WEBHOOK_S``)."""
WEBHOOK_S: Final = 5
HOST_USER: Final = "outlive:host:"
"""Before the name of the host that a user is."""
COORDINATORS_GROUP: Final = "outlive:coordinators"
GROUPS: Final = {
    "system:masters": Role.ADMIN,
    "outlive:admins": Role.ADMIN,
    "outlive:controllers": Role.CONTROLLER,
    "outlive:operators": Role.OPERATOR,
}
"""Groups of users that are no hosts; the first that a user is in counts."""

LEASES: Final = tuple(sorted((Membership.info.plural, Election.info.plural)))
OTHERS: Final = tuple(sorted(set(PLURALS) - set(LEASES)))
"""Kinds by webhook: while many others are reviewed a renewal waits for none of them."""
CONTROLLER_ACCOUNT: Final = "outlive-controller"
SERVICE: Final = "outlive"
"""As the manifests call them (``deploy/kubernetes``)."""
_ACCOUNT: Final = "system:serviceaccount:"
CASCADES: Final = ("orphan", "foregroundDeletion")
"""Finalizers by which an API server remembers how what belongs to an object is deleted."""

_log = get_logger("api.admission")


class _ReviewUser(msgspec.Struct, frozen=True):
    username: str = ""
    groups: tuple[str, ...] = ()


class _Resource(msgspec.Struct, frozen=True):
    group: str
    resource: str


class ReviewedWrite(msgspec.Struct, frozen=True, rename="camel"):
    """A write that an API server asks about."""

    uid: str
    resource: _Resource
    operation: Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]
    user_info: _ReviewUser
    sub_resource: str = ""
    name: str = ""
    object: msgspec.Raw = msgspec.Raw()
    old_object: msgspec.Raw = msgspec.Raw()


class AdmissionReview(msgspec.Struct, frozen=True, rename="camel"):
    """What an API server sends."""

    api_version: Literal["admission.k8s.io/v1"]
    kind: Literal["AdmissionReview"]
    request: ReviewedWrite


def identity_of(user: str, groups: tuple[str, ...], namespace: str) -> Identity | None:
    """Whose role a user of the cluster has; ``None``: nobody's, who writes nothing.

    A host is a host alone, whatever groups it is in. ``namespace``: that of the controllers, whose own account may
    write everything, because they have judged already what others write through them.
    """
    account = user.removeprefix(_ACCOUNT) if user.startswith(_ACCOUNT) else ""
    place, _, name = account.partition(":")
    if user.startswith(HOST_USER):
        place = COORDINATOR_ACCOUNTS if COORDINATORS_GROUP in groups else HOST_ACCOUNTS
        name = user.removeprefix(HOST_USER)
    if place in (HOST_ACCOUNTS, COORDINATOR_ACCOUNTS) and name:
        return Identity(user, Role.HOST if place == HOST_ACCOUNTS else Role.COORDINATOR, host=name)
    if account == f"{namespace}:{CONTROLLER_ACCOUNT}":
        return Identity(user, Role.ADMIN)
    role = next((role for group, role in GROUPS.items() if group in groups), None)
    return Identity(user, role) if role is not None else None


def webhook_manifest(authority: bytes, key: str, *, namespace: str, url: str = "") -> dict[str, Any]:
    """The ``ValidatingWebhookConfiguration`` by which an API server asks before every write of our kinds.

    ``url``: of a controller as API servers reach it, such as ``https://127.0.0.1:8443`` where each has one on its own
    machine; without it the Service of the manifests. It fails closed, for all kinds alike: what nobody judged is not
    written.
    """
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "outlive"},
        "webhooks": [
            _build_webhook("leases", LEASES, f"{ADMISSION_PATH}/{key}{LEASES_PATH}", authority, namespace, url),
            _build_webhook("writes", OTHERS, f"{ADMISSION_PATH}/{key}", authority, namespace, url),
        ],
    }


def _build_webhook(
    name: str, plurals: Sequence[str], path: str, authority: bytes, namespace: str, url: str
) -> dict[str, Any]:
    service = {"namespace": namespace, "name": SERVICE, "port": 443, "path": path}
    client = {"url": f"{url.rstrip('/')}{path}"} if url else {"service": service}
    resources = [resource for plural in plurals for resource in (plural, f"{plural}/*")]
    operations = ["CREATE", "UPDATE", "DELETE"]
    return {
        "name": f"{name}.{GROUP}",
        "rules": [
            {
                "apiGroups": [GROUP],
                "apiVersions": ["*"],
                "operations": operations,
                "resources": resources,
                "scope": "*",
            }
        ],
        "clientConfig": {"caBundle": base64.b64encode(authority).decode(), **client},
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": WEBHOOK_S,
        "admissionReviewVersions": ["v1"],
    }


Judge = Callable[[ReviewedWrite], Awaitable[Sequence[str]]]
"""From a write to warnings for its writer. ``OutliveError`` where it is refused."""


async def answer_review(request: Request, judge: Judge) -> Response:
    """The answer to an API server; a write that was not judged in time is refused."""
    media_type(request, JSON)
    try:
        asked = msgspec.json.decode(await request.body(), type=AdmissionReview).request
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"not an AdmissionReview: {error}", remedy=f"send one of {REVIEW_VERSION}") from None
    answer: dict[str, Any] = {"uid": asked.uid, "allowed": True}
    try:
        async with asyncio.timeout(REVIEW_S):
            answer["warnings"] = list(await judge(asked))
    except (OutliveError, TimeoutError) as error:
        refusal = error if isinstance(error, OutliveError) else TimedOut(f"not judged within {REVIEW_S:g} s")
        answer |= {"allowed": False, "status": status_document(refusal, request.scope["state"][REQUEST_ID])}
        what = f"{asked.resource.resource}/{asked.name}"
        _log.warning("admission.refused", user=asked.user_info.username, object=what, why=str(refusal))
    return json_response({"apiVersion": REVIEW_VERSION, "kind": "AdmissionReview", "response": answer})


class AdmissionReviews:
    """The handler of ``POST /admission/KEY``."""

    def __init__(self, store: Store, clock: Clock, namespace: str) -> None:
        self._store = store
        self._owners = DiskOwners(store, clock.monotonic)
        self._quotas = HostQuotas(store, clock)
        self._namespace = namespace

    async def review(self, request: Request, _identity: Identity) -> Response:
        """Allow the write, or say why not, as every route of this server would."""
        return await answer_review(request, self._judge)

    async def _judge(self, asked: ReviewedWrite) -> tuple[str, ...]:
        """Warnings for the writer. ``OutliveError`` where the write is refused."""
        user = asked.user_info
        identity = identity_of(user.username, user.groups, self._namespace)
        kind = PLURALS.get(asked.resource.resource)
        if kind is not None and asked.operation == "UPDATE" and _ends_cascade(kind, asked):
            return ()
        if identity is None:
            raise Forbidden(
                f"the user {user.username} has no role in Outlive",
                remedy="put it into a group such as outlive:operators: see docs/how-to/kubernetes.md#direct",
            )
        if identity.name == f"{_ACCOUNT}{self._namespace}:{CONTROLLER_ACCOUNT}":
            return ()
        if kind is None or asked.resource.group != GROUP or asked.operation == "CONNECT":
            raise NotFound(f"there is no resource {asked.resource.resource[:80]!r} in this version of the controllers")
        status = asked.sub_resource == "status"
        before = _object_of(kind, asked.old_object, identity, "was")
        after = _object_of(kind, asked.object, identity, "is to be")
        verb = {"CREATE": "create", "DELETE": "delete" if asked.name or before is not None else "deletecollection"}
        may_write(identity, kind, status=status, name=asked.name, verb=verb.get(asked.operation, "update"))
        if before is None and after is None:  # a collection, whose objects are judged one by one, or nonsense that goes
            return ()
        if before is not None and after is not None:
            await require_readable(self._store, identity, before)
        _check_owners(identity, before, after)
        await permit_write(self._store, identity, before, after)
        await self._quotas.check(identity, before, after)
        if after is None:
            assert before is not None
            await self._check_deletion(before)
            return ()
        if status:
            return ()
        return await self._check_admission(after)

    async def _check_admission(self, obj: Resource) -> tuple[str, ...]:
        if fill_from_definition(obj) != obj:
            raise Invalid(
                f"size, disks, ports or the label of shared disks of VM {obj.name} are not as its definition says",
                place="spec.definition",
                remedy="outlive apply and outlive vm define write them out",
            )
        warnings = check_admission(obj)
        await Neighbours(self._store, self._owners).check(obj)
        return warnings

    async def _check_deletion(self, obj: Resource) -> None:
        await check_deletion(obj, self._store, force=False)
        if not isinstance(obj, Hypervisor):
            return
        async for token in list_all(self._store, Token):
            if token.host == obj.name and token.role in HOSTS:
                raise Refused(
                    f"host {obj.name} would come back with its token {token.name}",
                    remedy=f"outlive token revoke {token.name} first",
                )


def _object_of(kind: type[Resource], raw: msgspec.Raw, identity: Identity, when: str) -> Resource | None:
    """The object; of nonsense that was written earlier ``None`` for administrators, who may mend or delete it."""
    if bytes(raw) in (b"", b"null"):
        return None
    found = decode_stored(kind, raw)
    if not isinstance(found, Malformed):
        return found
    if when == "was" and identity.role is Role.ADMIN:
        return None
    raise Invalid(f"{kind.kind()}/{found.ref.name} as it {when} is not understood: {found.why}", remedy="mend it")


def _ends_cascade(kind: type[Resource], asked: ReviewedWrite) -> bool:
    """True for the garbage collector's part of a deletion: it takes its own finalizer from what is being deleted."""
    before, after = decode_stored(kind, asked.old_object), decode_stored(kind, asked.object)
    if isinstance(before, Malformed) or isinstance(after, Malformed) or not before.deleting:
        return False
    left = tuple(one for one in before.metadata.finalizers if one not in CASCADES)
    if left == before.metadata.finalizers:
        return False
    seen = msgspec.structs.replace(after.metadata, resource_version=before.metadata.resource_version)
    wanted = msgspec.structs.replace(before.metadata, finalizers=left, generation=seen.generation)
    return msgspec.structs.replace(after, metadata=seen) == msgspec.structs.replace(before, metadata=wanted)


def _check_owners(identity: Identity, before: Resource | None, after: Resource | None) -> None:
    """``Forbidden`` for another owner: Kubernetes deletes what has owners when they go."""
    if after is None or identity.role not in CHECKED:
        return
    owners = before.metadata.owner_references if before is not None else ()
    if after.metadata.owner_references != owners:
        raise Forbidden(
            f"the token of {identity.name} may not write metadata.ownerReferences of {after.kind()}/{after.name}",
            remedy="leave them as they are",
        )
