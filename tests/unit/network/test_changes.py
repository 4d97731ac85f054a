from __future__ import annotations

import asyncio
import gc

from tests.support.loops import run

from outlive.network.changes import NAMES_LIMIT, ChangeBatches


def test_a_reader_gets_all_that_came_since_its_last_batch_in_one() -> None:
    async def story() -> None:
        changes = ChangeBatches()
        changes.publish(frozenset({"before"}))
        one, other = changes.read(), changes.read()
        changes.publish(frozenset({"a"}))
        assert await anext(one) == {"a"}
        changes.publish(frozenset({"b"}))
        changes.publish(frozenset({"c"}))
        assert await anext(one) == {"b", "c"}
        assert await anext(other) == {"a", "b", "c"}

    run(story())


def test_everything_stays_everything_and_too_many_names_become_it() -> None:
    async def story() -> None:
        changes = ChangeBatches()
        reader = changes.read()
        changes.publish(frozenset({"a"}))
        changes.publish(frozenset())
        changes.publish(frozenset({"b"}))
        assert await anext(reader) == frozenset()
        changes.publish(frozenset(map(str, range(NAMES_LIMIT))))
        changes.publish(frozenset({"one more"}))
        assert await anext(reader) == frozenset()

    run(story())


def test_a_reader_waits_for_names_and_is_forgotten_with_its_last_holder() -> None:
    async def story() -> None:
        changes = ChangeBatches()
        reader = changes.read()
        batch = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0)
        assert not batch.done()
        changes.publish(frozenset({"a"}))
        assert await batch == {"a"}
        del reader, batch
        gc.collect()
        assert not list(changes._readers)

    run(story())
