"""Pictures drawn from pages of the manual: the night as a decision tree, and what planned work stops.

Questions, reasons and cells come from the pages' own lists and tables, so a picture says what its page says.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.support.pictures.canvas import Area, Drawing, wrap

HOW_TO: Final = Path(__file__).resolve().parents[3] / "docs/how-to"
_CODES = re.compile(r"`[^`]+`")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]*)\)")


def plain(text: str) -> str:
    """Markdown as text."""
    return re.sub(r"[`*]|<[^>]+>", "", _LINK.sub(r"\1", text)).strip()


def table_after(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table whose head begins so, without the line below the head."""
    lines = text[text.index(heading) :].splitlines()
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip()[1:-1].split("|")])
    return [rows[0], *rows[2:]]


def night() -> Drawing:
    """The night as a decision tree."""
    text = (HOW_TO / "night.md").read_text()
    questions = re.findall(r"^\d\. \*\*([^*]+)\*\*", text, re.M)
    assert len(questions) == 3, questions
    waits = _by_section(table_after(text, "| VMs wait for |")[1:])
    faults = _by_section(table_after(text, "| `outlive status` shows |")[1:])
    tops = (64, 150, 150 + 24 * len(waits) + 40)
    d = Drawing("A host died: what now?", 1000, tops[2] + 24 * len(faults) + 70)
    for number, (question, top) in enumerate(zip(questions, tops, strict=True), 1):
        d.box(Area(20, top, 250, 46), [f"{number}. {question.rstrip('?')}?"], colour="blue")
        if number > 1:
            d.arrow((145, tops[number - 2] + 46), (145, top))
    d.text(155, tops[1] - 14, "yes", size=12, colour="muted")
    d.text(155, tops[2] - 14, "no", size=12, colour="muted")
    d.arrow((270, tops[0] + 23), (340, tops[0] + 23), colour="red")
    d.text(305, tops[0] + 17, "no", size=12, anchor="middle", colour="muted")
    d.box(Area(340, tops[0], 330, 46), ["Start the server", "everything else on the screen is old"], colour="red")
    _leaves(d, tops[1], waits, "yes")
    _leaves(d, tops[2], faults, "yes")
    y = tops[2] + 24 * len(faults) + 36
    d.text(356, y, "another fault", size=12, colour="muted")
    d.text(715, y, "It can wait until the morning", size=12, bold=True)
    return d


def _by_section(rows: list[list[str]]) -> list[tuple[str, str]]:
    """What is shown, and the section that each row leads to, in the order of the page; of rows that lead to one."""
    found: dict[str, list[str]] = {}
    for shown, action in rows:
        if action.startswith("Wait"):
            found.setdefault(action.partition(":")[0], []).append(shown)
        elif (link := _LINK.search(action)) is not None and link[2].startswith("#"):
            found.setdefault(action if action.startswith("**") else link[1], []).append(shown)
    return [(", ".join(shown), plain(section)) for section, shown in found.items()]


def _leaves(d: Drawing, top: float, leaves: list[tuple[str, str]], answer: str) -> None:
    d.arrow((270, top + 23), (340, top + 23))
    d.text(305, top + 17, answer, size=12, anchor="middle", colour="muted")
    d.rect(Area(340, top, 645, 24 * len(leaves) + 16))
    for at, (shown, section) in enumerate(leaves):
        y = top + 24 + 24 * at
        codes = not _CODES.sub("", shown).strip(" ,;")
        d.text(356, y, plain(shown), size=10.5 if codes else 11.5, mono=codes)
        d.text(715, y, section, size=12, bold=True)


COLOURS: Final = {"yes": "green", "no": "red"}


def stops() -> Drawing:
    """What maintenance, drain, disarm and a pause stop."""
    head, *rows = table_after((HOW_TO / "fencing.md").read_text(), "| | `maintenance on`")
    columns, left, width, cell = len(head) - 1, 262, 990, 34
    each = (width - left - 16) / columns
    top = 96
    d = Drawing("Planned work: what goes on, and what stops", width, top + cell * len(rows) + 22)
    for at, name in enumerate(head[1:]):
        lines = wrap(plain(name), each - 8, 11.5, bold=True)
        d.lines(
            left + each * (at + 0.5),
            top - 12 - 15 * (len(lines) - 1),
            lines,
            size=11.5,
            step=15,
            anchor="middle",
            bold=True,
        )
    for number, row in enumerate(rows):
        y = top + number * cell
        d.text(16, y + 22, plain(row[0]), size=12)
        for at, said in enumerate(row[1:]):
            words = plain(said)
            area = Area(left + each * at + 2, y + 2, each - 4, cell - 4)
            answers = {one for one in COLOURS if re.search(rf"\b{one}\b", words)}
            colour = "amber" if len(answers) > 1 else COLOURS[answers.pop()] if answers else ""
            colour = "amber" if not colour and "leave" in words else colour
            d.rect(area, fill=f"soft-{colour}" if colour else "panel", stroke=colour or "line", radius=4)
            lines = wrap(words, each - 10, 10.5)
            d.lines(
                area.x + area.width / 2,
                area.y + 19 - 6.5 * (len(lines) - 1),
                lines,
                size=10.5,
                step=13,
                anchor="middle",
                inside=area,
            )
    return d
