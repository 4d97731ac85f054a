"""``POST /admission/KEY/pods``: the webhook that guards the network annotations of pods (``network.admit``).

Addresses of a VM's other pods come from the follower's cache: what that does not know is refused. Only writes that
matter come here: those by identities of nodes, and those that change a guarded annotation.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from outlive.api.admission_review import SERVICE, WEBHOOK_S, ReviewedWrite, answer_review
from outlive.api.auth import ADMISSION_PATH, PODS_PATH, Identity
from outlive.base import Forbidden, Invalid, Unavailable
from outlive.network import (
    ADMIT,
    DEFAULT_NETWORK,
    GUARDED,
    AdmitInput,
    NetworkPodView,
    PodCache,
    PodIdentities,
    read_pod,
)
from outlive.resources import GROUP, encode
from outlive.runtime import DecisionLog, without_nulls

REFUSALS: Final = {
    "user": "{user} may not change network annotations of pods",
    "key": "{user} is a node and may change nothing but network annotations",
    "field": "{user} is a node and may change nothing but network annotations",
    "node": "{user} may change pods of its own node alone",
    "host-network": "a pod on its node's network has no addresses of its own",
    "address": "an address is neither of the pod's node nor of another pod of its VM",
    "annotation": "the network annotation cannot be read",
}
"""Reason of ``network.admit`` → what the writer is told."""


class PodReviews:
    """The handler. ``identities`` is asked each time, so that its file may change. Refusals are kept as decisions."""

    def __init__(self, cache: PodCache, identities: Callable[[], PodIdentities], decisions: DecisionLog) -> None:
        self._cache = cache
        self._identities = identities
        self._decisions = decisions

    async def review(self, request: Request, _identity: Identity) -> Response:
        """Allow the write, or say why not."""
        return await answer_review(request, self._judge)

    async def _judge(self, asked: ReviewedWrite) -> tuple[str, ...]:
        if asked.resource.resource != "pods" or asked.operation != "UPDATE":
            return ()
        try:
            old, new = (msgspec.json.decode(raw, type=dict[str, Any]) for raw in (asked.old_object, asked.object))
        except msgspec.DecodeError as error:
            raise Invalid(f"the pod is not understood: {error}") from None
        nodes = {str((pod.get("spec") or {}).get("nodeName", "")) for pod in (old, new)}
        given = AdmitInput(
            user=self._identities().find_user(asked.user_info.username),
            old=old,
            new=new,
            node_subnets={one.name: one.subnets for one in self._cache.all_nodes() if one.name in nodes},
            vm_addresses=self._vm_addresses(new),
        )
        result = ADMIT.function(given)
        if not result.allowed:
            if not (self._cache.pods.synced and self._cache.nodes.synced):
                raise Unavailable("the pods of the cluster are not known yet", remedy="try again in some seconds")
            self._decisions.keep(ADMIT, encode(given), encode(result), empty=False, subject=asked.name)
            why = REFUSALS[result.reason or "user"].format(user=asked.user_info.username or "the user")
            raise Forbidden(why, remedy="see docs/how-to/kubevirt-network.md#admission")
        return ()

    def _vm_addresses(self, pod: dict[str, Any]) -> tuple[str, ...]:
        """Addresses on the default network of other pods of the same VM that live."""
        try:
            copy = read_pod(msgspec.convert(without_nulls(pod), NetworkPodView)).copy
        except msgspec.ValidationError as error:
            raise Invalid(f"the pod is not understood: {error}") from None
        siblings = self._cache.copies_of(copy.vm) if copy.vm is not None else []
        return tuple(
            address
            for one in siblings
            if one.id != copy.id and not one.completed and DEFAULT_NETWORK in one.networks
            for address in one.networks[DEFAULT_NETWORK].addresses
        )


def pods_webhook_manifest(
    authority: bytes, key: str, identities: PodIdentities, *, namespace: str, url: str = ""
) -> dict[str, Any]:
    """The ``ValidatingWebhookConfiguration`` by which an API server asks before network annotations change.

    It fails closed. Of an API server before 1.28, which has no ``matchConditions``, every update of a pod comes here.
    """
    path = f"{ADMISSION_PATH}/{key}{PODS_PATH}"
    service = {"namespace": namespace, "name": SERVICE, "port": 443, "path": path}
    client = {"url": f"{url.rstrip('/')}{path}"} if url else {"service": service}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "outlive-pods"},
        "webhooks": [
            {
                "name": f"pods.{GROUP}",
                "rules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["UPDATE"],
                        "resources": ["pods", "pods/status"],
                        "scope": "Namespaced",
                    }
                ],
                "matchConditions": [{"name": "guarded", "expression": _match_condition(identities)}],
                "clientConfig": {"caBundle": base64.b64encode(authority).decode(), **client},
                "failurePolicy": "Fail",
                "matchPolicy": "Equivalent",
                "sideEffects": "None",
                "timeoutSeconds": WEBHOOK_S,
                "admissionReviewVersions": ["v1"],
            }
        ],
    }


def _match_condition(identities: PodIdentities) -> str:
    """True, in CEL, for a write by a node's identity and for one that changes a guarded annotation."""
    nodes = [
        f"request.userInfo.username.startsWith({json.dumps(one.prefix)})" for one in identities.identities if one.node
    ]
    value = '{place}.metadata.?annotations[?"{key}"].orValue("")'
    changes = [
        f"{value.format(place='object', key=key)} != {value.format(place='oldObject', key=key)}" for key in GUARDED
    ]
    return " || ".join((*nodes, *changes))
