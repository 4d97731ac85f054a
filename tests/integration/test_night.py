"""The page for the night shows what commands really print, and routes every reason to wait and every critical fault."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.command import outlive
from tests.support.nights import state_of

from outlive.resources.reasons import FaultCode, HoldReason, Severity

TEXT = (Path(__file__).parents[2] / "docs/how-to/night.md").read_text()
SHOWN = re.compile(
    r"^<!-- state: (?P<scenario>[\w-]+) (?P<at>\d+)s -->\n"
    r"```console\n\$ outlive (?P<command>[^\n]+)\n(?P<output>.*?)^```",
    re.S | re.M,
)
WRITES = ("fence", "maintenance", "request", "arm", "disarm", "apply", "drain", "ready")
"""Commands that need a store of their own."""
VARYING = (
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<uuid>"),
    (re.compile(r"\bfailover-a-\w+"), "<slot>"),
    (re.compile(r"\bkvm-\d+\b"), "<host>"),
    (re.compile(r"\b\w+ says that (?=<host>)"), "<name> says that "),
    (re.compile(r"\.[0-9a-f]{6}\b"), ".<fence>"),
    (re.compile(r"(?<![\w-])\d[\d.:-]*"), "<number>"),
    (re.compile(r"[ \t]+"), " "),
)


class Shown(NamedTuple):
    """What a page says that a command prints, this long after the begin of a story."""

    scenario: str
    at_s: float
    command: str
    output: str


BLOCKS = [Shown(one["scenario"], float(one["at"]), one["command"], one["output"]) for one in SHOWN.finditer(TEXT)]


def plain(text: str) -> str:
    """Without what differs from run to run."""
    for pattern, stands_for in VARYING:
        text = pattern.sub(stands_for, text)
    return text.strip()


def lacking(shown: str, printed: str) -> list[str]:
    """Lines of the page that were not printed, or not in this order; ``…`` stands for anything."""
    lines = [plain(line) for line in printed.splitlines()]
    missing, at = [], 0
    for line in shown.splitlines():
        if not line.strip("… "):
            continue
        wanted = re.compile(".*".join(re.escape(part.strip()) for part in plain(line).split("…")))
        found = next((number for number, one in enumerate(lines[at:], at) if wanted.search(one)), None)
        if found is None:
            missing.append(line)
        else:
            at = found + 1
    return missing


@pytest.mark.parametrize("shown", BLOCKS, ids=lambda one: f"{one.scenario}: {one.command[:20]}")
def test_the_page_shows_what_is_printed(shown: Shown, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_bytes(state_of(shown.scenario, shown.at_s))
    words = shlex.split(shown.command)
    if words[0] in WRITES:
        assert outlive("apply", "-f", state, "--state-dir", tmp_path / "store").code == 0
        printed = outlive(*words, "--state-dir", tmp_path / "store")
    else:
        printed = outlive(*words, "--state", state)
    assert printed.err == ""
    assert lacking(shown.output, printed.out) == [], printed.out


def test_the_page_shows_enough() -> None:
    assert len(BLOCKS) > 10


@pytest.mark.parametrize("code", [*HoldReason, *(code for code in FaultCode if code.severity is Severity.CRITICAL)])
def test_every_reason_to_wait_and_every_critical_fault_has_a_row(code: str) -> None:
    """A new one needs a row in a table of the page's first screen. What each fault means stands in the reference."""
    rows = [line for line in TEXT[: TEXT.index("## <a id")].splitlines() if line.startswith("| ")]
    assert any(f"`{code}`" in line for line in rows)


def test_every_symptom_leads_to_a_section() -> None:
    table = TEXT[: TEXT.index("## <a id")]
    led = set(re.findall(r"\]\(#([\w-]+)\)", table))
    assert {"nothing", "unconfirmed", "storm", "paused", "disarmed"} <= led
    assert led | {"never"} == set(re.findall(r'^## <a id="([\w-]+)"', TEXT, re.M))
