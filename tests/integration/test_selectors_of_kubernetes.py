"""A selector means what it means to a real API server: the same texts are refused, the same labels selected."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import quote

import pytest
from tests.support.api_server import ApiRefusal, ApiServer, shared_server

from outlive.base import BadInput, Random
from outlive.store import Selector

pytestmark = pytest.mark.component("kubernetes")
NAMESPACE = "selectors"
MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
LABELS = {
    "none": {},
    "empty": {"a": ""},
    "b": {"a": "b", "in": "in"},
    "c": {"a": "c", "x.y/z": "1"},
    "seven": {"n": "7", "notin": "x"},
    "word": {"n": "seven", "a": "7"},
}
PIECES = (
    "a",
    "n",
    "b",
    "in",
    "notin",
    "x.y/z",
    "7",
    "-1",
    "1.5",
    "=",
    "==",
    "!=",
    "!",
    ",",
    "(",
    ")",
    ">",
    "<",
    " ",
    "-",
    "_a",
    "A",
)
TEXTS = 300
WRITTEN = (
    "", " ", "a", "!a", "! a", "a=b", "a==b", "a!=b", "a=", "a!=", "a=,in", "a in (b,c)", "a notin (b,c)", "a in ()",
    "a in (,b)", "a in (b,)", "a in (b,,c)", "in in (in)", "notin", "a,", ",a", "a,,in", "a in b", "a in (b", "a=b=c",
    "a=b,c", "n>6", "n>7", "n<8", "n < 8", "n>b", "n>", "n>-1", "n>1.5", "x.y/z=1", "x/y/z=1", "/z", "x.y/", "X.y/z",
    "a=" + "b" * 63, "a=" + "b" * 64, "a" * 63, "a" * 64, "a=-b", "a=b-", "-a", "a_", "a.b", "a = b , in", "a\tin\n(b)",
    "a!b", "!a=b", "!a in (b)", "a=(b)", "a in (b)c", "a in(b)", "a in (b),", "a=>b", "a=!b", "a===b", "n>07", "n>+7",
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> ApiServer:
    one = shared_server()
    with suppress(ApiRefusal):  # an earlier run made it
        one.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    for name, labels in LABELS.items():
        with suppress(ApiRefusal):
            one.call("POST", MAPS, {"metadata": {"name": name, "labels": labels}})
    return one


def theirs(server: ApiServer, text: str) -> set[str] | None:
    """Which of the objects the server selects; ``None`` if it refuses the text."""
    try:
        found = server.call("GET", f"{MAPS}?labelSelector={quote(text)}")["items"]
    except ApiRefusal as error:
        if error.code != 400:
            raise
        return None
    return {one["metadata"]["name"] for one in found} & LABELS.keys()


def ours(text: str) -> set[str] | None:
    try:
        selector = Selector.parse(text)
    except BadInput:
        return None
    return {name for name, labels in LABELS.items() if selector.matches(labels)}


def test_the_server_takes_and_selects_as_we_do(server: ApiServer) -> None:
    random = Random(1)
    made = ["".join(random.choice(PIECES) for _ in range(random.randint(1, 7))) for _ in range(TEXTS)]
    compared = [(text, ours(text), theirs(server, text)) for text in (*WRITTEN, *made)]
    assert [one for one in compared if one[1] != one[2]] == []
    assert sum(answer is not None for _, answer, _ in compared) > 50
