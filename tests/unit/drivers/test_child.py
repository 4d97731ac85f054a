"""Decisions in a child process: the same answers, and a child that dies is replaced."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.support.loops import run_real

from outlive.base import Unavailable
from outlive.drivers import ChildComputer, split_portions
from outlive.runtime import Decision


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
        child = ChildComputer(deadline_s=6.0)
        try:
            await child.compute(TOTAL, b'{"values":[]}')
            with pytest.raises(Unavailable, match="no answer within 6 s"):
                await child.compute(WAIT, b'{"values":[]}')
            return await child.compute(TOTAL, b'{"values":[5]}')
        finally:
            await child.close()

    assert run_real(scene()) == b"5"


def test_an_input_in_parts_is_put_together_again_and_one_that_never_came_whole_is_forgotten() -> None:
    async def scene() -> tuple[bytes, bytes]:
        child = ChildComputer()
        try:
            parts = [b'{"values":[1', *(b",%d" % (number % 10) for number in range(600_000)), b"]}"]
            assert len(list(split_portions(parts))) > 2
            half = asyncio.create_task(child.compute(TOTAL, *parts))
            for _ in range(20):
                await asyncio.sleep(0)
            half.cancel()
            return await child.compute(TOTAL, *parts), await child.compute(TOTAL, b'{"values":', b"[4]}")
        finally:
            await child.close()

    assert run_real(scene()) == (b"2700001", b"4")


def test_a_decision_that_cannot_be_sent_is_no_crash_of_the_caller() -> None:
    async def scene() -> bytes:
        child = ChildComputer()
        try:
            with pytest.raises(Unavailable, match=r"test\.local cannot be sent to a child process"):
                await child.compute(Decision("test.local", lambda given: 0, Numbers, int, ""), b'{"values":[]}')
            return await child.compute(TOTAL, b'{"values":[4]}')
        finally:
            await child.close()

    assert run_real(scene()) == b"4"


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
