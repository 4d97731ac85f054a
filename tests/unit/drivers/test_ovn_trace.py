"""``ovn-trace`` as a program: missing, refusing, answering."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.loops import run_real

from outlive.base import Refused, Unavailable
from outlive.drivers.ovn import OvnTracer


def program(folder: Path, script: str) -> str:
    path = folder / "ovn-trace"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_a_program_that_is_not_installed_is_said_to_be_so() -> None:
    with pytest.raises(Unavailable, match="not installed"):
        run_real(OvnTracer("unix:x", program="/nowhere/ovn-trace").trace("s", "f"))


@pytest.mark.parametrize(
    "script", ["echo 'syntax error at f' >&2; exit 1", "echo 'unknown datapath \"s\"'", "kill -ABRT $$"]
)
def test_a_packet_that_it_does_not_take_is_refused(tmp_path: Path, script: str) -> None:
    with pytest.raises(Refused, match="does not follow the packet on s"):
        run_real(OvnTracer("unix:x", program=program(tmp_path, script)).trace("s", "f"))


def test_it_is_given_the_database_the_options_the_switch_and_the_packet(tmp_path: Path) -> None:
    tracer = OvnTracer("ssl:a:1", "--ca-cert=c", program=program(tmp_path, 'echo "ingress( $*"'))
    assert run_real(tracer.trace("s", "f")).strip() == "ingress( --db=ssl:a:1 --no-friendly-names --ca-cert=c s f"
