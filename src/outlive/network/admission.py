"""Who may write the network annotation of a pod.

A node writes what it has done for its own pods, and nothing else. A pod's addresses are those of its node, but for a VM
that travels: that may keep what it has, so that a node cannot claim any address by way of the exception
(docs/design/network-decisions.md#networkadmit).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from outlive.base import Invalid
from outlive.network.addresses import SubnetTexts, parse_subnets
from outlive.network.addressing import is_within, parse_any
from outlive.network.annotation import AnnotationNotSet, decode_annotation
from outlive.network.names import DEFAULT_NETWORK, POD_NETWORKS, PREFIX
from outlive.network.pods import MIGRATABLE_ANNOTATION
from outlive.resources import convert
from outlive.runtime import Decision

GUARDED: Final = (POD_NETWORKS, f"{PREFIX}/dpu.connection-details", f"{PREFIX}/dpu.connection-status")
"""Annotations that others than nodes may not change."""
_OPEN_METADATA: Final = ("annotations", "managedFields")
"""Members of metadata that are not compared: the one is looked at key by key, the other changes with every write."""

RefusalReason = Literal["user", "key", "field", "node", "host-network", "address", "annotation"]


class WritingUser(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Who writes."""

    name: str = ""
    is_node_identity: bool = False
    node: str = ""
    """Of a node's identity, which node."""
    extra_allowed: bool | tuple[str, ...] = False
    """Whether somebody else may change guarded annotations; a list names those that he may."""

    def may_change(self, keys: Iterable[str]) -> bool:
        """True if the user, who is no node, may change these guarded annotations."""
        return self.extra_allowed if isinstance(self.extra_allowed, bool) else set(keys) <= set(self.extra_allowed)


class AdmitInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An update of a pod's status."""

    user: WritingUser = WritingUser()
    old: dict[str, Any] = {}
    new: dict[str, Any] = {}
    node_subnets: dict[str, SubnetTexts] = {}
    """Of the default network, by node."""
    vm_addresses: tuple[str, ...] = ()
    """Addresses that living siblings of the VM have, or that its claims record."""


class AdmitResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the update is let through."""

    allowed: bool
    reason: RefusalReason | None


def admit_update(given: AdmitInput) -> AdmitResult:
    """Whether a user may update a pod in this way."""
    reason = _find_refusal(given)
    return AdmitResult(allowed=reason is None, reason=reason)


def _find_refusal(given: AdmitInput) -> RefusalReason | None:
    old, new = _annotations_of(given.old), _annotations_of(given.new)
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    guarded = [key for key in changed if key in GUARDED]
    user = given.user
    if user.is_node_identity:
        if len(guarded) < len(changed):
            return "key"
        if _protected_parts(given.old) != _protected_parts(given.new):
            return "field"
        if not user.node or {_node_of(given.old), _node_of(given.new)} != {user.node}:
            return "node"
    elif guarded and not user.may_change(guarded):
        return "user"
    if POD_NETWORKS not in guarded:
        return None
    return _check_networks(given, user.node if user.is_node_identity else _node_of(given.new))


def _check_networks(given: AdmitInput, node: str) -> RefusalReason | None:
    """What is wrong with the value that the annotation gets; removing it, or having no default network, is right."""
    annotations = _annotations_of(given.new)
    text = annotations.get(POD_NETWORKS)
    if text is None:
        return None
    if _read_part(given.new, "spec").get("hostNetwork"):
        return "host-network"
    try:
        port = decode_annotation(convert(str, text), DEFAULT_NETWORK)
    except AnnotationNotSet:
        return None
    except Invalid:
        return "annotation"
    subnets = parse_subnets(given.node_subnets.get(node, ()))
    travels = MIGRATABLE_ANNOTATION in annotations
    kept = {parse_any(one) for one in given.vm_addresses} if travels else set()
    addresses = [parse_any(one) for one in port.addresses]
    return None if all(is_within(one, subnets) or one in kept for one in addresses) else "address"


def _annotations_of(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    return _read_part(_read_part(pod, "metadata"), "annotations")


def _node_of(pod: Mapping[str, Any]) -> str:
    return str(_read_part(pod, "spec").get("nodeName", ""))


def _protected_parts(pod: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """What a node may not change: metadata but for annotations, and status."""
    metadata = {name: value for name, value in _read_part(pod, "metadata").items() if name not in _OPEN_METADATA}
    return metadata, _read_part(pod, "status")


def _read_part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = document.get(name, {})
    if not isinstance(part, Mapping):
        raise Invalid(f"{name} of the pod is no object but {type(part).__name__}", remedy="give the pod as it is")
    return part


ADMIT: Final = Decision(
    "network.admit",
    admit_update,
    AdmitInput,
    AdmitResult,
    "Whether a user may change the network annotation of a pod",
    nulls_are_absent=True,
)


# Who may write network annotations of pods: identities of nodes, and others with their own keys.
#
# The file of further identities is YAML, ``identities: [{prefix, node, keys}]``
# (docs/how-to/kubevirt-network.md#admission).


class PodIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Users whose names begin alike."""

    prefix: Annotated[str, Meta(min_length=1, max_length=256)]
    """How their names begin; of nodes the rest is the node's name, of others the whole name if it does not end in
    ``:``."""
    node: bool = False
    """Whether they are nodes, which change pods of their own alone."""
    keys: tuple[str, ...] = ()
    """Guarded annotations that others may change; of nodes all."""

    def matches(self, user: str) -> bool:
        """True if the user is one of them."""
        return user.startswith(self.prefix) if self.node or self.prefix.endswith(":") else user == self.prefix


class PodIdentities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The identities that are known, the first match counts."""

    identities: Annotated[tuple[PodIdentity, ...], Meta(max_length=256)] = ()

    def find_user(self, name: str) -> WritingUser:
        """Who writes, as ``network.admit`` takes it."""
        found = next((one for one in self.identities if one.matches(name)), None)
        if found is None:
            return WritingUser(name=name)
        if found.node:
            return WritingUser(name=name, is_node_identity=True, node=name.removeprefix(found.prefix))
        return WritingUser(name=name, extra_allowed=found.keys)


CONTROLLER: Final = "system:serviceaccount:outlive:outlive-controller"
DEFAULT_IDENTITIES: Final = PodIdentities(
    identities=(
        PodIdentity(prefix="system:ovn-node:", node=True),
        PodIdentity(prefix=CONTROLLER, keys=(POD_NETWORKS,)),
        PodIdentity(prefix="system:serviceaccount:ovn-kubernetes:ovnkube-cluster-manager", keys=(POD_NETWORKS,)),
    )
)
"""Nodes, Outlive's own controllers, and the allocator of ovn-kubernetes."""
