"""The judge of histories is itself judged: it accepts what can be and refuses what cannot."""

from __future__ import annotations

from tests.torture.linearizability import NEVER, Call, State, linearizable


def read(began: float, returned: float, saw: str | None) -> Call:
    return Call("read", began, returned, saw=State(saw) if saw is not None else None)


def create(began: float, returned: float, nonce: str, answer: str = "ok") -> Call:
    return Call("create", began, returned, writes=State(nonce), answer=answer)  # type: ignore[arg-type]


def swap(began: float, returned: float, expects: str, nonce: str, answer: str = "ok") -> Call:
    return finalize(began, returned, State(expects), State(nonce), answer)


def finalize(began: float, returned: float, expects: State, writes: State, answer: str = "ok") -> Call:
    return Call("swap", began, returned, expects=expects, writes=writes, answer=answer)  # type: ignore[arg-type]


def delete(began: float, returned: float, answer: str = "ok") -> Call:
    return Call("delete", began, returned, answer=answer)  # type: ignore[arg-type]


def test_an_empty_history_is_fine() -> None:
    assert linearizable([])


def test_calls_one_after_the_other_must_follow_from_each_other() -> None:
    assert linearizable([create(0, 1, "a"), read(2, 3, "a"), swap(4, 5, "a", "b"), read(6, 7, "b")])
    assert not linearizable([create(0, 1, "a"), read(2, 3, None)])


def test_a_stale_read_after_an_acknowledged_write_is_refused() -> None:
    assert not linearizable([create(0, 1, "a"), swap(2, 3, "a", "b"), read(4, 5, "a")])


def test_a_read_during_a_write_may_see_either_state() -> None:
    for saw in ("a", "b"):
        assert linearizable([create(0, 1, "a"), swap(2, 10, "a", "b"), read(3, 4, saw)])


def test_readers_do_not_go_back() -> None:
    assert not linearizable([create(0, 1, "a"), swap(2, 10, "a", "b"), read(3, 4, "b"), read(5, 6, "a")])


def test_of_two_swaps_of_one_version_only_one_can_succeed() -> None:
    assert not linearizable([create(0, 1, "a"), swap(2, 5, "a", "b"), swap(2, 5, "a", "c")])
    assert linearizable([create(0, 1, "a"), swap(2, 5, "a", "b"), swap(2, 5, "a", "c", "refused")])


def test_a_conflict_without_a_reason_is_refused() -> None:
    assert not linearizable([create(0, 1, "a"), swap(2, 3, "a", "b", "refused"), read(4, 5, "a")])


def test_a_lost_answer_may_have_been_applied_or_not_or_late() -> None:
    lost = swap(2, NEVER, "a", "b", "unknown")
    assert linearizable([create(0, 1, "a"), lost, read(3, 4, "a")])
    assert linearizable([create(0, 1, "a"), lost, read(3, 4, "b")])
    assert linearizable([create(0, 1, "a"), lost, read(3, 4, "a"), read(5, 6, "b")])
    assert not linearizable([create(0, 1, "a"), lost, read(3, 4, "b"), read(5, 6, "a")])


def test_a_lost_answer_is_applied_at_most_once() -> None:
    lost = create(0, NEVER, "a", "unknown")
    assert linearizable([lost, read(1, 2, "a"), delete(3, 4), read(5, 6, None)])
    assert not linearizable([lost, read(1, 2, "a"), delete(3, 4), read(5, 6, "a")])


def test_what_nobody_wrote_is_refused() -> None:
    assert not linearizable([create(0, 1, "a"), read(2, 3, "z")])


def test_a_deleted_object_can_be_made_again() -> None:
    assert linearizable([create(0, 1, "a"), delete(2, 3), create(4, 5, "b"), read(6, 7, "b")])
    assert not linearizable([create(0, 1, "a"), create(2, 3, "b")])


def test_a_name_is_not_free_while_a_finalizer_is_left() -> None:
    guarded, marked = State("b", guarded=True), State("b", guarded=True, marked=True)
    begun = [create(0, 1, "a"), finalize(2, 3, State("a"), guarded), delete(4, 5)]
    taken, read_marked = create(6, 7, "c", "refused"), Call("read", 8, 9, saw=marked)
    assert linearizable([*begun, taken, read_marked])
    assert not linearizable([*begun, read(6, 7, None)])
    assert not linearizable([*begun, create(6, 7, "c")])
    removed = finalize(10, 11, marked, State("d", marked=True))
    assert linearizable([*begun, taken, removed, create(12, 13, "c"), read(14, 15, "c")])
    assert not linearizable([*begun, taken, removed, Call("read", 12, 13, saw=State("d", marked=True))])
    assert not linearizable([*begun, finalize(6, 7, guarded, State("d"))])
