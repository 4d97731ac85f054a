"""What metadata may say, by the rules of the strictest store (docs/reference/store.md#metadata).

Types are the codec's business; here is what types cannot say: names, keys and values of labels, sizes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from outlive.base import limits
from outlive.base.errors import Invalid
from outlive.resources.meta import API_VERSION, Resource, check_name

_KEY = re.compile(
    r"(?:(?P<prefix>[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*)/)?"
    r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?\Z"
)
_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?\Z")
WORD_LENGTH_LIMIT = 63
"""Characters of a label's value, and of a key without its prefix."""
PREFIX_LENGTH_LIMIT = 253


def check_object(obj: Resource) -> None:
    """``Invalid`` unless the object could be kept by every store: name, scope, labels, annotations, finalizers."""
    check_version(obj)
    meta = obj.metadata
    check_name(meta.name)
    if meta.namespace:
        raise Invalid(
            f"{obj.kind()} {meta.name} has namespace {meta.namespace!r}",
            place="metadata.namespace",
            remedy=f"leave it out: {obj.kind()} is cluster-scoped",
        )
    check_labels(meta.labels)
    check_annotations(meta.annotations)
    for finalizer in meta.finalizers:
        check_key(finalizer, "metadata.finalizers")


def check_version(obj: Resource) -> None:
    """``Invalid`` unless the object is of the API version that stores keep."""
    if obj.api_version != API_VERSION:
        raise Invalid(f"apiVersion {obj.api_version!r} is not known", place="apiVersion", remedy=f"write {API_VERSION}")


def check_labels(labels: Mapping[str, str]) -> None:
    """``Invalid`` names the key or value that no store takes."""
    for key, value in labels.items():
        check_key(key, "metadata.labels")
        if len(value) > WORD_LENGTH_LIMIT or not _VALUE.match(value):
            raise Invalid(
                f"value {value[:80]!r} of label {key!r} is malformed",
                place="metadata.labels",
                remedy=f"at most {WORD_LENGTH_LIMIT} letters, digits, '-', '_' and '.', "
                "beginning and ending with a letter or digit",
            )


def check_annotations(annotations: Mapping[str, str]) -> None:
    """``Invalid`` names the malformed key, or the size of all annotations together."""
    size = 0
    for key, value in annotations.items():
        check_key(key, "metadata.annotations")
        size += len(key.encode()) + len(value.encode())
    if size > limits.ANNOTATION_BYTES:
        raise Invalid(
            f"annotations are {size} bytes",
            place="metadata.annotations",
            remedy=f"at most {limits.ANNOTATION_BYTES} bytes together",
        )


def check_key(key: str, place: str) -> None:
    """``Invalid`` unless the key is ``name`` or ``prefix/name`` with a DNS name as the prefix."""
    match = _KEY.match(key)
    prefix = (match["prefix"] or "") if match else ""
    name = key.rpartition("/")[2]
    if match is None or len(prefix) > PREFIX_LENGTH_LIMIT or len(name) > WORD_LENGTH_LIMIT:
        raise Invalid(
            f"key {key[:80]!r} is malformed",
            place=place,
            remedy="write name or prefix/name; a name has letters, digits, '-', '_' and '.', "
            f"at most {WORD_LENGTH_LIMIT} of them",
        )
