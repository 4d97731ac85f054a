"""``outlive schema`` on a state directory: what it shows, what it writes, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.command import outlive


def test_a_cluster_is_of_the_first_schema_and_nothing_is_to_change(tmp_path: Path) -> None:
    assert outlive("apply", "-f", host(tmp_path), "--state-dir", tmp_path).code == 0
    shown = outlive("schema", "status", "--state-dir", tmp_path, "-o", "json")
    assert shown.code == 0, shown.err
    document = json.loads(shown.out)
    assert (document["version"], document["latest"], document["hold"], document["waitingFor"]) == (1, 1, None, [])
    assert document["hosts"] == {"h1": {}}
    assert "the storage schema is 1" in outlive("schema", "status", "--state-dir", tmp_path).out
    planned = outlive("schema", "plan", "--state-dir", tmp_path)
    assert planned.out == "nothing changes from schema 1 to 1\n"


def host(directory: Path) -> Path:
    file = directory / "h1.yaml"
    file.write_text(
        "apiVersion: outlive.dev/v1alpha1\nkind: Hypervisor\nmetadata: {name: h1}\nspec: {management: node}\n---\n"
        "apiVersion: outlive.dev/v1alpha1\nkind: Cluster\nmetadata: {name: default}\nspec: {}\n"
    )
    return file


def test_an_upgrade_is_a_wish_in_the_cluster(tmp_path: Path) -> None:
    outlive("apply", "-f", host(tmp_path), "--state-dir", tmp_path)
    told = outlive("schema", "upgrade", "--to", "1", "--state-dir", tmp_path)
    assert told.code == 0, told.err
    assert "bring the cluster to schema 1" in told.out
    found = json.loads(outlive("get", "clusters", "default", "--state-dir", tmp_path, "-o", "json").out)
    assert found["spec"]["schema"] == {"to": 1}
    assert outlive("schema", "upgrade", "--state-dir", tmp_path).code == 0
    found = json.loads(outlive("get", "clusters", "default", "--state-dir", tmp_path, "-o", "json").out)
    assert found["spec"].get("schema", {}) == {}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("upgrade", "--to", "7"), 1, "storage schema 7 is not known here"),
        (("upgrade", "--to", "0"), 1, "storage schema 0 is not known here"),
        (("plan", "--to", "2"), 1, "storage schema 2 is not known here"),
        (("upgrade", "--exclude", "h9"), 4, "there is no host 'h9'"),
        (("upgrade", "--exclude", "h1"), 1, "h1 may not be excluded"),
        (("backup", "tree.json"), 2, "only an ensemble of ZooKeeper has a tree"),
        (("restore", "h1.yaml", "--yes"), 3, "is no backup of a tree"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else "",
)
def test_what_cannot_be_is_refused_with_what_it_is_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    outlive("apply", "-f", host(tmp_path), "--state-dir", tmp_path)
    refused = outlive("schema", *arguments, "--state-dir", tmp_path)
    assert refused.code == code, refused
    assert words in refused.line
    assert not (tmp_path / "tree.json").exists()
