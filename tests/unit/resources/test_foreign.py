"""Kinds of others: which kind an object is of, what is used of it, and what is kept of it."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET

from outlive.base import Invalid
from outlive.resources import KINDS, Event, ObjectRef, Secret, VirtualMachine, decode, encode, find_kind
from outlive.resources.foreign import (
    FOREIGN_KINDS,
    KubernetesEvent,
    KubernetesNode,
    KubernetesPod,
    KubernetesSecret,
    KubevirtVirtualMachine,
)


def test_kinds_of_one_name_in_two_groups_are_two_kinds() -> None:
    for ours, foreign in (
        (Event, KubernetesEvent),
        (Secret, KubernetesSecret),
        (VirtualMachine, KubevirtVirtualMachine),
    ):
        assert ours.kind() == foreign.kind()
        assert find_kind(ours.info.api_version, ours.kind()) is ours
        assert find_kind(foreign.info.api_version, foreign.kind()) is foreign


def test_no_two_kinds_are_the_same() -> None:
    kinds = [*KINDS.values(), *FOREIGN_KINDS]
    assert len({(one.info.group, one.info.version, one.info.plural) for one in kinds}) == len(kinds)
    assert len({(one.info.api_version, one.kind()) for one in kinds}) == len(kinds)


def test_absent_and_null_differ() -> None:
    absent = decode(KubernetesPod, b'{"metadata":{"name":"a","namespace":"b"},"spec":{}}')
    null = decode(KubernetesPod, b'{"metadata":{"name":"a","namespace":"b"},"spec":{"nodeName":null}}')
    assert not isinstance(absent.spec, msgspec.UnsetType)
    assert not isinstance(null.spec, msgspec.UnsetType)
    assert absent.spec is not None
    assert null.spec is not None
    assert (absent.spec.node_name, null.spec.node_name, absent.status) == (UNSET, None, UNSET)


def test_the_document_is_kept_as_it_was_read() -> None:
    raw = b'{"kind":"Node","metadata":{"name":"n","managedFields":[]},"spec":{"podCIDR":"10.0.0.0/24","taints":null}}'
    assert decode(KubernetesNode, raw).document == msgspec.json.decode(raw)


def test_items_of_lists_without_kind_and_version_have_those_of_their_kind() -> None:
    pod = decode(KubernetesPod, b'{"metadata":{"name":"a","namespace":"b","uid":"u"}}')
    assert pod.api_version == "v1"
    assert pod.ref == ObjectRef(kind="Pod", name="a", namespace="b", uid="u", api_version="v1")
    assert pod.ref.key == pod.metadata.key == "b/a"


def test_references_to_kinds_of_outlive_are_written_as_ever() -> None:
    vm = VirtualMachine()
    vm = msgspec.structs.replace(vm, metadata=msgspec.structs.replace(vm.metadata, name="a", uid="u"))
    assert encode(vm.ref) == b'{"kind":"VirtualMachine","name":"a","uid":"u"}'
    assert vm.ref.key == "a"


def test_a_foreign_object_of_a_wrong_form_is_named() -> None:
    with pytest.raises(Invalid, match="not a Pod"):
        decode(KubernetesPod, b'{"metadata":{"name":"a","namespace":"b"},"spec":{"nodeName":7}}')
