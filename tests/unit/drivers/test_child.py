"""Decisions in a child process: the same answers, and a child that dies is replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.support.loops import run_real

from outlive.base.errors import Unavailable
from outlive.drivers.child import ChildComputer
from outlive.runtime.decisions import Decision


class Numbers(msgspec.Struct):
    values: tuple[int, ...]


def total(given: Numbers) -> int:
    return sum(given.values)


def die(given: Numbers) -> int:
    os._exit(3)


def wait(given: Numbers) -> int:
    import time

    time.sleep(60)
    return 0


def who(given: Numbers) -> int:
    return os.getpid()


WHO = Decision("test.who", who, Numbers, int, "")
TOTAL = Decision("test.total", total, Numbers, int, "")
DIE = Decision("test.die", die, Numbers, int, "")
WAIT = Decision("test.wait", wait, Numbers, int, "")
pytestmark = pytest.mark.slow


def test_a_child_answers_as_the_function_does_and_is_replaced_when_it_dies() -> None:
    async def scene() -> tuple[bytes, bytes]:
        child = ChildComputer()
        try:
            first = await child.compute(TOTAL, b'{"values":[1,2,3]}')
            with pytest.raises(Unavailable, match="died"):
                await child.compute(DIE, b'{"values":[]}')
            return first, await child.compute(TOTAL, b'{"values":[4]}')
        finally:
            await child.close()

    assert run_real(scene()) == (b"6", b"4")


def test_a_child_that_is_too_slow_is_given_up() -> None:
    async def scene() -> bytes:
        child = ChildComputer(deadline_s=3.0)
        try:
            await child.compute(TOTAL, b'{"values":[]}')
            with pytest.raises(Unavailable, match="no answer within 3 s"):
                await child.compute(WAIT, b'{"values":[]}')
            return await child.compute(TOTAL, b'{"values":[5]}')
        finally:
            await child.close()

    assert run_real(scene()) == b"5"


PARENT = """
import asyncio
from tests.unit.drivers.test_child import WAIT, WHO
from outlive.drivers.child import ChildComputer

async def scene():
    child = ChildComputer()
    print(int(await child.compute(WHO, b'{"values":[]}')), flush=True)
    await child.compute(WAIT, b'{"values":[]}')

if __name__ == "__main__":
    asyncio.run(scene())
"""


def test_a_child_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment) as up:
        assert up.stdout is not None
        child = int(up.stdout.readline())
        assert Path(f"/proc/{child}").exists()
        up.kill()
        assert up.stdout.read() == ""  # ends once nobody has it open any more, the child neither
