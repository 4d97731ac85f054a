"""JSON merge patch (RFC 7396) and JSON patch (RFC 6902) on plain documents: pure, and the argument is never changed.

Errors are ``BadInput`` for a malformed patch and ``Invalid`` for one that does not fit the document. A failed
``test`` is a ``Conflict``: the document is not what the client thought it was.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

from outlive.api.config import PATCH_OPERATIONS
from outlive.base.errors import BadInput, Conflict, Invalid

POINTER_DEPTH: Final = 128
"""Steps of one JSON pointer."""
_MISSING: Final = object()


def merge_patch(document: Any, patch: Any) -> Any:
    """The document with the patch laid over it: ``null`` removes, maps merge, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def json_patch(document: Any, operations: Any) -> Any:
    """The document after the operations, all or none."""
    if not isinstance(operations, list):
        raise BadInput("a JSON patch is a list of operations", remedy='write [{"op": "replace", "path": …}]')
    if len(operations) > PATCH_OPERATIONS:
        raise BadInput(f"{len(operations)} operations", remedy=f"at most {PATCH_OPERATIONS} in one patch")
    result = copy.deepcopy(document)
    for index, operation in enumerate(operations):
        place = f"operations[{index}]"
        if not isinstance(operation, dict) or operation.get("op") not in _OPERATIONS:
            raise BadInput("not an operation", place=place, remedy=f"op is one of {', '.join(_OPERATIONS)}")
        try:
            result = _OPERATIONS[operation["op"]](result, operation)
        except (BadInput, Conflict) as error:
            error.place = error.place or place
            raise
    return result


def pointer(operation: dict[str, Any], name: str) -> tuple[str, ...]:
    """The steps of the JSON pointer under that name; ``BadInput`` if it is none."""
    text = operation.get(name)
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise BadInput(f"{name} {text!r} is no JSON pointer", remedy='write "/spec/field"')
    steps = tuple(step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:])
    if len(steps) > POINTER_DEPTH:
        raise BadInput(f"{name} has {len(steps)} steps", remedy=f"at most {POINTER_DEPTH}")
    return steps


def _value(operation: dict[str, Any]) -> Any:
    if "value" not in operation:
        raise BadInput(f"{operation['op']} without value", remedy="give value")
    return copy.deepcopy(operation["value"])


def _find(document: Any, steps: tuple[str, ...]) -> Any:
    for step in steps:
        if isinstance(document, dict):
            document = document.get(step, _MISSING)
        elif isinstance(document, list):
            index = _index(step, len(document) - 1)
            document = document[index]
        else:
            document = _MISSING
        if document is _MISSING:
            raise Invalid(f"there is nothing at /{'/'.join(steps)}", remedy="read the object again")
    return document


def _index(step: str, most: int) -> int:
    if not step.isascii() or not step.isdigit() or (len(step) > 1 and step[0] == "0") or len(step) > 9:
        raise Invalid(f"{step[:40]!r} is no index of a list", remedy="write a number or '-'")
    if int(step) > most:
        raise Invalid(f"index {step} is beyond the end of the list", remedy="read the object again")
    return int(step)


def _add(document: Any, steps: tuple[str, ...], value: Any) -> Any:
    if not steps:
        return value
    parent = _find(document, steps[:-1])
    if isinstance(parent, dict):
        parent[steps[-1]] = value
    elif isinstance(parent, list):
        parent.insert(len(parent) if steps[-1] == "-" else _index(steps[-1], len(parent)), value)
    else:
        raise Invalid(f"/{'/'.join(steps[:-1])} has no members", remedy="read the object again")
    return document


def _remove(document: Any, steps: tuple[str, ...]) -> Any:
    if not steps:
        raise Invalid("the whole document cannot be removed", remedy="delete the object")
    _find(document, steps)
    parent = _find(document, steps[:-1])
    if isinstance(parent, dict):
        del parent[steps[-1]]
    else:
        parent.pop(int(steps[-1]))
    return document


def _op_add(document: Any, operation: dict[str, Any]) -> Any:
    return _add(document, pointer(operation, "path"), _value(operation))


def _op_remove(document: Any, operation: dict[str, Any]) -> Any:
    return _remove(document, pointer(operation, "path"))


def _op_replace(document: Any, operation: dict[str, Any]) -> Any:
    steps = pointer(operation, "path")
    value = _value(operation)
    if not steps:
        return value
    _find(document, steps)
    parent = _find(document, steps[:-1])
    if isinstance(parent, dict):
        parent[steps[-1]] = value
    else:
        parent[int(steps[-1])] = value
    return document


def _op_move(document: Any, operation: dict[str, Any]) -> Any:
    source, target = pointer(operation, "from"), pointer(operation, "path")
    if len(target) > len(source) and target[: len(source)] == source:
        raise Invalid("a value cannot be moved into itself", remedy="copy it")
    value = _find(document, source)
    return document if source == target else _add(_remove(document, source), target, value)


def _op_copy(document: Any, operation: dict[str, Any]) -> Any:
    value = copy.deepcopy(_find(document, pointer(operation, "from")))
    return _add(document, pointer(operation, "path"), value)


def _op_test(document: Any, operation: dict[str, Any]) -> Any:
    steps, value = pointer(operation, "path"), _value(operation)
    try:
        found = _find(document, steps)
    except Invalid:
        found = _MISSING
    if not _equal(found, value):
        raise Conflict(f"test of /{'/'.join(steps)} failed", remedy="read the object again")
    return document


def _equal(left: Any, right: Any) -> bool:
    """JSON's equality: ``true`` is not 1, but 1 is 1.0."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    return bool(left == right)


_OPERATIONS: Final[dict[str, Callable[[Any, dict[str, Any]], Any]]] = {
    "add": _op_add,
    "remove": _op_remove,
    "replace": _op_replace,
    "move": _op_move,
    "copy": _op_copy,
    "test": _op_test,
}
