"""Who may write network annotations of pods: identities of nodes, and others with their own keys.

The file of further identities is YAML, ``identities: [{prefix, node, keys}]``
(docs/operating/kubevirt-network.md#admission).
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from outlive.network.admission import WritingUser
from outlive.network.names import POD_NETWORKS


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

    def user(self, name: str) -> WritingUser:
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
