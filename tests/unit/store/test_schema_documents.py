"""The documents of the storage schema: frozen, complete, and such that no listing of names exceeds 1 MiB."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from scripts.storage_schema import document

import outlive
from outlive.base import Refused
from outlive.resources import KINDS
from outlive.store.schema import BASE, FOLDER, latest_version, load_document

HASHES: dict[int, str] = {}
"""Of released documents, which are never written again; a release adds the line of its own."""
LONGEST_NAME = 253 + 1 + 36 + 4
"""Bytes that a name of an object and its uid take in a listing of children."""


def test_released_documents_are_as_they_were() -> None:
    for version, digest in HASHES.items():
        assert hashlib.sha256((FOLDER / f"{version}.json").read_bytes()).hexdigest() == digest


def test_the_newest_document_is_that_of_the_kinds_that_there_are() -> None:
    newest = load_document(latest_version())
    wanted = document(newest.version)
    assert (newest.zookeeper, newest.buckets, newest.kinds) == (
        wanted["zookeeper"],
        wanted["buckets"],
        wanted["kinds"],
    ), "run python -m scripts.storage_schema"


def test_names_of_a_full_kind_fit_into_answers_of_a_mebibyte_whatever_they_are() -> None:
    newest = load_document(latest_version())
    for kind in KINDS.values():
        most = kind.info.quota.objects / newest.buckets[kind.info.plural]
        assert most * LONGEST_NAME <= 2**20, kind.kind()


def test_a_version_from_the_future_is_refused_by_its_number() -> None:
    with pytest.raises(Refused, match="storage schema 9999 is not known here"):
        load_document(9999)


FIXED = ("", "/schema", "/schema/hold", "/schema/journal", "/schema/locks", "/keys", "/incarnation")
"""Paths that are the same in every document: they are read to learn which one counts, or without a condition."""


@pytest.mark.parametrize("version", range(1, latest_version() + 1))
def test_a_document_can_be_moved_to_and_from(version: int) -> None:
    found = load_document(version)
    assert set(found.zookeeper) == {BASE}, "instances of other sections are never moved"
    paths = found.zookeeper[BASE]
    assert [paths[key] for key in ("root", "schema", "schema.hold", "schema.journal", "schema.locks")] == [*FIXED[:5]]
    assert [paths[key] for key in ("keys", "incarnation")] == [*FIXED[5:]]
    assert len(set(paths.values())) == len(paths), "no two keys have one path"
    assert {path.rpartition("/")[0] for path in paths.values() if path} <= set(paths.values()), "parents are keys too"


@pytest.mark.parametrize("version", range(2, latest_version() + 1))
def test_a_step_renames_nothing_into_or_out_of_what_it_renames(version: int) -> None:
    old, new = load_document(version - 1), load_document(version)
    pairs = [
        (path, new.find_path(key))
        for key, path in old.zookeeper[BASE].items()
        if new.find_path(key) not in (None, path)
    ]
    for source, target in pairs:
        assert not [one for other in pairs for one in other if one != source and f"{one}/".startswith(f"{source}/")]
        assert not f"{target}/".startswith(f"{source}/")
    shared = old.buckets.keys() & new.buckets.keys()
    assert {name: old.buckets[name] for name in shared} == {name: new.buckets[name] for name in shared}


def test_no_module_but_the_layout_names_a_path_of_the_tree() -> None:
    """Paths come from a document; ``/schema`` alone is known before one is."""
    names = {path.split("/")[1] for path in load_document(1).zookeeper[BASE].values() if path} - {"keys"}
    literal = re.compile(rf"""["']/(?:{"|".join(sorted(names))})(?:/|["'{{])""")
    sources = Path(outlive.__file__).parent.rglob("*.py")
    found = [path.name for path in sources if literal.search(path.read_text()) and "zookeeper" in str(path)]
    assert found == ["layout.py"], "SCHEMA_PATH"
