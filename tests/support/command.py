"""The ``outlive`` command for tests: in this process, as a process of its own, and as a running server."""

from __future__ import annotations

import contextlib
import io
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from outlive.cli.main import main

COMMAND = [sys.executable, "-m", "outlive"]
START_LIMIT_S = 60.0
STOP_LIMIT_S = 30.0


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """What it said on standard error."""
        return self.err.splitlines()

    @property
    def line(self) -> str:
        """The one line that it said on standard error."""
        assert len(self.lines) == 1, self.err
        assert "Traceback" not in self.err
        return self.lines[0]


class _Stdout(io.TextIOWrapper):
    """Standard output as a command sees it, with a buffer below."""


def outlive(*arguments: str | Path) -> Result:
    """Run a command in this process."""
    raw = io.BytesIO()
    out = _Stdout(raw, encoding="utf-8", write_through=True)
    err = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _same_logging_after():
        code = main([str(argument) for argument in arguments])
    out.flush()
    return Result(code, raw.getvalue().decode(), err.getvalue())


def imported(folder: Path, hosts: str | Path, vms: str | Path, *options: str | Path) -> Path:
    """A state directory in this folder with what two tables, or their files, list; the tables stay beside it."""
    for name, table in (("hosts.csv", hosts), ("vms.csv", vms)):
        (folder / name).write_text(table.read_text() if isinstance(table, Path) else table)
    tables = ("--hosts", folder / "hosts.csv", "--vms", folder / "vms.csv")
    done = outlive("import", "csv", *tables, "--state-dir", folder / "state", *options)
    assert done.code == 0, done.err
    return folder / "state"


def planned(folder: Path, hosts: str | Path, vms: str | Path, *, code: int = 0) -> Path:
    """A state file of what the two tables list, with the slots of a plan."""
    state = imported(folder, hosts, vms)
    assert outlive("failover", "plan", "--apply", "--state-dir", state).code == code
    (folder / "state.json").write_text(outlive("dump", "--state-dir", state).out)
    return folder / "state.json"


@contextlib.contextmanager
def _same_logging_after() -> Iterator[None]:
    """A command says where its process logs to; the tests after this one go on as before."""
    before = structlog.get_config() if structlog.is_configured() else None
    try:
        yield
    finally:
        structlog.reset_defaults()
        if before is not None:
            structlog.configure(**before)


def spawned(
    *arguments: str | Path,
    stdin: bytes = b"",
    env: dict[str, str] | None = None,
    enter: Sequence[str] = (),
    **options: Any,
) -> Result:
    """Run a command as a process. ``enter``: a command that runs it somewhere else."""
    done = subprocess.run(
        [*enter, *COMMAND, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        env=environment(**(env or {})),
        timeout=120,
        check=False,
        **options,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def environment(**more: str) -> dict[str, str]:
    """The environment without anything that would lead a command to a state of its own, or slow it down."""
    left_out = ("OUTLIVE_", "XDG_", "PYTHONDONTWRITEBYTECODE")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(left_out)}
    return {**kept, **more}


@dataclass
class Server:
    """A running ``outlive up``."""

    process: subprocess.Popen[str]
    said: list[str]
    url: str = ""

    def __post_init__(self) -> None:
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def until(self, words: str, *, limit_s: float = START_LIMIT_S) -> str:
        """The next line with these words, or one that was said before."""
        for line in self.said:
            if words in line:
                return line
        deadline = time.monotonic() + limit_s
        with contextlib.suppress(queue.Empty):
            while line := self._lines.get(timeout=max(0.01, deadline - time.monotonic())):
                self.said.append(line)
                if words in line:
                    return line
        raise AssertionError(f"{words!r} was not said: {''.join(self.said)}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to stop; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout=STOP_LIMIT_S)
        self._reader.join(timeout=STOP_LIMIT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


@contextlib.contextmanager
def up(directory: Path, *arguments: str, env: dict[str, str] | None = None) -> Iterator[Server]:
    """A server on a free port while the block runs."""
    command: Sequence[str] = [*COMMAND, "up", "--state-dir", str(directory), "--listen", "127.0.0.1:0", *arguments]
    log = (directory.parent / f"{directory.name}.log").open("w")
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment(**(env or {})), bufsize=1
    )
    server = Server(process, [])
    try:
        line = server.until("ready on")
        server.url = line.partition("ready on ")[2].split()[0]
        yield server
    finally:
        server.stop()
        log.close()
