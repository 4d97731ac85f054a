"""Tests of this folder run inside of the kernel guest: one boot for all that were selected, and each one's own report.

Outside, a test is not set up: its reports are taken from the guest. Where tests are spread over processes, the first
that comes to such a test boots the guest for all of them.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support import kernel_guest

FOLDER: Final = Path(__file__).parent
PROJECT: Final = Path(__file__).parents[3]
REPORTS: Final = "reports"
"""File of the guest with one report a line."""


def _is_inside() -> bool:
    return kernel_guest.INSIDE in os.environ


def _is_here(item: pytest.Item) -> bool:
    return FOLDER in item.path.parents


def _selected(session: pytest.Session) -> list[str]:
    return [item.nodeid for item in session.items if _is_here(item)]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the guest: hand the report over at once, so that a guest that hangs has reported what it did."""
    if _is_inside():
        with Path("/out", REPORTS).open("a") as file:
            file.write(json.dumps(report._to_json()) + "\n")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Outside: report what came of the test in the guest, and tear down what the test before left for this one."""
    if _is_inside() or not _is_here(item) or not kernel_guest.can_run():
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports(item):
        item.ihook.pytest_runtest_logreport(report=report)
    item.session._setupstate.teardown_exact(nextitem)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _reports(item: pytest.Item) -> Iterator[pytest.TestReport]:
    ended, found = _in_guest(item.session)
    own = [one for one in found if one["nodeid"] == item.nodeid]
    yield from (pytest.TestReport._from_json(one) for one in own)
    if not any(one["when"] == "teardown" for one in own):
        why = f"the guest has not reported the end of this test (exit status {ended.status})\n{ended.output[-6000:]}"
        yield pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")


_KEY: Final = pytest.StashKey[tuple[kernel_guest.Ended, list[dict[str, Any]]]]()


def _in_guest(session: pytest.Session) -> tuple[kernel_guest.Ended, list[dict[str, Any]]]:
    """What came of all selected tests, by one run of the guest."""
    found = session.config.stash.get(_KEY, None)
    if found is None:
        found = session.config.stash[_KEY] = _run_once(session)
    return found


def _folder(config: pytest.Config) -> Path:
    """Shared by all processes of this run of tests."""
    worker = getattr(config, "workerinput", None)
    scheduler = getattr(config.pluginmanager.get_plugin("dsession"), "nodemanager", None)
    run = worker["testrunuid"] if worker is not None else getattr(scheduler, "testrunuid", str(os.getpid()))
    return Path(tempfile.gettempdir(), f"kernel-guest-{run}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove what the guest left, once all processes have ended."""
    if not _is_inside() and not hasattr(session.config, "workerinput"):
        shutil.rmtree(_folder(session.config), ignore_errors=True)


def _run_once(session: pytest.Session) -> tuple[kernel_guest.Ended, list[dict[str, Any]]]:
    folder = _folder(session.config)
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ended").exists():
            command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *_selected(session)]
            ended = kernel_guest.run(command, folder, folder=PROJECT)
            (folder / "ended").write_text(json.dumps(ended))
        ended = kernel_guest.Ended(*json.loads((folder / "ended").read_text()))
    reports = folder / REPORTS
    lines = reports.read_text().splitlines() if reports.exists() else []
    return ended, [json.loads(line) for line in lines]
