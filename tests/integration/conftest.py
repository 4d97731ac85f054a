"""A guard as a real process, with a watchdog that resets nothing and folders for cgroups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.guards import Cgroups, Guard, Watchdog, closing


@pytest.fixture
def watchdog(tmp_path: Path) -> Iterator[Watchdog]:
    with closing(Watchdog(tmp_path / "watchdog")) as made:
        yield made


@pytest.fixture
def vms(tmp_path: Path) -> Iterator[Cgroups]:
    with closing(Cgroups(tmp_path / "machine.slice")) as made:
        yield made


@pytest.fixture
def options(tmp_path: Path, watchdog: Watchdog, vms: Cgroups) -> list[str]:
    places = ["--watchdog", str(watchdog.path), "--rehearsal", "--cgroup", str(vms.root)]
    stop = ["--stop-service", f"touch {tmp_path}/stopped", "--start-service", f"touch {tmp_path}/started"]
    return [*places, *stop]


@pytest.fixture
def guard(tmp_path: Path, options: list[str]) -> Iterator[Guard]:
    with closing(Guard(tmp_path, *options)) as made:
        yield made
