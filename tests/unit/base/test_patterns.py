"""Name patterns are Go's ``path.Match``, and differ from ``fnmatch`` where Go does."""

from __future__ import annotations

import contextlib
import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.base import PATTERN_LENGTH_LIMIT, BadInput, matches

GO = [
    ("abc", "abc", True), ("*", "abc", True), ("*c", "abc", True), ("a*", "a", True), ("a*", "abc", True),
    ("a*", "ab/c", False), ("a*/b", "abc/b", True), ("a*/b", "a/c/b", False), ("a*b*c*d*e*/f", "axbxcxdxe/f", True),
    ("a*b*c*d*e*/f", "axbxcxdxexxx/f", True), ("a*b*c*d*e*/f", "axbxcxdxe/xxx/f", False),
    ("a*b?c*x", "abxbbxdbxebxczzx", True), ("a*b?c*x", "abxbbxdbxebxczzy", False), ("ab[c]", "abc", True),
    ("ab[b-d]", "abc", True), ("ab[e-g]", "abc", False), ("ab[^c]", "abc", False), ("ab[^b-d]", "abc", False),
    ("ab[^e-g]", "abc", True), ("a\\*b", "a*b", True), ("a\\*b", "ab", False), ("a?b", "a☺b", True),
    ("a[^a]b", "a☺b", True), ("a???b", "a☺b", False), ("a[^a][^a][^a]b", "a☺b", False), ("[a-ζ]*", "α", True),
    ("*[a-ζ]", "A", False), ("a?b", "a/b", False), ("a*b", "a/b", False), ("[\\]a]", "]", True), ("[\\-]", "-", True),
    ("[x\\-]", "x", True), ("[x\\-]", "-", True), ("[x\\-]", "z", False), ("[\\-x]", "x", True), ("[\\-x]", "a", False),
    ("*x", "xxx", True), ("", "", True), ("", "a", False), ("a[b-a]", "ab", False), ("[!a]", "!", True),
    ("[!a]", "b", False), ("a\nb", "a\nb", True), ("*", "a\nb", True), ("[.]", ".", True), ("(a|b)+", "(a|b)+", True),
    ("[a^]", "^", True),
    ("[[]", "[", True), ("[&&]", "&", True), ("**", "ab", True),
]  # fmt: skip

MALFORMED = ["[]a]", "[-]", "[x-]", "[-x]", "[a-b-c]", "[", "[^", "[^bc", "a[", "a[b", "\\", "[a-]", "[\\", "a\\"]


@pytest.mark.parametrize(("pattern", "name", "matched"), GO)
def test_a_pattern_matches_as_in_go(pattern: str, name: str, matched: bool) -> None:
    assert matches(pattern, name) is matched


@pytest.mark.parametrize("pattern", MALFORMED)
def test_a_malformed_pattern_is_refused_whatever_the_name(pattern: str) -> None:
    for name in ("", "a", "zzz"):
        with pytest.raises(BadInput, match="malformed"):
            matches(pattern, name)


def test_a_pattern_that_is_too_long_is_refused() -> None:
    with pytest.raises(BadInput, match="longer"):
        matches("a" * (PATTERN_LENGTH_LIMIT + 1), "a")


@pytest.mark.parametrize(
    ("pattern", "name"), [("a*", "a/b"), ("?", "/"), ("[!a]", "b"), ("\\*", "*"), ("[^a]", "a"), ("[^a]", "b")]
)
def test_where_fnmatch_says_something_else(pattern: str, name: str) -> None:
    assert matches(pattern, name) is not fnmatch.fnmatchcase(name, pattern)


@given(st.text(alphabet="ab-.", max_size=12))
def test_a_name_without_special_characters_is_its_own_pattern(name: str) -> None:
    assert matches(name, name)
    assert matches("*", name)
    assert not matches(name + "x", name)


@given(st.text(alphabet="ab*?", max_size=8), st.text(alphabet="ab", max_size=8))
def test_without_slashes_and_classes_fnmatch_agrees(pattern: str, name: str) -> None:
    assert matches(pattern, name) is fnmatch.fnmatchcase(name, pattern)


@given(st.text(max_size=10), st.text(max_size=10))
def test_any_text_either_matches_or_is_malformed(pattern: str, name: str) -> None:
    with contextlib.suppress(BadInput):
        matches(pattern, name)


_PIECES = {
    "a": "a", "b": "b", "/": "/", "*": "[^/]*", "?": "[^/]", "[ab]": "[ab]", "[^a]": "[^a]", "[^/]": "[^/]",
    "[a-c]": "[a-c]", "[b-a]": "(?!)", "[^b-a]": "[\\s\\S]", "\\*": "\\*", "\\[": "\\[",
}  # fmt: skip


@given(st.lists(st.sampled_from(sorted(_PIECES)), max_size=7), st.text(alphabet="ab/*c[", max_size=7))
def test_every_small_pattern_matches_what_the_same_regular_expression_does(pieces: list[str], name: str) -> None:
    expression = re.compile("".join(_PIECES[piece] for piece in pieces), re.DOTALL)
    assert matches("".join(pieces), name) is (expression.fullmatch(name) is not None)


@pytest.mark.parametrize("stars", [8, 500])
def test_many_stars_are_answered_in_one_pass_over_the_name(stars: int) -> None:
    pattern = ("*a" * stars + "b")[-PATTERN_LENGTH_LIMIT:]
    assert not matches(pattern, "a" * 2000)
    assert matches(pattern, "a" * 2000 + "b")
