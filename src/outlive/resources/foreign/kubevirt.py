"""Kinds of KubeVirt, and of the network that its VMs are on."""

from __future__ import annotations

from typing import ClassVar

from msgspec import UNSET, UnsetType

from outlive.resources.foreign.base import ForeignPart, ForeignResource, foreign_kind
from outlive.resources.meta import KindInfo


class KubevirtVirtualMachine(ForeignResource, frozen=True, kw_only=True, tag=False):
    """A VM as its user wants it; another kind than ``VirtualMachine`` of Outlive."""

    info: ClassVar[KindInfo] = foreign_kind("kubevirt.io/v1", "VirtualMachine", "virtualmachines", namespaced=True)


class InstanceStatus(ForeignPart, frozen=True, kw_only=True):
    """Where an instance is."""

    phase: str | UnsetType | None = UNSET
    node_name: str | UnsetType | None = UNSET


class VirtualMachineInstance(ForeignResource, frozen=True, kw_only=True, tag=False):
    """A VM that runs, or is to run."""

    info: ClassVar[KindInfo] = foreign_kind(
        "kubevirt.io/v1", "VirtualMachineInstance", "virtualmachineinstances", namespaced=True
    )
    status: InstanceStatus | UnsetType | None = UNSET


class InstanceMigration(ForeignResource, frozen=True, kw_only=True, tag=False):
    """That an instance is to move to another node while it runs."""

    info: ClassVar[KindInfo] = foreign_kind(
        "kubevirt.io/v1",
        "VirtualMachineInstanceMigration",
        "virtualmachineinstancemigrations",
        namespaced=True,
    )


class UserDefinedNetwork(ForeignResource, frozen=True, kw_only=True, tag=False):
    """A network of a namespace's own."""

    info: ClassVar[KindInfo] = foreign_kind(
        "k8s.ovn.org/v1", "UserDefinedNetwork", "userdefinednetworks", namespaced=True
    )


class ClusterUserDefinedNetwork(ForeignResource, frozen=True, kw_only=True, tag=False):
    """A network of several namespaces."""

    info: ClassVar[KindInfo] = foreign_kind("k8s.ovn.org/v1", "ClusterUserDefinedNetwork", "clusteruserdefinednetworks")
