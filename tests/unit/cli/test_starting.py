"""What a command imports before it answers: nothing that takes longer than its answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.command import environment, imported, outlive

HEAVY = (
    "aiohttp",
    "cryptography",
    "jinja2",
    "numpy",
    "prometheus_client",
    "psycopg",
    "pydantic",
    "rich",
    "sqlalchemy",
    "starlette",
    "structlog",
    "uvicorn",
    "yaml",
)
SCRIPT = """
import sys
from outlive.cli.main import main
code = main(sys.argv[1:])
print(f"imported: {code}", *sorted(set(sys.modules) & set(HEAVY)), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("starting")
    return imported(folder, "name,cpu,memory\nh1,8,16Gi\n", "id,cpu,memory,host\nv1,4,8Gi,h1\n")


@pytest.mark.parametrize("command", ["get vms", "get events", "get", "status", "vm list", "host list", "token list"])
def test_a_command_imports_nothing_that_it_does_not_need(state: Path, command: str) -> None:
    words = [*command.split(), *(["--state-dir", str(state)] if command != "get" else [])]
    done = subprocess.run(
        [sys.executable, "-c", f"HEAVY = {HEAVY!r}\n{SCRIPT}", *words],
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
    )
    said = done.stderr.splitlines()[-1].split()
    assert said[0] == "imported:"
    expected = ["sqlalchemy"] if "sqlalchemy" in said else []  # without a server the store's file is opened here
    assert said[2:] == expected


@pytest.mark.parametrize("text", ["two", "0", "1.5", "inf", ""])
def test_a_number_that_is_none_is_told_in_plain_words(text: str) -> None:
    result = outlive("survive", "--failures", text)
    assert result.code == 2
    assert "Invalid value for '--failures': write " in result.line
