"""Resources as JSON and back: the same document in every store and on the wire.

Decoding is strict: an unknown field, a wrong type or a malformed quantity raises ``Invalid`` that names
the field. ``decode_document`` reads what a user wrote (JSON or YAML, any kind), ``decode`` what a store kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import msgspec

from outlive.base import limits
from outlive.base.errors import BadInput, Invalid
from outlive.resources.amounts import Amounts
from outlive.resources.conversions import CONVERSIONS, convert_document, stored_version
from outlive.resources.foreign import ForeignResource
from outlive.resources.meta import API_VERSION, R, Resource

_LONG_NUMBER = re.compile(rb"[:\[,]-?[0-9]{19}")


def _enc_hook(value: Any) -> Any:
    if isinstance(value, Amounts):
        return value.wire()
    raise TypeError(f"{type(value).__name__} has no wire form")


def _dec_hook(kind: type, value: Any) -> Any:
    if kind is Amounts:
        try:
            return Amounts.parse(value)
        except BadInput as error:
            raise ValueError(str(error)) from None
    raise TypeError(f"{kind.__name__} has no wire form")


_encoder = msgspec.json.Encoder(enc_hook=_enc_hook, order=None)
_canonical = msgspec.json.Encoder(enc_hook=_enc_hook, order="sorted")
_ordered = msgspec.json.Encoder(enc_hook=_enc_hook, order="deterministic")


def encode(value: object) -> bytes:
    """Any resource, or any struct made of parts, as compact JSON."""
    return _encoder.encode(value)


def encode_canonical(value: object) -> bytes:
    """As JSON with sorted keys: equal values have equal bytes, for digests."""
    return _canonical.encode(value)


def encode_lines(values: Sequence[object]) -> bytes:
    """As JSON, a line each, with sorted keys of maps; fields of structs come as they are declared."""
    return _ordered.encode_lines(values)


def to_builtins(value: object) -> Any:
    """As dictionaries, lists, strings and numbers, in wire form."""
    return msgspec.json.decode(_encoder.encode(value))


@lru_cache(maxsize=256)
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=_dec_hook)


def decode(kind: type[R], raw: bytes | bytearray | memoryview | str) -> R:
    """A resource of that kind from JSON, of a version that becomes ours (``conversions``); ``Invalid`` names what is
    wrong."""
    try:
        found = cast("R", _decoder(kind).decode(raw))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        converted = _converted(kind, raw)
        if converted is not None:
            return decode(kind, converted)
        raise Invalid(f"not a {kind.kind()}: {error}", remedy="see docs/reference/resources.md") from None
    if not issubclass(kind, ForeignResource):
        if found.api_version == kind.info.api_version:
            return found
        converted = _converted(kind, raw)
        return found if converted is None else decode(kind, converted)
    document = raw.encode() if isinstance(raw, str) else bytes(raw)
    return msgspec.structs.replace(found, api_version=kind.info.api_version, raw=document)


def _converted(kind: type[Resource], raw: bytes | bytearray | memoryview | str) -> bytes | None:
    """The object in the version of this release; ``None`` where it is of that, or nobody knows how."""
    document = raw.encode() if isinstance(raw, str) else bytes(raw)
    plural, before, after = kind.info.plural, stored_version(document), kind.info.version
    known = before != after and (plural, before, after) in CONVERSIONS
    return convert_document(plural, before, after, document) if known else None


def decode_as(kind: Any, raw: bytes | bytearray | memoryview | str) -> Any:
    """Any type made of parts from JSON; ``Invalid`` names what is wrong."""
    try:
        return _decoder(kind).decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(str(error)) from None


def convert(kind: Any, value: object) -> Any:
    """Any type made of parts from dictionaries and lists in wire form; ``Invalid`` names what is wrong."""
    try:
        return msgspec.convert(value, kind, dec_hook=_dec_hook)
    except msgspec.ValidationError as error:
        raise Invalid(str(error)) from None


def decode_document(document: object, kinds: dict[str, type[Resource]]) -> Resource:
    """A resource of any of the kinds from a document that a user wrote."""
    if not isinstance(document, dict):
        raise Invalid(f"a resource is a map, not {type(document).__name__}", remedy="see docs/reference/resources.md")
    version, kind = document.get("apiVersion"), document.get("kind")
    if version != API_VERSION:
        raise Invalid(f"apiVersion {version!r} is not known", place="apiVersion", remedy=f"write {API_VERSION}")
    if not isinstance(kind, str) or kind not in kinds:
        raise Invalid(f"kind {kind!r} is not known", place="kind", remedy=f"one of {', '.join(sorted(kinds))}")
    return cast("Resource", convert(kinds[kind], document))


def check_numbers(raw: bytes, what: str) -> None:
    """``Invalid`` for a whole number of more than 64 bits, which other stores and programs do not read."""
    if _LONG_NUMBER.search(raw) is None:
        return
    waiting = [msgspec.json.decode(raw)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise Invalid(f"{what} has a whole number of {value.bit_length()} bits", remedy="numbers have at most 63")


def check_size(raw: bytes, what: str) -> None:
    """``Invalid`` when an object's JSON is larger than any store takes."""
    if len(raw) > limits.OBJECT_BYTES:
        raise Invalid(
            f"{what} is {len(raw)} bytes", remedy=f"an object has at most {limits.OBJECT_BYTES} bytes; split it"
        )
