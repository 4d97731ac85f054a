"""One tree of errors; each has an exit code, a stable word, and is drawn in the docstring."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outlive.base import ExitCode, OutliveError, errors


def tree(error: type[OutliveError]) -> Iterator[type[OutliveError]]:
    yield error
    for child in error.__subclasses__():
        yield from tree(child)


OURS = [error for error in tree(OutliveError) if error.__module__ == "outlive.base.errors"]


def test_the_docstring_draws_every_error_with_its_code() -> None:
    drawn = {
        line.split()[1]: line.split()[2:3]
        for line in (errors.__doc__ or "").splitlines()
        if "── " in line
        for line in [line[line.index("── ") :]]
    }
    assert set(drawn) == {error.__name__ for error in OURS} - {"OutliveError"}
    for error in OURS:
        code = drawn.get(error.__name__, ["("])[0]
        if code.isdecimal():
            assert error.exit_code == int(code)


def test_words_for_programs_are_unique() -> None:
    assert len({error.code for error in OURS}) == len(OURS)


@pytest.mark.parametrize(
    ("error", "code"),
    [("Refused", 1), ("Usage", 2), ("BadInput", 3), ("Invalid", 3), ("NotFound", 4), ("InUse", 5), ("AlreadyExists", 5),
     ("Conflict", 5), ("Unavailable", 6), ("Unknown", 6), ("Forbidden", 7), ("LimitExceeded", 8)],
)  # fmt: skip
def test_exit_codes_are_pinned(error: str, code: int) -> None:
    assert getattr(errors, error).exit_code == code
    assert ExitCode(code)


def test_an_error_is_one_line_with_place_and_remedy() -> None:
    assert str(OutliveError("bad thing")) == "bad thing"
    assert str(OutliveError("bad thing", place="file:3", remedy="fix it")) == "file:3: bad thing (fix it)"
