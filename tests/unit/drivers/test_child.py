"""Decisions in a child process: the same answers, and a child that dies is replaced."""

from __future__ import annotations

import os

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
