"""Any sequence of calls on the reference store answers as a model of a few lines does."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.conformance.objects import vm, with_meta, with_phase, with_project
from tests.conformance.observers import Follower

from outlive.base import AlreadyExists, Conflict, LoopClock, NotFound, Random, SeededIds
from outlive.resources import ObjectRef, VirtualMachine
from outlive.store import MemoryStore, Selector

NAMES = st.sampled_from(["a", "b", "c"])
WORDS = st.sampled_from(["x", "y", "z"])


class MemoryModel(RuleBasedStateMachine):
    """``model`` holds what each object should be; ``old`` every object that was ever handed out."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.store = MemoryStore(LoopClock(), SeededIds(Random(1)))
        self.model: dict[str, VirtualMachine] = {}
        self.old: list[VirtualMachine] = []
        self.follower: Follower[VirtualMachine] = Follower(self.store.observe(VirtualMachine))

    def call(self, awaitable: Any) -> Any:
        """The answer, or the class of the error."""
        try:
            return self.loop.run_until_complete(awaitable)
        except (AlreadyExists, Conflict, NotFound) as error:
            return type(error)

    def take(self, answer: VirtualMachine) -> None:
        before = self.model.get(answer.name)
        assert (
            before is None or before == answer or before.metadata.resource_version != answer.metadata.resource_version
        )
        self.model[answer.name] = answer
        self.old.append(answer)

    def expected(self, sent: VirtualMachine) -> type[Exception] | None:
        current = self.model.get(sent.name)
        if current is None:
            return NotFound
        same = (current.metadata.uid, current.metadata.resource_version)
        return None if same == (sent.metadata.uid, sent.metadata.resource_version) else Conflict

    @rule(name=NAMES, word=WORDS, finalizer=st.booleans())
    def create(self, name: str, word: str, finalizer: bool) -> None:
        answer = self.call(
            self.store.create(
                vm(name, project=word, labels={"w": word}, finalizers=("outlive.dev/x",) if finalizer else ())
            )
        )
        if name in self.model:
            assert answer is AlreadyExists
        else:
            assert answer.spec.project == word
            self.take(answer)

    @precondition(lambda self: self.old)
    @rule(data=st.data(), word=WORDS, status=st.booleans())
    def swap(self, data: st.DataObject, word: str, status: bool) -> None:
        sent = data.draw(st.sampled_from(self.old[-6:]))
        current, error = self.model.get(sent.name), self.expected(sent)
        if status:
            answer = self.call(self.store.replace_status(with_phase(sent, word)))
        else:
            answer = self.call(self.store.replace(with_project(with_meta(sent, labels={"w": word}), word)))
        if error is not None:
            assert answer is error
            return
        assert current is not None
        assert (answer.status.phase, answer.spec.project) == (
            (word, current.spec.project) if status else (current.status.phase, word)
        )
        assert answer.metadata.labels == (current.metadata.labels if status else {"w": word})
        self.take(answer)

    @precondition(lambda self: self.old)
    @rule(data=st.data(), exact=st.booleans())
    def delete(self, data: st.DataObject, exact: bool) -> None:
        sent = data.draw(st.sampled_from(self.old[-6:]))
        current = self.model.get(sent.name)
        ref = sent.ref if exact else ObjectRef(kind="VirtualMachine", name=sent.name)
        answer = self.call(self.store.delete(ref, version=sent.metadata.resource_version if exact else ""))
        if current is None or (exact and self.expected(sent)):
            assert answer is (NotFound if current is None else Conflict)
        elif current.metadata.finalizers:
            marked = self.call(self.store.get(VirtualMachine, sent.name))
            assert marked.metadata.deletion_timestamp is not None
            self.take(marked)
        else:
            assert answer is None
            del self.model[sent.name]

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def unfinalize(self, data: st.DataObject) -> None:
        sent = data.draw(st.sampled_from(self.old[-6:]))
        error = self.expected(sent)
        answer = self.call(self.store.replace(with_meta(sent, finalizers=())))
        if error is not None:
            assert answer is error
        elif sent.metadata.deletion_timestamp is not None:
            del self.model[sent.name]
        else:
            self.take(answer)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), word=WORDS)
    def patch(self, data: st.DataObject, word: str) -> None:
        current = self.model[data.draw(st.sampled_from(sorted(self.model)))]
        answer = self.call(self.store.patch_metadata(current.ref, annotations={"note": word}))
        assert answer.spec == current.spec
        self.take(answer)

    @invariant()
    def everything_reads_as_the_model(self) -> None:
        page = self.call(self.store.list(VirtualMachine))
        assert {obj.name: obj for obj in page.items} == self.model
        selected = self.call(self.store.list(VirtualMachine, selector=Selector.from_values(w="x")))
        assert [obj.name for obj in selected.items] == sorted(
            name for name, obj in self.model.items() if obj.metadata.labels.get("w") == "x"
        )

    @invariant()
    def the_observer_comes_to_see_it(self) -> None:
        async def catch_up() -> None:
            while not (self.follower.synced and self.follower.objects == self.model):
                async with asyncio.timeout(1.0):
                    self.follower.take(await anext(self.follower.changes))

        self.loop.run_until_complete(catch_up())

    def teardown(self) -> None:
        self.loop.run_until_complete(self.store.close())
        self.loop.close()


TestMemoryModel = MemoryModel.TestCase
TestMemoryModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
