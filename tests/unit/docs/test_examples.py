"""What the pages show can be typed: documents are read by the server's own checks, commands by the command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from outlive.api import check_admission
from outlive.cli import COMMANDS, DefaultGroup
from outlive.resources import KINDS, check_object, decode_document, parse_documents

ROOT = Path(__file__).parents[3]
NOT_TYPED = ("cli.md", "bugs.md")
"""Made from the commands themselves; and of what was once."""
PAGES = sorted([ROOT / "README.md", *(page for page in (ROOT / "docs").rglob("*.md") if page.name not in NOT_TYPED)])
BLOCK = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```", re.S | re.M)
INLINE = re.compile(r"`(outlive [^`]+)`")
ENDS = ("|", ">", "&", "#")


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    kind: str
    text: str


BLOCKS = [
    Block(str(page.relative_to(ROOT)), one["kind"], one["text"])
    for page in PAGES
    for one in BLOCK.finditer(page.read_text())
]
DOCUMENTS = [block for block in BLOCKS if block.kind == "yaml" and re.search(r"^kind:", block.text, re.M)]


def commands(page: Path) -> Iterator[list[str]]:
    """The words after ``outlive`` of each command that the page shows."""
    text = page.read_text()
    shown = [
        line.removeprefix("$ ").removeprefix(".venv/bin/")
        for block in BLOCK.finditer(text)
        if block["kind"] in ("", "console", "sh")
        for line in block["text"].replace("\\\n", " ").splitlines()
    ]
    prose = INLINE.findall(BLOCK.sub("", text).replace("\n", " "))
    for line in (*shown, *prose):
        if line.startswith("outlive "):
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|>&")
            lexer.whitespace_split, lexer.commenters = True, "#"
            words = list(lexer)
            end = next((at for at, word in enumerate(words) if word.startswith(ENDS)), len(words))
            yield words[1:end]


def mistake_in(words: list[str]) -> str:
    """Which command or option there is not; empty where all are there."""
    if not words or words[0].startswith("-"):
        return ""
    if words[0] not in COMMANDS:
        return "no such command"
    command, rest = loaded(words[0]), words[1:]
    while below := getattr(command, "commands", {}):
        if isinstance(command, DefaultGroup) and rest and rest[0] not in below:
            rest = [next(iter(below)), *rest]
        if not rest or rest[0].startswith("-"):
            break
        if rest[0] not in below:
            return "no such command"
        command, rest = below[rest[0]], rest[1:]
    known = {"-h", "--help", "--debug", *(name for one in command.params for name in (*one.opts, *one.secondary_opts))}
    given = [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
    unknown = [one for one in given if one not in known]
    return "" if not unknown or words[0] == "guard" else f"no option {', '.join(unknown)}"


@cache
def loaded(name: str) -> Any:
    """A command of the command line, with those below it."""
    return COMMANDS[name].load(name)


def test_documents_and_commands_are_found() -> None:
    assert len(DOCUMENTS) > 1
    assert sum(1 for page in PAGES for _ in commands(page)) > 100


@pytest.mark.parametrize("block", DOCUMENTS, ids=lambda block: f"{block.page}: {block.text.splitlines()[0]}")
def test_documents_of_pages_are_accepted(block: Block) -> None:
    for document in parse_documents(block.text.encode(), block.page):
        item = decode_document(document.value, KINDS)
        check_object(item)
        check_admission(item)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_pages_exist(page: Path) -> None:
    wrong = [f"outlive {shlex.join(words)}: {mistake}" for words in commands(page) if (mistake := mistake_in(words))]
    assert wrong == []
