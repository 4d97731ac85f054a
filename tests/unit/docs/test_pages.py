"""What the pages point at is there: files, headings, and of every bug the test or story that keeps it away."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from outlive.resources.reasons import FaultCode, HoldReason

ROOT = Path(__file__).parents[3]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
SOURCES = sorted(path for folder in ("src", "tests", "scripts", "deploy") for path in (ROOT / folder).rglob("*"))
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
NAMED = re.compile(r"(docs/[\w/.-]+\.md)(?:#([\w-]+))?")
LARGEST_BYTES = 500_000
"""Larger files are data."""
LINES_OF_A_SCREEN = 60
ROW = re.compile(r"\| (?P<what>.+) \| (?P<found>.+) \| (?P<test>.+) \|\Z")
ROWS = [
    match.groupdict()
    for line in (ROOT / "docs/bugs.md").read_text().splitlines()[6:]
    if (match := ROW.match(line)) is not None and not line.startswith(("| what", "|---"))
]


@cache
def anchors(page: Path) -> frozenset[str]:
    """Names of headings as a browser of Markdown makes them, and those that are written out."""
    text = page.read_text()
    found = set(re.findall(r'<a id="([^"]+)"', text))
    for heading in re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), flags=re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"<[^>]*>", "", heading)).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return frozenset(found)


def missing(page: Path, anchor: str) -> str:
    """What is not there; empty if all is."""
    if not page.exists():
        return "no such file"
    return f"no heading {anchor!r}" if anchor and page.suffix == ".md" and anchor not in anchors(page) else ""


def dead_links(page: Path) -> Iterator[str]:
    for link in LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.S)):
        target, _, anchor = link.partition("#")
        if target.startswith(("http:", "https:")):
            continue
        if lacks := missing((page.parent / target).resolve() if target else page, anchor):
            yield f"{link}: {lacks}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_pages_lead_somewhere(page: Path) -> None:
    assert list(dead_links(page)) == []


def test_pages_that_programs_and_tests_name_are_there() -> None:
    dead = [
        f"{path.relative_to(ROOT)} names {page}#{anchor}: {lacks}"
        for path in SOURCES
        if path.is_file() and path.suffix not in (".pyc", ".gz") and path.stat().st_size < LARGEST_BYTES
        for page, anchor in NAMED.findall(path.read_text(errors="ignore"))
        if (lacks := missing(ROOT / page, anchor))
    ]
    assert dead == []


def test_each_section_of_the_changelog_fits_a_screen() -> None:
    sections = re.split(r"^#{2,3} ", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    assert len(sections) > len(["title", "unreleased", "first version"])
    assert [one.partition("\n")[0] for one in sections if one.count("\n") > LINES_OF_A_SCREEN] == []


def test_every_bug_has_its_row() -> None:
    lines = [line for line in (ROOT / "docs/bugs.md").read_text().splitlines() if line.startswith("| ")]
    assert len(ROWS) == len(lines) - 1
    assert ROWS


def test_every_bug_names_a_test_or_story_that_keeps_it_away() -> None:
    texts: dict[str, list[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        texts.setdefault(path.name, []).append(path.read_text())
    for row in ROWS:
        named = re.findall(r"`([^`]+)`", row["test"])
        assert named, row["what"]
        for name in (one.removeprefix("outlive simulate ") for one in named):
            if name.startswith("tests/"):
                assert (ROOT / name / "expect.yaml").exists(), row["what"]
                continue
            file, _, function = name.partition("::")
            assert file in texts, f"there is no {file}"
            if function:
                assert any(re.search(rf"^(async )?def {function}\(", text, re.M) for text in texts[file]), name


def test_every_fault_is_explained_with_what_helps() -> None:
    page = (ROOT / "docs/reference/faults.md").read_text()
    rows = dict(re.findall(r"^- <a [^>]*></a>`([\w-]+)` \(\d+\): (\S.*\S; \*\S.*\S\*)$", page, re.MULTILINE))
    assert len(FaultCode) > 12
    assert rows.keys() == set(FaultCode)


def test_each_reason_to_wait_has_a_row_in_the_manual() -> None:
    page = (ROOT / "docs/reference/reasons.md").read_text()
    assert [one for one in HoldReason if f"></a>`{one}`: " not in page] == []
