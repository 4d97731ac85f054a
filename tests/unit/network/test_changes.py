from __future__ import annotations

from outlive.network import NAMES_LIMIT, ChangeBatches


async def test_a_reader_gets_all_that_came_since_its_last_batch_in_one() -> None:
    changes = ChangeBatches()
    changes.publish(frozenset({"before"}))
    one, other = changes.read(), changes.read()
    changes.publish(frozenset({"a"}))
    assert await anext(one) == {"a"}
    changes.publish(frozenset({"b"}))
    changes.publish(frozenset({"c"}))
    assert await anext(one) == {"b", "c"}
    assert await anext(other) == {"a", "b", "c"}


async def test_everything_stays_everything_and_too_many_names_become_it() -> None:
    changes = ChangeBatches()
    reader = changes.read()
    changes.publish(frozenset({"a"}))
    changes.publish(frozenset())
    changes.publish(frozenset({"b"}))
    assert await anext(reader) == frozenset()
    changes.publish(frozenset(map(str, range(NAMES_LIMIT))))
    changes.publish(frozenset({"one more"}))
    assert await anext(reader) == frozenset()
