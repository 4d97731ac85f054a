"""How the command line ends: exit codes, one line on standard error, no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.command import COMMAND, environment, outlive, spawned

from outlive import __version__
from outlive.base import BadInput, Forbidden, InUse, LimitExceeded, NotFound, Refused, Unavailable, Unknown
from outlive.cli import COMMANDS, report, take_debug
from outlive.resources import BadInputs, Problem


def test_version_is_printed() -> None:
    assert outlive("--version").out == f"outlive {__version__}\n"


def test_help_lists_every_command_and_the_exit_codes() -> None:
    result = outlive("--help")
    assert result.code == 0
    assert all(f"\n  {name} " in result.out for name in COMMANDS)
    assert "130 interrupted" in result.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    result = outlive(name, "--help")
    assert result.code == 0
    assert "Usage: outlive" in result.out
    assert not result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("frobnicate",),
        ("--frobnicate",),
        ("describe",),
        ("get", "nodes"),
        ("failover", "nothing"),
        ("get", "vms", "-o", "xml"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(arguments: tuple[str, ...]) -> None:
    result = outlive(*arguments)
    assert result.code == 2
    assert result.line
    assert not result.out


def test_a_mistyped_command_names_the_nearest_one() -> None:
    assert "Did you mean 'status'" in outlive("statsu").line


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refused("no"), 1),
        (BadInput("x"), 3),
        (NotFound("x"), 4),
        (InUse("x"), 5),
        (Unavailable("x"), 6),
        (Unknown("x"), 6),
        (Forbidden("x"), 7),
        (LimitExceeded("x"), 8),
        (KeyboardInterrupt(), 130),
        (RuntimeError("a slip"), 6),
        (OSError(28, "No space left on device"), 6),
        (PermissionError(13, "Permission denied", "/x"), 7),
        (ExceptionGroup("g", [ValueError("v"), NotFound("x")]), 4),
    ],
)
def test_every_error_has_its_exit_code(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(error, debug=False) == code
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert len(said.splitlines()) == (0 if isinstance(error, KeyboardInterrupt) else 1)


def test_an_error_shows_place_message_and_remedy_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    report(BadInput("is\nbroken", place="f:3", remedy="repair\tit"), debug=False)
    assert capsys.readouterr().err == "outlive: f:3: is broken (repair it)\n"


def test_every_problem_is_a_line_and_the_rest_a_count(capsys: pytest.CaptureFixture[str]) -> None:
    problems = tuple(Problem(f"f:{line}", "wrong", "right") for line in (1, 2))
    assert report(BadInputs(problems, 7), debug=False) == 3
    assert capsys.readouterr().err.splitlines() == [
        "outlive: f:1: wrong (right)",
        "outlive: f:2: wrong (right)",
        "outlive: and 5 more problems",
    ]


def test_debug_shows_the_traceback_wherever_it_stands() -> None:
    arguments = ["get", "vms", "--debug"]
    assert take_debug(arguments)
    assert arguments == ["get", "vms"]
    after = ["decide", "--", "--debug"]
    assert not take_debug(after)
    assert "Traceback" in outlive("--debug", "get", "nodes").err


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    command = [*COMMAND, "crds"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=30) == 0
    assert said == b""


@pytest.mark.slow
def test_full_output_is_an_error() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*COMMAND, "crds"], stdout=full, stderr=subprocess.PIPE, env=environment(), check=False)
    assert done.returncode == 6
    assert len(done.stderr.splitlines()) == 1


def test_help_imports_no_command() -> None:
    script = (
        "import sys; from outlive.cli.main import main; main(['--help']); print(sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment(), check=True)
    for heavy in ("numpy", "rich.console", "msgspec", "starlette", "asyncio", "sqlalchemy"):
        assert heavy not in done.stderr.split()


@pytest.mark.slow
def test_completion_knows_commands_and_kinds() -> None:
    env = {"_OUTLIVE_COMPLETE": "complete_bash", "COMP_WORDS": "outlive fail", "COMP_CWORD": "1"}
    script = "import sys; from outlive.cli.main import main; sys.exit(main([]))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment(**env), check=False
    )
    assert "failover" in done.stdout
    env = {"_OUTLIVE_COMPLETE": "complete_bash", "COMP_WORDS": "outlive get hyper", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment(**env), check=False
    )
    assert "hypervisors" in done.stdout


def test_a_command_runs_as_a_module() -> None:
    assert spawned("--version").out.startswith("outlive ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("survive", "--failures", "two"), "Invalid value for '--failures': write a whole number"),
        (("survive", "--failures", "0"), "Invalid value for '--failures': write 1 or more"),
        (("get", "vms", "-o", "xml"), "'xml' is not one of 'table', 'wide', 'name', 'json', 'yaml'"),
    ],
)
def test_a_wrong_option_is_told_in_plain_words(arguments: tuple[str, ...], said: str) -> None:
    result = outlive(*arguments)
    assert result.code == 2
    assert said in result.line
    assert "Input should" not in result.line
    assert "Value error" not in result.line
