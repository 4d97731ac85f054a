"""One table turns every code into a sentence and a remedy."""

from __future__ import annotations

import string
from typing import Any

import pytest

from outlive.resources.reasons import TABLE, HoldReason, Message, Reason, Template, fill, join_names, render


def test_a_reason_reads_as_its_template_with_its_values() -> None:
    said = render(Reason(HoldReason.FENCE_UNCONFIRMED, {"host": "kvm-3"}))
    assert said.text == "kvm-3 is condemned, and there is no proof yet that it is off"
    assert said.remedy.startswith("outlive fence kvm-3 --confirm-off")


def test_a_list_names_its_first_members_and_how_many_more_there_are() -> None:
    assert join_names(("a", "b")) == "a, b"
    assert join_names(tuple("abcdefg")) == "a, b, c, d, e and 2 more"
    assert fill("{hosts} are silent", {"hosts": ("a", "b")}) == "a, b are silent"


def test_a_missing_value_is_an_error_and_not_half_a_sentence() -> None:
    with pytest.raises(KeyError):
        render(Reason(HoldReason.FENCE_UNCONFIRMED))


def test_a_message_is_one_line() -> None:
    assert str(Message("no room", "add a host")) == "no room (add a host)"
    assert str(Message("no room")) == "no room"


def test_codes_of_all_families_are_unique_words() -> None:
    codes = [code.value for code in TABLE]
    assert len(set(codes)) == len(codes)
    allowed = set(string.ascii_lowercase + string.digits + "-")
    assert [code for code in codes if not set(code) <= allowed] == []


@pytest.mark.parametrize("template", [pytest.param(template, id=code.value) for code, template in TABLE.items()])
def test_patterns_are_well_formed(template: Template) -> None:
    anything: Any = _Anything()
    for pattern in (template.text, template.remedy):
        if isinstance(pattern, str):
            assert "{" not in pattern.format_map(anything).replace("{}", "")


class _Anything(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "x"
