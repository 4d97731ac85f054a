"""Processes of ``outlive storage-agent``, one for each node of a ``DrbdLab``."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from lab.drbd import DrbdLab

from tests.support.api_server import ApiServer


class AgentProcess:
    """The agent of one node."""

    def __init__(self, server: ApiServer, drbd: DrbdLab, node: str, *options: str, config: Path | None = None) -> None:
        self.node = node
        self.log = drbd.folder / f"agent-{node}.log"
        self._words = [
            *(f"--node-name={node}", f"--kubeconfig={config or server.kubeconfig()}"),
            *("--health-bind-address=127.0.0.1:0", f"--drbdsetup={drbd.program(node)}"),
            *(f"--drbd-proc-file={drbd.proc_file(node)}", *options),
        ]
        self.process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> AgentProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it; returns once it serves its health."""
        command = [sys.executable, "-m", "outlive", "storage-agent", *self._words]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert " on " in line, f"it ended with {self.process.wait()}: see {self.log}"
        self.url = line.rpartition(" on ")[2].strip()

    def kill(self) -> None:
        """As the node's power would."""
        if self.process is not None:
            self.process.kill()
            self._end()

    def terminate(self) -> int:
        """As its kubelet would; its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self._end()

    def _end(self) -> int:
        assert self.process is not None
        assert self.process.stdout is not None
        code = self.process.wait(timeout=30)
        self.process.stdout.close()
        return code

    def get(self, path: str) -> tuple[int, str]:
        """What its listener answers."""
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def explain(self, name: str) -> subprocess.CompletedProcess[str]:
        """``outlive storage-agent explain``, asked of this agent."""
        words = ["storage-agent", "explain", name, "--agent", self.url]
        return subprocess.run(
            [sys.executable, "-m", "outlive", *words], capture_output=True, text=True, env={**os.environ}
        )
