"""Decisions are data: pure functions by name, from a JSON observation to a JSON answer with reasons.

``DecisionTable`` is what ``outlive decide`` runs: the same function that the controllers use, on any input that
somebody saved. ``DecisionLog`` is how a controller uses one: it logs the digests of what went in and what came out, and
gives both to its listeners (docs/reference/runtime.md#decisions). A function here must be pure; nothing checks that.
"""

from __future__ import annotations

import difflib
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import _json_schema
from msgspec import inspect as types

from outlive.base import BadInput, Clock, LimitExceeded, NotFound, OutliveError, get_logger, global_request_id, limits
from outlive.resources import Amounts, convert, decode_as, encode, encode_canonical, field_docs, to_builtins

Schema = dict[str, Any]
_AMOUNTS: Final[Schema] = {
    "type": "object",
    "description": 'Quantities by resource, such as {"cpu": "7500m", "memory": "16Gi"}.',
    "additionalProperties": {"type": ["string", "number"]},
}


def _encode_default(value: Any, *, str_keys: bool = False) -> Any:
    """A default as a schema shows it. The library has no place for the encoding of types that it does not know."""
    del str_keys
    return to_builtins(value)


_json_schema.to_builtins = _encode_default  # type: ignore[assignment]


def _schema_hook(kind: type) -> Schema:
    if kind is Amounts:
        return dict(_AMOUNTS)
    raise NotImplementedError


def _find_structs(info: types.Type, found: dict[type, None]) -> None:
    """Every struct in a type."""
    if isinstance(info, types.StructType):
        if info.cls in found:
            return
        found[info.cls] = None
        for field in types.type_info(info.cls).fields:  # type: ignore[attr-defined]  # a struct within itself has none
            _find_structs(field.type, found)
    for name in ("type", "item_type", "value_type"):
        inner = getattr(info, name, None)
        if inner is not None:
            _find_structs(inner, found)
    for inner in (*getattr(info, "types", ()), *getattr(info, "item_types", ())):
        _find_structs(inner, found)


INPUT_BYTES: Final = limits.IMPORT_FILE_BYTES
"""The largest input of a decision."""
SUBJECTS_LIMIT: Final = 10_000
"""Subjects of which the last answer's digest is remembered."""

I = TypeVar("I")  # noqa: E741 - input
O = TypeVar("O")  # noqa: E741 - output

_log = get_logger("decisions")


def says_nothing(output: object) -> bool:
    """Whether an answer asks for nothing: no ``actions``; or, without such a field, an empty collection or ``None``."""
    actions = getattr(output, "actions", output)
    return actions is None or (isinstance(actions, tuple | list | dict | frozenset) and not actions)


@dataclass(frozen=True, slots=True)
class Decision(Generic[I, O]):
    """One pure function under a stable name such as ``failover.plan``."""

    name: str
    function: Callable[[I], O]
    input: Any
    """The type of its input: anything that msgspec decodes, with ``Amounts`` in it."""
    output: Any
    doc: str
    is_empty: Callable[[O], bool] = says_nothing
    """Whether an answer asks for nothing."""
    nulls_are_absent: bool = False
    """Whether a null member of an input, at any depth, means the same as one that is not there."""


class DecisionTable:
    """All decisions by name; two of one name are a ``ValueError``."""

    def __init__(self, decisions: Iterable[Decision[Any, Any]]) -> None:
        self._decisions: dict[str, Decision[Any, Any]] = {}
        for decision in decisions:
            if decision.name in self._decisions:
                raise ValueError(f"decision {decision.name} is registered twice")
            self._decisions[decision.name] = decision

    def list_names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted(self._decisions))

    def get(self, name: str) -> Decision[Any, Any]:
        """The decision; ``NotFound`` names the nearest one."""
        decision = self._decisions.get(name)
        if decision is None:
            near = difflib.get_close_matches(name, self._decisions, n=1, cutoff=0.4)
            remedy = f"did you mean {near[0]}?" if near else "outlive decide --list shows all"
            raise NotFound(f"there is no decision {name[:80]!r}", remedy=remedy)
        return decision

    def build_schema(self, name: str) -> dict[str, Any]:
        """``{name, doc, input, output, $defs}``: JSON schemas of input and output; ``NotFound``."""
        decision = self.get(name)
        kinds = (decision.input, decision.output)
        (given, answer), parts = msgspec.json.schema_components(
            kinds, schema_hook=_schema_hook, ref_template="#/$defs/{name}"
        )
        found: dict[type, None] = {}
        for kind in kinds:
            _find_structs(types.type_info(kind), found)
        for struct in found:
            properties = parts.get(struct.__name__, {}).get("properties", {})
            docs = field_docs(struct)
            for field in msgspec.structs.fields(struct):
                if docs.get(field.name) and field.encode_name in properties:
                    properties[field.encode_name].setdefault("description", docs[field.name])
        return {"name": name, "doc": decision.doc, "input": given, "output": answer, "$defs": parts}

    def decide(self, name: str, raw: bytes) -> bytes:
        """The answer to a JSON input as JSON; ``NotFound``, and what ``Decision.function`` raises on bad input."""
        decision = self.get(name)
        if len(raw) > INPUT_BYTES:
            raise LimitExceeded(f"the input has {len(raw)} bytes", remedy=f"at most {INPUT_BYTES}")
        try:
            if decision.nulls_are_absent:
                given = convert(decision.input, without_nulls(decode_as(Any, raw)))
            else:
                given = decode_as(decision.input, raw)
            return encode(decision.function(given))
        except RecursionError:
            raise BadInput("the input is nested too deeply") from None

    def decide_json(self, name: str, raw: bytes) -> bytes:
        """As ``decide``; an input that is refused gives ``{"error": code}``. Still ``NotFound`` for the name."""
        self.get(name)
        try:
            return self.decide(name, raw)
        except OutliveError as error:
            return encode({"error": error.code})


def without_nulls(value: Any) -> Any:
    """The same JSON value, its objects without members that are null."""
    if isinstance(value, dict):
        return {name: without_nulls(member) for name, member in value.items() if member is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def is_error(answer: bytes) -> bool:
    """Whether an answer of ``decide_json`` is ``{"error": code}``."""
    return answer.startswith(b'{"error":')


class Use(msgspec.Struct, frozen=True):
    """One use of a decision; ``input`` and ``output`` are JSON."""

    at: float
    name: str
    subject: str
    request: str
    input_digest: str
    output_digest: str
    changed: bool
    """Whether the last answer about this subject was another one."""
    empty: bool
    input: bytes
    output: bytes


class DecisionLog:
    """Uses decisions and says how. Not shared between threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._listeners: list[Callable[[Use], None]] = []

    def listen(self, listener: Callable[[Use], None]) -> None:
        """Tell ``listener`` of every use from now on; it must not block."""
        self._listeners.append(listener)

    def use(self, decision: Decision[I, O], input: I, *, subject: str = "") -> O:
        """Decide. ``subject`` says what about (a slot, a VM), where one decision is used for many things."""
        output = decision.function(input)
        raw_input, raw_output = encode_canonical(input), encode_canonical(output)
        self.keep(decision, raw_input, raw_output, empty=decision.is_empty(output), subject=subject)
        return output

    def keep(
        self,
        decision: Decision[Any, Any],
        raw_input: bytes,
        raw_output: bytes,
        *,
        empty: bool,
        subject: str = "",
        input_digest: str = "",
    ) -> None:
        """Log a use that was computed elsewhere, for example in a child process, and report it to the listeners.

        ``input_digest``: of an input that is too large to be kept and is not given.
        """
        output_digest = compute_digest(raw_output)
        changed = self._has_changed(decision.name, subject, output_digest)
        use = Use(
            at=self._clock.now(),
            name=decision.name,
            subject=subject,
            request=global_request_id(),
            input_digest=input_digest or compute_digest(raw_input),
            output_digest=output_digest,
            changed=changed,
            empty=empty,
            input=raw_input,
            output=raw_output,
        )
        for listener in self._listeners:
            listener(use)
        _log.debug(
            "decision.used",
            decision=use.name,
            subject=subject,
            input=use.input_digest,
            output=output_digest,
            changed=changed,
            empty=empty,
            input_bytes=len(raw_input),
        )

    def _has_changed(self, name: str, subject: str, answer: str) -> bool:
        key = (name, subject)
        before = self._last.pop(key, None)
        self._last[key] = answer
        if len(self._last) > SUBJECTS_LIMIT:
            self._last.popitem(last=False)
        return before != answer


def compute_digest(raw: bytes) -> str:
    """By which an input or answer is known."""
    return hashlib.sha256(raw).hexdigest()
