"""What is remembered of parts that failed with errors that nobody expected."""

from __future__ import annotations

from outlive.base import LoopClock, Unavailable
from outlive.resources import ObjectRef
from outlive.runtime import CALM_S, FIRST_PAUSE_S, LONGEST_PAUSE_S, PARTS_LIMIT, Crashes, keep_running

WEB = ObjectRef(kind="VirtualMachine", name="web")
HOST = ObjectRef(kind="Hypervisor", name="a")


def crash(crashes: Crashes, about: ObjectRef = WEB, part: str = "its worker") -> float:
    try:
        raise KeyError("nobody expected this")
    except KeyError as error:
        return crashes.record_crash(about, part, error)


async def test_pause_doubles_to_a_limit_and_begins_anew_once_it_works() -> None:
    crashes = Crashes(LoopClock())
    pauses = [crash(crashes) for _ in range(9)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    crashes.record_success(WEB, "its worker")
    assert (crash(crashes), crashes.is_due(WEB, "its worker")) == (FIRST_PAUSE_S, False)


async def test_fault_names_the_object_and_the_error_until_the_part_works() -> None:
    changes: list[None] = []
    crashes = Crashes(LoopClock(), lambda: changes.append(None))
    crash(crashes)
    crash(crashes, HOST, "drain")
    assert crashes.active == {
        WEB: {"part": "its worker", "why": "KeyError: 'nobody expected this'"},
        HOST: {"part": "drain", "why": "KeyError: 'nobody expected this'"},
    }
    crashes.record_success(WEB, "its worker")
    assert (list(crashes.active), len(changes)) == ([HOST], 3)


async def test_part_that_says_nothing_works_again_once_it_was_calm_for_long() -> None:
    clock = LoopClock()
    crashes = Crashes(clock)
    crash(crashes, HOST, "drain")
    await clock.sleep(FIRST_PAUSE_S + CALM_S - 1)
    assert list(crashes.active) == [HOST]
    await clock.sleep(1)
    assert crashes.active == {}


async def test_no_more_parts_are_remembered_than_the_limit() -> None:
    crashes = Crashes(LoopClock())
    for number in range(PARTS_LIMIT + 10):
        crash(crashes, ObjectRef(kind="VirtualMachine", name=f"vm-{number}"))
    assert len(crashes.active) == PARTS_LIMIT


async def test_part_is_run_again_after_a_pause_and_only_a_crash_is_a_fault() -> None:
    clock, began, seen = LoopClock(), list[float](), list[int]()
    crashes = Crashes(clock)
    errors: list[Exception] = [Unavailable("the store is away"), ValueError("a defect")]

    async def part() -> None:
        began.append(clock.monotonic())
        seen.append(len(crashes.active))
        if errors:
            raise errors.pop(0)

    await keep_running("part", part, subject=HOST, crashes=crashes, clock=clock, pause_s=5.0, longest_s=8.0)
    assert [at - began[0] for at in began] == [0.0, 5.0, 13.0]
    assert seen == [0, 0, 1]
