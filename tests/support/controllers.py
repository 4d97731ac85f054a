"""Processes of ``outlive controller``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.api_server import ApiServer


class Controller:
    """One process, with a directory of its own."""

    def __init__(
        self, server: ApiServer, directory: Path, *, kubeconfig: Path | None = None, listen: str = "127.0.0.1:0"
    ) -> None:
        self.directory = directory
        self._kubeconfig = kubeconfig
        self._listen = listen
        self._server = server
        self.process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> None:
        words = ["controller", "--listen", self._listen, "--state-dir", str(self.directory)]
        words += ["--kubeconfig", str(self._kubeconfig or self._server.kubeconfig())]
        with (self.directory.parent / f"{self.directory.name}.log").open("ab") as log:
            command = [sys.executable, "-m", "outlive", *words]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)

    def wait_ready(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "ready on " in line:
                self.url = line.rpartition("ready on ")[2].strip()
                return
        raise AssertionError(f"it ended with {self.process.wait()}: see {self.directory}.log")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()

    def answers(self) -> bool:
        """Whether it reads and writes the store."""
        env = {**os.environ, "OUTLIVE_SERVER": self.url, "OUTLIVE_TOKEN": f"@{self.directory / 'token'}"}
        done = subprocess.run([sys.executable, "-m", "outlive", "get", "clusters"], capture_output=True, env=env)
        return done.returncode == 0

    def outlive(self, *words: str, server: str = "") -> str:
        """What a command prints that asks this process, or those of ``server``."""
        env = {**os.environ, "OUTLIVE_SERVER": server or self.url, "OUTLIVE_TOKEN": f"@{self.directory / 'token'}"}
        done = subprocess.run([sys.executable, "-m", "outlive", *words], capture_output=True, text=True, env=env)
        assert done.returncode in (0, 1), done.stderr
        return done.stdout
