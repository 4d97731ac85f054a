"""Reports as files: ``survive --html`` and ``failover coverage --html``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from outlive.cli.access import Access, running_server

if TYPE_CHECKING:
    from outlive.failover.analysis.coverage import CoverageResult
    from outlive.failover.analysis.questions import Question
    from outlive.failover.analysis.survival import FailuresInput, FailuresResult
    from outlive.failover.snapshot import Snapshot


def check_picture(path: Path | None) -> None:
    """Refuse a path that cannot become a file, before anything is computed."""
    from outlive.drivers.files import check_output

    if path is not None:
        check_output(path)


def picture_coverage(path: Path, access: Access, gathered: Snapshot, result: CoverageResult) -> None:
    """Write the report of a coverage."""
    from outlive.drivers.files import write_output
    from outlive.failover.report.html.inputs import coverage_picture

    write_output(path, coverage_picture(gathered, result, source=_source(access), when=_now(access)))


def picture_survival(
    path: Path, access: Access, gathered: Snapshot, question: Question, given: FailuresInput, result: FailuresResult
) -> None:
    """Write the report of a question about failures."""
    from outlive.drivers.files import write_output
    from outlive.failover.report.html.inputs import survival_picture

    content = survival_picture(gathered, question, given, result, source=_source(access), when=_now(access))
    write_output(path, content)


def _source(access: Access) -> str:
    if access.state is not None:
        return f"state file {access.state.name}"
    address = access.server or running_server(access.directory)
    return f"server {address}" if address else f"the store in {access.directory}"


def _now(access: Access) -> str:
    from outlive.base.clock import as_datetime

    return f"{as_datetime(access.clock.now()):%Y-%m-%d %H:%M} UTC"
