"""Every kind reads back as it was written, and nothing else is read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.resources.examples import FULL, META, SMALL

from outlive.base import Invalid, limits
from outlive.resources import (
    KINDS,
    PLURALS,
    Cluster,
    Condition,
    Hypervisor,
    HypervisorStatus,
    ObjectMeta,
    Resource,
    VirtualMachine,
    check_annotations,
    check_labels,
    check_name,
    check_object,
    check_size,
    convert,
    decode,
    decode_document,
    encode,
    encode_canonical,
    find_condition,
    to_builtins,
    with_condition,
)

ALL = [*FULL, *SMALL]


def named(obj: Resource) -> str:
    return f"{obj.kind()}-{'full' if obj in FULL else 'small'}"


def test_there_is_an_example_of_every_kind() -> None:
    assert [obj.kind() for obj in FULL] == [obj.kind() for obj in SMALL] == sorted(KINDS)


@pytest.mark.parametrize("obj", FULL, ids=named)
def test_the_full_example_sets_every_field(obj: Resource) -> None:
    def unset(part: Any, small: Any, path: str) -> list[str]:
        if isinstance(part, msgspec.Struct):
            return [
                found
                for field in msgspec.structs.fields(part)
                for found in unset(getattr(part, field.name), field.default, f"{path}.{field.name}")
            ]
        return [path] if part == small and not isinstance(part, bool) else []

    kept = [path for name in type(obj).__struct_fields__ if name not in ("api_version", "metadata")
            for path in unset(getattr(obj, name), None, name)]  # fmt: skip
    assert [path for path in kept if "scheduling_domain" not in path] == []


@pytest.mark.parametrize("obj", ALL, ids=named)
def test_an_object_reads_back_from_json(obj: Resource) -> None:
    assert decode(type(obj), encode(obj)) == obj
    assert convert(type(obj), to_builtins(obj)) == obj
    assert decode_document(json.loads(encode(obj)), KINDS) == obj


@pytest.mark.parametrize("obj", ALL, ids=named)
def test_the_document_says_what_it_is(obj: Resource) -> None:
    document = to_builtins(obj)
    assert document["kind"] == obj.kind()
    assert document["apiVersion"] == "outlive.dev/v1alpha1"


@pytest.mark.parametrize("obj", ALL, ids=named)
def test_equal_objects_have_equal_canonical_bytes(obj: Resource) -> None:
    shuffled = json.loads(encode(obj), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    assert encode_canonical(convert(type(obj), shuffled)) == encode_canonical(obj)


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the maps are that are structs, not free maps."""
    if not isinstance(document, dict):
        return (
            [place for i, item in enumerate(document) for place in places(item, (*path, i))]
            if isinstance(document, list)
            else []
        )
    return [path, *(place for key, value in document.items() for place in places(value, (*path, key)))]


@pytest.mark.parametrize("obj", FULL, ids=named)
def test_an_unknown_field_is_refused_everywhere_but_in_metadata(obj: Resource) -> None:
    refused = 0
    free = ("labels", "annotations", "resources", "extraSpecs", "allocations", "capacity", "effectiveCapacity",
            "allocation", "overcommit", "alsoNeeds", "used", "floatMapValue", "guests", "vm-1", "metadata")  # fmt: skip
    for place in places(to_builtins(obj)):
        document = to_builtins(obj)
        at = document
        for step in place:
            at = at[step]
        at["surprise"] = {"x": 1}
        if place and (place[-1] in free or place[0] == "metadata" or "features" in place):
            continue
        with pytest.raises(Invalid):
            convert(type(obj), document)
        refused += 1
    assert refused >= 1


def test_fields_that_only_kubernetes_knows_are_dropped_from_metadata() -> None:
    document = {"kind": "VirtualMachine", "metadata": {"name": "a", "managedFields": [{}], "selfLink": "x"}}
    assert convert(VirtualMachine, document).metadata == ObjectMeta(name="a")


@pytest.mark.parametrize(
    ("kind", "document", "place"),
    [
        (VirtualMachine, {"spec": {"diskGib": "10"}}, "$.spec.diskGib"),
        (VirtualMachine, {"spec": {"powerState": "off"}}, "$.spec.powerState"),
        (VirtualMachine, {"spec": {"resources": {"cpu": "lots"}}}, "cpu: 'lots' is not a quantity"),
        (VirtualMachine, {"spec": {"resources": {"cpu": True}}}, "cpu: True is not a quantity"),
        (VirtualMachine, {"spec": {"resources": [1]}}, "not a map of quantities"),
        (VirtualMachine, {"spec": {"resources": {"cpu": None}}}, "'cpu': None is not a quantity"),
        (VirtualMachine, {"kind": "Hypervisor"}, "$.kind"),
        (VirtualMachine, {"metadata": {"creationTimestamp": "yesterday"}}, "$.metadata.creationTimestamp"),
        (
            Hypervisor,
            {"status": {"conditions": [{"type": "Ready", "status": "true"}]}},
            "$.status.conditions[0].status",
        ),
        (VirtualMachine, {"spec": {"recovery": {"mode": "sometimes"}}}, "$.spec.recovery.mode"),
        (VirtualMachine, {"spec": {"recovery": {"maxRestarts": -1}}}, "$.spec.recovery.maxRestarts"),
        (VirtualMachine, {"spec": {"recovery": {"resetS": 1e9}}}, "$.spec.recovery.resetS"),
        (Cluster, {"spec": {"recovery": {"maxRelocations": 101}}}, "$.spec.recovery.maxRelocations"),
    ],
)
def test_what_is_wrong_is_named(kind: type[Resource], document: dict[str, Any], place: str) -> None:
    with pytest.raises(Invalid) as refused:
        decode(kind, json.dumps(document))
    assert place in str(refused.value)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"\xff", b'{"spec":1}', "{}".encode("utf-16")])
def test_what_is_no_document_is_refused(raw: bytes) -> None:
    with pytest.raises(Invalid):
        decode(VirtualMachine, raw)


@pytest.mark.parametrize(
    "document",
    [[], "text", {}, {"apiVersion": "outlive.dev/v1alpha1"}, {"apiVersion": "v1", "kind": "Pod"},
     {"apiVersion": "outlive.dev/v1alpha1", "kind": "Nonsense"}, {"apiVersion": "outlive.dev/v1alpha1", "kind": 3}],
)  # fmt: skip
def test_a_document_of_no_kind_is_refused_with_a_remedy(document: object) -> None:
    with pytest.raises(Invalid) as refused:
        decode_document(document, KINDS)
    assert refused.value.remedy


def test_what_has_no_wire_form_is_a_programming_error() -> None:
    @dataclass
    class Thing:
        x: object

    with pytest.raises(TypeError):
        encode(Thing(object()))


def test_quantities_in_amounts_may_be_written_in_any_way() -> None:
    document = {"kind": "VirtualMachine", "spec": {"resources": {"cpu": 2, "memory": "1.5Gi", "gpu": "1e0"}}}
    vm = convert(VirtualMachine, document)
    assert dict(vm.spec.resources) == {"cpu": 2000, "memory": 3 * 2**29, "gpu": 1}
    assert to_builtins(vm)["spec"]["resources"] == {"cpu": "2", "memory": "1536Mi", "gpu": "1"}


def test_null_counts_as_absent_where_a_part_may_be_absent() -> None:
    assert convert(Hypervisor, {"kind": "Hypervisor", "status": {"capacity": None}}).status.capacity is None


def test_an_absent_allocation_differs_from_an_empty_one() -> None:
    (full,) = [one for one in FULL if isinstance(one, Hypervisor)]
    assert decode(Hypervisor, encode(full)).status.allocation is not None
    assert HypervisorStatus().allocation is None


def test_names_of_kinds_are_unique() -> None:
    words = [
        word for kind in KINDS.values() for word in (kind.info.plural, kind.kind().lower(), *kind.info.short_names)
    ]
    assert len(set(words)) == len(words)
    assert set(PLURALS.values()) == set(KINDS.values())
    assert all(plural == plural.lower() for plural in PLURALS)


@pytest.mark.parametrize(("kind", "short"), [("Hypervisor", "ohv"), ("VirtualMachine", "ovm"), ("Reservation", "ores")])
def test_short_names_are_pinned(kind: str, short: str) -> None:
    assert KINDS[kind].info.short_names == (short,)


def test_kinds_that_are_one_document_are_those_of_the_design() -> None:
    assert {name for name, kind in KINDS.items() if not kind.info.halves} == {
        "CommitmentChange", "Console", "Coverage", "DecisionRecord", "DhcpLease", "Election", "Event", "Fault",
        "HostLog", "HypervisorUsage", "Knowledge", "Membership", "Notification", "PlacementHistory", "StorageCluster",
        "StorageDaemon", "StoragePool", "Token", "UsageHistory",
    }  # fmt: skip


@pytest.mark.parametrize("kind", [k for k in KINDS.values() if k.has_status()], ids=lambda k: k.kind())
def test_a_status_half_can_be_empty(kind: type[Resource]) -> None:
    """A store drops the status of a new object, so that it must have a default."""
    default = next(f.default for f in msgspec.structs.fields(kind) if f.name == "status")
    assert default is not msgspec.NODEFAULT


T0, T1 = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)


def test_the_time_of_a_condition_stays_while_its_status_does() -> None:
    first = Condition(type="Ready", status="True", reason="a", last_transition_time=T0)
    same = Condition(type="Ready", status="True", reason="b", last_transition_time=T1)
    other = Condition(type="Ready", status="False", reason="c", last_transition_time=T1)
    conditions = with_condition((), first)
    kept = find_condition(with_condition(conditions, same), "Ready")
    assert kept is not None
    assert (kept.reason, kept.last_transition_time) == ("b", T0)
    changed = find_condition(with_condition(conditions, other), "Ready")
    assert changed is not None
    assert changed.last_transition_time == T1


def test_a_condition_keeps_its_place_and_its_neighbours() -> None:
    a, b = Condition(type="A", status="True"), Condition(type="B", status="True")
    new = Condition(type="A", status="False")
    assert with_condition((a, b), new) == (new, b)
    assert find_condition((a, b), "C") is None


@pytest.mark.slow
@given(st.from_regex(r"[a-z0-9]([-a-z0-9]{0,10}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,5}[a-z0-9])?){0,3}", fullmatch=True))
def test_dns_names_are_names(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", ".a", "a.", "a..b", "a.-b", "a\n", "ä", "a" * 254])
def test_other_words_are_no_names(name: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_name(name)
    assert refused.value.remedy


def test_annotations_have_a_limit_together() -> None:
    check_annotations({"a": "x" * (limits.ANNOTATION_BYTES - 1)})
    with pytest.raises(Invalid, match="bytes"):
        check_annotations({"a": "x" * (limits.ANNOTATION_BYTES // 2), "b": "ü" * (limits.ANNOTATION_BYTES // 4)})


def test_label_rules_are_those_of_kubernetes() -> None:
    check_labels({"a": "", "a.b-c_D": "X", "x.y/" + "k" * 63: "v" * 63, "1": "2", "a" * 63 + ".b/c": "d"})
    for wrong in ({"-a": ""}, {"a-": ""}, {"x/": ""}, {"x_y/a": ""}, {"k" * 64: ""}, {"a": "-"}, {"a": "b\n"}):
        with pytest.raises(Invalid):
            check_labels(wrong)


def test_size_is_checked_to_the_byte() -> None:
    check_size(b"x" * limits.OBJECT_BYTES, "it")
    with pytest.raises(Invalid, match=f"it is {limits.OBJECT_BYTES + 1} bytes"):
        check_size(b"x" * (limits.OBJECT_BYTES + 1), "it")


@pytest.mark.parametrize("obj", FULL, ids=named)
def test_the_examples_are_valid(obj: Resource) -> None:
    check_object(obj)


def test_a_reference_is_to_this_incarnation() -> None:
    assert FULL[0].ref.uid == META.uid
    assert FULL[0].ref.kind == "Cluster"
