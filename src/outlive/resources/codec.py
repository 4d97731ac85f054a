"""Resources as JSON and back: the same document in every store and on the wire.

Decoding is strict: an unknown field, a wrong type or a malformed quantity raises ``Invalid`` that names
the field. ``decode_document`` reads what a user wrote (JSON or YAML, any kind), ``decode`` what a store kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, cast

import msgspec

from outlive.base import BadInput, Invalid, Refused, limits
from outlive.resources.amounts import Amounts
from outlive.resources.foreign import ForeignResource
from outlive.resources.meta import API_VERSION, R, Resource

_LONG_NUMBER = re.compile(rb"[:\[,]-?[0-9]{19}")


def _enc_hook(value: Any) -> Any:
    if isinstance(value, Amounts):
        return value.to_wire()
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
def _get_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=_dec_hook)


def decode(kind: type[R], raw: bytes | bytearray | memoryview | str) -> R:
    """A resource of that kind from JSON, of a version that becomes ours (``conversions``); ``Invalid`` names what is
    wrong."""
    try:
        found = cast("R", _get_decoder(kind).decode(raw))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        converted = _convert_version(kind, raw)
        if converted is not None:
            return decode(kind, converted)
        raise Invalid(f"not a {kind.kind()}: {error}", remedy="see docs/reference/resources.md") from None
    if not issubclass(kind, ForeignResource):
        if found.api_version == kind.info.api_version:
            return found
        converted = _convert_version(kind, raw)
        return found if converted is None else decode(kind, converted)
    document = raw.encode() if isinstance(raw, str) else bytes(raw)
    return msgspec.structs.replace(found, api_version=kind.info.api_version, raw=document)


def _convert_version(kind: type[Resource], raw: bytes | bytearray | memoryview | str) -> bytes | None:
    """The object in the version of this release; ``None`` where it is of that, or nobody knows how."""
    document = raw.encode() if isinstance(raw, str) else bytes(raw)
    plural, before, after = kind.info.plural, stored_version(document), kind.info.version
    known = before != after and (plural, before, after) in CONVERSIONS
    return convert_document(plural, before, after, document) if known else None


def decode_as(kind: Any, raw: bytes | bytearray | memoryview | str) -> Any:
    """Any type made of parts from JSON; ``Invalid`` names what is wrong."""
    try:
        return _get_decoder(kind).decode(raw)
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


Conversion = Callable[[dict[str, Any]], dict[str, Any]]
"""From the JSON object of the one version to that of the other."""
CONVERSIONS: Final[dict[tuple[str, str, str], Conversion]] = {}
"""Plural of the kind, version before, version after → how. A release that stores a kind in a new version registers both
ways, so that a cluster can go back (docs/how-to/upgrades.md); this one stores every kind in its first version."""


def convert_document(plural: str, before: str, after: str, raw: bytes) -> bytes | None:
    """The object in the version ``after``; ``None`` where it is no object of ``before``, for example one of ``after``
    already. ``Refused`` where nobody knows how."""
    if stored_version(raw) != before:
        return None
    conversion = CONVERSIONS.get((plural, before, after))
    if conversion is None:
        raise Refused(f"nobody knows how {plural} of {before} become {after}", remedy="install the release that does")
    document = msgspec.json.decode(raw)
    group = document["apiVersion"].rpartition("/")[0]
    return msgspec.json.encode({**conversion(document), "apiVersion": f"{group}/{after}" if group else after})


def stored_version(raw: bytes) -> str:
    """The version in which an object was stored; empty where it does not say."""
    try:
        return _heads.decode(raw).api_version.rpartition("/")[2]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""  # nonsense stays what it is: readers report it


class _VersionHead(msgspec.Struct, rename="camel"):
    api_version: str = ""


_heads: Final = msgspec.json.Decoder(_VersionHead)
