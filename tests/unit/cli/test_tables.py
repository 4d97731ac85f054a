"""Tables fit a terminal without losing the name of a row, and are whole everywhere else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.cli import (
    CUT,
    TextTable,
    colour_word,
    cut_text,
    fault_blocks,
    gib_text,
    make_table,
    shown_width,
    table_lines,
    wrapped_lines,
)

NOTE = "it is not protected, because no other host has room for it"
VMS = make_table(
    ["Name", "Host", "CPU", "Note"],
    [["0090a185-f94d-4469-a92b-bc82623604aa", "kvm-r3-09", 8, NOTE], ["short", "kvm-r1-01", 16, ""]],
)


def test_without_a_width_every_line_is_whole() -> None:
    lines = table_lines(VMS)
    assert NOTE in lines[1]
    assert lines[0].split() == ["Name", "Host", "CPU", "Note"]


def test_a_line_that_is_too_long_is_cut_and_never_its_name() -> None:
    lines = table_lines(VMS, 80)
    assert all(len(line) <= 80 for line in lines)
    assert len(lines) == 3
    assert lines[1].startswith("0090a185-f94d-4469-a92b-bc82623604aa  kvm-r3-09  8 ")
    assert lines[1].endswith(CUT)


ADVICE = make_table(["VM", "Reason", "Remedy"], [["web", "no-capacity", NOTE], ["db", "rule-1", ""]], advice=True)
LONG_ADVICE = make_table(["VM", "ID", "Remedy"], [["web", "0090a185-f94d-4469-a92b-bc82623604aa", NOTE]], advice=True)


@pytest.mark.parametrize("advice", [ADVICE, LONG_ADVICE])
@pytest.mark.parametrize("width", [24, 40, 60, 80])
def test_what_helps_is_whole_in_any_width(advice: TextTable, width: int) -> None:
    lines = table_lines(advice, width)
    assert all(len(line) <= width for line in lines)
    text = " ".join(part for line in lines for part in line.split())
    assert [word for word in NOTE.split() if word not in text.split()] == [], lines


def test_what_helps_stands_beside_its_row_or_below_it() -> None:
    assert table_lines(ADVICE, 60)[1].startswith("web  no-capacity  it is not")
    assert table_lines(LONG_ADVICE, 60)[:3] == [
        "VM        ID",
        "web       0090a185-f94d-4469-a92b-bc82623604aa",
        "  it is not protected, because no other host has room for it",
    ]
    assert table_lines(LONG_ADVICE) == table_lines(LONG_ADVICE._replace(advice=False))


def test_the_name_is_cut_where_nothing_else_is_left_to_cut() -> None:
    lines = table_lines(VMS, 30)
    assert all(len(line) <= 30 for line in lines)
    assert lines[1].startswith("0090a185-f")
    assert CUT in lines[1]


def test_columns_that_do_not_fit_follow_below_behind_the_name_and_numbers_are_never_cut() -> None:
    columns = ["host", *(f"capacityOfResource{number}" for number in range(10))]
    rows = [[f"kvm-{row}", *(f"{row * 1000 + column:,}" for column in range(10))] for row in range(3)]
    lines = table_lines(make_table(columns, rows), 80)
    assert all(len(line) <= 80 for line in lines)
    assert CUT not in "".join(line for line in lines if line.startswith("kvm-"))
    assert {cell for line in lines for cell in line.split()} >= {cell for row in rows for cell in row}
    assert sum(line.startswith("host") for line in lines) > 1


def test_facts_are_wrapped_and_never_cut() -> None:
    lines = table_lines(make_table(("", ""), [("state", "server http://127.0.0.1"), ("note", NOTE)]), 40)
    assert " ".join(" ".join(lines).split()) == f"state server http://127.0.0.1 note {NOTE}"
    assert all(len(line) <= 40 for line in lines)
    assert all(line.startswith("       ") for line in lines[2:])


def test_an_empty_table_is_a_sentence() -> None:
    assert table_lines(make_table(["Name"], [], empty="there are no vms"), 80) == ["there are no vms"]


def test_wide_characters_take_two_columns_and_control_characters_none() -> None:
    assert (shown_width("日本"), shown_width("é"), shown_width("ok")) == (4, 1, 2)
    assert cut_text("日本語", 4) == "日" + CUT
    lines = table_lines(make_table(["Name", "Host"], [["日本", "a\x1b[2J"], ["ab", "b"]]))
    assert lines[1:] == ["日本  a\\x1b[2J", "ab    b"]


def test_colours_are_for_terminals_that_have_them() -> None:
    one = make_table(["State"], [[colour_word("start", "green")]])
    assert table_lines(one, 80, colours=True) == ["\x1b[1mState\x1b[0m", "\x1b[32mstart\x1b[0m"]
    assert table_lines(one, 80) == ["State", "start"]


def test_a_fault_is_a_block_of_code_subject_what_and_help() -> None:
    blocks = fault_blocks(
        [("fence-unconfirmed", "kvm-7", "nothing proves it dead", "outlive why kvm-7"), ("a", "", "b", "")]
    )
    assert blocks == [
        "",
        "fence-unconfirmed: kvm-7",
        "  nothing proves it dead",
        "  what helps: outlive why kvm-7",
        "",
        "a",
        "  b",
    ]
    assert wrapped_lines(f"  {NOTE}", 30)[1].startswith("  ")


@given(
    st.lists(st.lists(st.text(max_size=60), min_size=4, max_size=4), min_size=1, max_size=5),
    st.integers(min_value=40, max_value=200),
)
def test_no_line_is_longer_than_the_terminal_whatever_the_cells_hold(rows: list[list[str]], width: int) -> None:
    found: TextTable = make_table(["Name", "One", "Two", "Three"], rows)
    widest_number = max((len(cell) for row in rows for cell in row if any(char.isdigit() for char in cell)), default=0)
    for line in table_lines(found, max(width, 2 * widest_number + 20)):
        assert shown_width(line) <= max(width, 2 * widest_number + 20)


@pytest.mark.parametrize("columns", ["60", "200"])
def test_a_pipe_gets_whole_lines_whatever_columns_says(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from outlive.cli import Output

    monkeypatch.setenv("COLUMNS", columns)
    Output().render([VMS])
    assert NOTE in capsys.readouterr().out


def test_a_little_memory_is_never_shown_as_none() -> None:
    assert [gib_text(gib) for gib in (0, 0.28, 9.5, 12.4, 5316)] == ["0", "0.3", "9.5", "12", "5,316"]
