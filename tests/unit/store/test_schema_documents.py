"""The documents of the storage schema: frozen, complete, and such that no listing of names exceeds 1 MiB."""

from __future__ import annotations

import hashlib

import pytest
from scripts.storage_schema import document

from outlive.base.errors import Refused
from outlive.resources import KINDS
from outlive.store.schema.documents import FOLDER, latest_version, load_document

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
