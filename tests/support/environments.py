"""Virtual environments for services that tests run beside us: what a lock file of requirements/ holds, made once.

They are kept under the user's cache (``OUTLIVE_CACHE_DIR`` names another folder), so that only the first run waits.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

REQUIREMENTS = Path(__file__).parents[2] / "requirements"
STEP_LIMIT_S = 300


def can_be_made(name: str) -> bool:
    """Whether the environment is there, or can be made."""
    return (_path(name) / "ready").exists() or _uv() is not None


def environment(name: str, prepare: Callable[[Path], None] = lambda path: None) -> Path:
    """The folder of the environment of ``requirements/<name>.txt``; made where it is not there, by one process at a
    time. ``prepare`` adds to it what is made once as well."""
    path = _path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (path / "ready").exists():
            shutil.rmtree(path, ignore_errors=True)
            step([sys.executable, "-m", "venv", "--without-pip", str(path)])
            python, wanted = str(path / "bin" / "python"), str(REQUIREMENTS / f"{name}.txt")
            step([str(_uv()), "pip", "install", "-q", "--python", python, "--require-hashes", "-r", wanted])
            prepare(path)
            (path / "ready").touch()
    return path


def step(command: list[str], **environ: str) -> None:
    """Run a command of preparation; what it said is in the error if it fails."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH" and not key.startswith("OS_")}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=STEP_LIMIT_S, check=False, env={**kept, **environ}
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:6])} …: {done.stdout[-1000:]}{done.stderr[-3000:]}")


def _uv() -> str | None:
    beside = Path(sys.executable).parent / "uv"
    return shutil.which("uv") or (str(beside) if beside.exists() else None)


def cache() -> Path:
    """The folder of what tests make once."""
    named = os.environ.get("OUTLIVE_CACHE_DIR")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(named) if named else home / "outlive-tests"


def _path(name: str) -> Path:
    digest = hashlib.sha256((REQUIREMENTS / f"{name}.txt").read_bytes() + sys.version.encode()).hexdigest()[:16]
    return cache() / f"{name}-{digest}"
