"""``outlive node`` as a process, on a host of its own as far as its files go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml
from lab.processes import pause

from tests.support.command import COMMAND, environment

LIMIT_S = 30.0


def within(limit_s: float, claim: Callable[[], bool]) -> bool:
    """Whether the claim becomes true in time."""
    deadline = time.monotonic() + limit_s
    while (began_s := time.monotonic()) < deadline:
        if claim():
            return True
        pause(began_s, 0.05)
    return claim()


class Host:
    """A host's files, and the daemon's process while there is one."""

    def __init__(self, directory: Path, name: str, url: str, token_file: Path, **sections: dict[str, Any]) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self.name = name
        self.config = directory / "node.yaml"
        self.log = directory / "node.log"
        self.out = directory / "out"
        self.sections: dict[str, dict[str, Any]] = {
            "server": {"url": url, "tokenFile": str(token_file)},
            "host": {
                "name": name,
                "stateDir": str(directory / "state"),
                "machineIdFile": str(directory / "machine-id"),
                "bootIdFile": str(directory / "boot_id"),
            },
            "libvirt": {"uri": ""},
            "guard": {"socket": str(directory / "guard.sock")},
            "log": {"form": "json", "file": str(self.log)},
            **sections,
        }
        (directory / "machine-id").write_text(f"{uuid4().hex}\n")
        self.boot()
        self.configure()
        self.enter: tuple[str, ...] = ()
        """A command that runs the daemon somewhere else."""
        self.process: subprocess.Popen[bytes] | None = None

    def configure(self) -> None:
        """Write the configuration."""
        self.config.write_text(yaml.safe_dump(self.sections))

    def replace_section(self, name: str, **fields: Any) -> None:
        """Change a section, and have the daemon take its own place in the same process."""
        self.sections[name] = {**self.sections.get(name, {}), **fields}
        self.configure()
        self.signal(signal.SIGUSR2)

    def boot(self) -> None:
        """Another boot begins."""
        (self.directory / "boot_id").write_text(f"{uuid4()}\n")

    def start(self, *options: str) -> Host:
        """Start the daemon."""
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                [*self.enter, *COMMAND, "node", "--config", str(self.config), *options],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment(),
            )
        return self

    def ready(self) -> Host:
        """Wait until it is a member."""
        assert within(LIMIT_S, lambda: "outlive: ready: " in self.said()), self.said() + self.logged()[-3000:]
        return self

    def said(self) -> str:
        """What it printed."""
        return self.out.read_text() if self.out.exists() else ""

    def logged(self) -> str:
        """Its log."""
        return self.log.read_text() if self.log.exists() else ""

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of that name in its log; a line that is being written is none yet."""
        found = [json.loads(line) for line in self.logged().splitlines(keepends=True) if line.endswith("\n")]
        return [one for one in found if one["event"] == name]

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def ended(self) -> int:
        """Its exit code, once it has ended."""
        assert self.process is not None
        return self.process.wait(LIMIT_S)

    def stop(self) -> int:
        """End cleanly."""
        self.signal(signal.SIGTERM)
        return self.ended()

    def close(self) -> None:
        """Whatever it does."""
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait(LIMIT_S)
