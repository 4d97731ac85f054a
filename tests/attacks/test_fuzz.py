"""Requests that a fuzzer makes from the server's own OpenAPI: none is answered with a defect, and none takes long."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support import environments
from tests.support.command import up

REQUESTS = int(os.environ.get("OUTLIVE_FUZZ_REQUESTS", "450"))
"""100,000 take an hour: ``OUTLIVE_FUZZ_REQUESTS=100000 scripts/test -- tests/attacks/test_fuzz.py``."""
SEED = int(os.environ.get("OUTLIVE_FUZZ_SEED", "1"))
ROUNDS = 3
"""Seeds at most, one after the other."""
ANSWER_S = 2.0
SETTINGS = """
[parameters]
"query.watch" = "false"
"""
"""A watch has no end."""


@pytest.mark.slow
@pytest.mark.component("schemathesis")
def test_no_request_made_from_the_openapi_is_a_defect_or_takes_long(tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    made = 0
    with up(tmp_path / "state", "--example") as server:
        token = (tmp_path / "state" / "token").read_text().strip()
        for number in range(ROUNDS):
            made += _fuzz(tmp_path, server.url, token, requests=REQUESTS - made, seed=SEED + number)
            assert server.process.poll() is None, "the server ended"
            if made >= REQUESTS:
                break
    assert made >= REQUESTS
    assert "api.defect" not in (tmp_path / "state.log").read_text()


def _fuzz(directory: Path, url: str, token: str, *, requests: int, seed: int) -> int:
    """How many were made: fewer than asked for where an operation has no more. Each was answered well, and in time."""
    program, report = environments.environment("checks") / "bin" / "schemathesis", directory / "report.json"
    schema = f"{url}/schema/openapi.json"
    operations = _operations(schema, token)
    command = [str(program), "run", schema, "-H", f"Authorization: Bearer {token}", "--phases", "fuzzing"]
    command += ["-n", str(requests * 3 // (2 * operations) + 2), "--seed", str(seed), "-c", "not_a_server_error"]
    command += ["--max-response-time", str(ANSWER_S), "--request-timeout", "30", "--no-shrink"]
    command += ["--suppress-health-check", "all", "--warnings", "off", "--continue-on-failure"]
    done = subprocess.run(
        [*command, "--report", "json", "--report-json-path", str(report)],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=REQUESTS,
    )
    document = json.loads(report.read_text())
    assert document["failures"] == [], done.stdout[-4000:]
    assert document["errors"] == [], done.stdout[-4000:]
    generated: int = document["test_cases"]["generated"]
    return generated


def _operations(schema: str, token: str) -> int:
    import urllib.request

    request = urllib.request.Request(schema, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request) as answer:
        paths = json.load(answer)["paths"]
    return sum(len(methods) for methods in paths.values())
