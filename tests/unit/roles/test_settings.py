"""Settings of the product as a whole."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from outlive.base import BadInput
from outlive.cli import all_sections, host_sections
from outlive.roles import SECTIONS, RoleSettings, role_settings
from outlive.runtime import load_settings, struct_in

STRUCTS = list({**all_sections(), **host_sections()}.items())


def maps_in(struct: type[msgspec.Struct], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths of all structs within, its own first."""
    found = [path]
    for field in msgspec.structs.fields(struct):
        inner = struct_in(field.type)
        if inner is not None:
            found += maps_in(inner, (*path, field.encode_name))
    return found


@pytest.mark.parametrize(("section", "struct"), STRUCTS)
def test_a_key_that_is_not_known_is_refused_wherever_it_stands(
    section: str, struct: type[msgspec.Struct], tmp_path: Path
) -> None:
    for path in maps_in(struct):
        text = "".join(f"{'  ' * depth}{word}:\n" for depth, word in enumerate((section, *path)))
        (tmp_path / "outlive.yaml").write_text(f"{text}{'  ' * (len(path) + 1)}nonsense: 1\n")
        with pytest.raises(BadInput, match=r"nonsense.*is not known"):
            load_settings({section: struct}, file=tmp_path / "outlive.yaml", environ={}, flags={})


def loaded(text: str, tmp_path: Path) -> RoleSettings:
    (tmp_path / "outlive.yaml").write_text(text)
    (tmp_path / "outlive.yaml").chmod(0o600)
    return role_settings(load_settings(SECTIONS, file=tmp_path / "outlive.yaml", environ={}, flags={}))


def test_no_openstack_is_asked_unless_one_is_named(tmp_path: Path) -> None:
    assert loaded("{}", tmp_path).openstack.cloud == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("failoverUpkeep: {vmSource: nova}", "no cloud is named"),
        ("openstack: {cloud: a, pollInterval: 0s}", "more than nothing"),
        ("openstack: {cloud: a, pollInterval: 1h}", "fullInterval"),
        ("openstack: {cloud: a, staleAfter: 1s}", "staleAfter"),
        ("openstack: {cloud: a, overlap: 2h}", "at most 1h"),
        ("openstack: {cloud: a, pageSize: 0}", "pageSize"),
        ("inventory: {source: nova}", "inventory.source is 'nova'"),
        ("inventory: {source: kvm.cloud.sap}", "clusters is empty"),
        ("inventory: {clusters: {a: {}, b: {zones: [z]}}}", "clusters.a has no zones"),
        ("inventory: {clusters: {a: {zones: [z]}, b: {zones: [z]}}}", "zone 'z' is of cluster a and of b"),
        ("inventory: {clusters: {A_1: {}}}", "A_1"),
        (
            "{inventory: {source: kvm.cloud.sap, clusters: {a: {}}}, "
            "scheduler: {overcommitMappings: [{overcommit: {cpu: 2.0}, hasTrait: X}]}}",
            "overcommitMappings",
        ),
        ("inventory: {staleAfter: 0s}", "more than nothing"),
        (
            "{inventory: {source: kvm.cloud.sap, clusters: {a: {}}}, openstack: {cloud: a}}",
            "openstack.inventory: false",
        ),
        ("openstack: {cloud: a, interface: secret}", "interface"),
        ("openstack: {cloud: a, password: secret}", "not known"),
    ],
)
def test_a_connection_that_cannot_work_is_refused_at_the_start(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=words):
        loaded(text, tmp_path)
