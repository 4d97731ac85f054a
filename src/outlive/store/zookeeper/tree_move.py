"""Moves the tree from one storage schema to another while it is in use.

What is renamed is copied first, then the new schema counts, then the old paths are removed: a reader finds everything
at any moment by the schema that counts. Nobody writes what is being copied; memberships come last, so that hosts renew
them for as long as possible. All steps are in the journal before the first one, and each can be repeated: a process
that ends anywhere is succeeded by another one, which goes on where it was. Each transaction carries the condition that
nobody else has gone on with the move meanwhile (docs/how-to/upgrades.md).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Final

import msgspec
from kazoo import exceptions as zk
from kazoo.protocol.states import ZnodeStat
from kazoo.security import ACL, OPEN_ACL_UNSAFE

from outlive.base import Clock, Refused, Unavailable, as_datetime, get_logger
from outlive.resources import KINDS, convert_document
from outlive.store.schema.documents import BASE, SchemaDocument, load_document
from outlive.store.schema.lock_tries import LockAnswer
from outlive.store.schema.plan import Op, SchemaPlanInput, plan_schema
from outlive.store.schema.state import (
    COPY_S,
    LAST_S,
    MoveUndone,
    SchemaMove,
    SchemaState,
    decode_state,
    encode_state,
    is_last,
    mark_moved,
    split_moved,
)
from outlive.store.zookeeper.client import ZooKeeperClient
from outlive.store.zookeeper.layout import SCHEMA_PATH, TreeLayout, is_entry, split_object
from outlive.store.zookeeper.locks import StoreLock
from outlive.store.zookeeper.permissions import convert_acls, digest_id, encode_acl
from outlive.store.zookeeper.requests import Operation, TransactionRefused, check, create, remove, replace_data

OPERATIONS: Final = 500
"""Of one transaction at most."""
TRANSACTION_BYTES: Final = 400_000
"""Data of one transaction at most; the server takes no more than 1 MiB."""
LEVEL: Final = 256
"""Znodes whose children are read together."""
LOCK_S: Final = 300.0
"""How long to wait for another one that moves the tree."""

_replace = msgspec.structs.replace
_log = get_logger("store.zookeeper")


class JournalStep(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One step of the way, as it was planned before its first write."""

    start: int = msgspec.field(name="from")
    """The schema before."""
    to: int
    """The schema after."""
    ops: tuple[Op, ...]
    """What is done."""
    began_at: datetime
    """When it was planned."""
    finished_at: datetime | None = None
    """When all was done; absent: it is under way."""
    undone: bool = False
    """Whether it was given up."""

    @property
    def renames(self) -> list[tuple[str, str]]:
        """From where to where, those for which hosts wait last."""
        pairs = [(op[1], op[2]) for op in self.ops if op[0] == "rename"]
        return sorted(pairs, key=lambda pair: is_last(pair[0]))


class TreeMover:
    """See the module. ``by`` names the process, other than any other one."""

    def __init__(
        self,
        client: ZooKeeperClient,
        *,
        by: str,
        clock: Clock,
        document: Callable[[int], SchemaDocument] = load_document,
        copy_s: float = COPY_S,
        last_s: float = LAST_S,
    ) -> None:
        self._client = client
        self._by = by
        self._clock = clock
        self._document = document
        self._copy_s = copy_s
        self._last_s = last_s
        self._given: dict[str, list[ACL]] = {}
        """The ACLs of paths that the step makes; others take over that of what is above."""
        self._kinds: set[str] = set()
        """Paths whose data says with which ACL a kind's objects are made."""
        self._version = 0
        """Of the znode that says which schema counts: the condition of every transaction."""
        self._last_since: float | None = None
        """Since when memberships are frozen by this process."""

    async def read_state(self) -> SchemaState:
        """Which schema counts, read fresh."""
        found = await self._client.get(SCHEMA_PATH, fresh=True)
        if found is None:
            raise Unavailable(f"{self._client.access.place} holds no store of Outlive", remedy="correct chroot")
        self._version = found[1].version
        return decode_state(found[0], SCHEMA_PATH)

    async def read_journal(self) -> list[JournalStep]:
        """All steps that are kept, by their beginning."""
        root = self._resolve_path("schema.journal", await self.read_state())
        names = (await self._client.list_children((root,)))[0] or []
        found = await self._client.get_many([f"{root}/{name}" for name in names])
        steps = [msgspec.json.decode(one[0], type=JournalStep) for one in found if one is not None]
        return sorted(steps, key=lambda step: step.began_at)

    async def run(self, target: int | None = None) -> SchemaState:
        """Finish what is under way, then go to ``target``; absent: only finish. The state afterwards.

        ``Unavailable``: it did not come to an end, and may be called again, by anybody.
        """
        state = await self.read_state()
        if state.moving is None and target in (None, state.version):
            return state
        acl = await self._client.get_acl(SCHEMA_PATH)
        for key in ("schema.locks", "schema.journal"):
            await self._client.ensure(self._resolve_path(key, state), acl)
        lock = StoreLock(
            self._client, self._resolve_path("schema.locks", state), owner=self._by, shared=False, clock=self._clock
        )
        acquired = await lock.acquire(LOCK_S)
        if acquired.result is not LockAnswer.ACQUIRED:
            raise Unavailable(f"the lock of the storage schema: {acquired.result}", remedy="try again later")
        try:
            return await self._run(target)
        except TransactionRefused as refused:
            if refused.index == 0:
                raise Unavailable("another process goes on with the change", remedy="let it") from None
            raise self._client.error_of(refused.error, writing=True) from None
        finally:
            await lock.release()

    async def _run(self, target: int | None) -> SchemaState:
        while True:
            state = await self.read_state()
            move = state.moving
            if move is None:
                if target is None or target == state.version:
                    return state
                await self._begin(state, target)
            elif move.by != self._by:
                await self._write(_replace(state, moving=_replace(move, by=self._by)))
            elif move.phase == "copy":
                await self._copy(state, move)
            else:
                await self._clean(state, move)
                if move.phase == "undo":
                    raise MoveUndone(
                        f"copying to schema {move.to} took longer than writers may wait", remedy="it was undone"
                    )

    # The steps

    async def _begin(self, state: SchemaState, target: int) -> None:
        start = state.version
        to = start + (1 if target > start else -1)
        old, new = self._document(start), self._document(to)
        paths = sorted({path for one in (old, new) for path in one.zookeeper[BASE].values() if path})
        found = await self._client.get_many(paths)
        given = SchemaPlanInput(
            start=start,
            to=to,
            schemas={str(one.version): one.zookeeper for one in (old, new)},
            tree=tuple(path for path, one in zip(paths, found, strict=True) if one is not None),
        )
        now = as_datetime(self._clock.now())
        step = JournalStep(start=start, to=to, ops=plan_schema(given).ops, began_at=now)
        place = self._step_path(state, start, to)
        there = await self._client.find_stat(place)
        record = msgspec.json.encode(step)
        move = SchemaMove(to=to, target=target, by=self._by, since=now)
        _log.info("schema.step_begins", version=start, to=to, ops=len(step.ops), by=self._by)
        await self._write(
            SchemaState(version=start, moving=move),
            create(place, record, await self._client.get_acl(SCHEMA_PATH))
            if there is None
            else replace_data(place, record),
        )

    async def _copy(self, state: SchemaState, move: SchemaMove) -> None:
        step = await self._read_step(state, move)
        layout, acl = TreeLayout(self._document(move.to)), await self._client.get_acl(SCHEMA_PATH)
        self._given = convert_acls(layout, digest_id(self._client.access), acl)
        self._kinds = {layout.kind_path(kind) for kind in filter(layout.has_kind, KINDS.values())}
        try:
            for source, target in step.renames:
                if source not in move.frozen:
                    move = _replace(move, frozen=(*move.frozen, source))
                    state = _replace(state, moving=move)
                    await self._write(state)
                if is_last(source) and self._last_since is None:
                    self._last_since = self._clock.monotonic()
                await self._copy_tree(source, target, move)
        except _TooSlow:
            self._last_since = None
            _log.warning("schema.step_undone", version=state.version, to=move.to)
            await self._write(_replace(state, moving=move.undo()))
            return
        for op in step.ops:
            if op[0] == "create":
                await self._create(op[1], op[2].encode())
        self._last_since = None
        moved = _replace(move, phase="clean", frozen=())
        await self._write(SchemaState(version=move.to, moving=moved))

    async def _clean(self, state: SchemaState, move: SchemaMove) -> None:
        """Remove what does not count any more: the old paths, or, where the step is undone, the new ones."""
        step = await self._read_step(state, move)
        undone = move.phase == "undo"
        if undone:
            gone = [target for _, target in step.renames]
            gone += [op[1] for op in reversed(step.ops) if op[0] == "create"]
        else:
            await self._convert(self._document(step.start), self._document(step.to))
            gone = [source for source, _ in step.renames] + [op[1] for op in step.ops if op[0] == "delete"]
        for path in gone:
            await self._remove_tree(path)
        ended = _replace(step, finished_at=as_datetime(self._clock.now()), undone=undone)
        _log.info("schema.step_ends", version=state.version, undone=undone, by=self._by)
        place = self._step_path(state, step.start, step.to)
        await self._write(SchemaState(version=state.version), replace_data(place, msgspec.json.encode(ended)))

    async def _read_step(self, state: SchemaState, move: SchemaMove) -> JournalStep:
        """What was planned for the step that is under way."""
        down, up = (move.to - 1, move.to + 1)
        starts = (state.version,) if state.version != move.to else (down, up)
        for start in starts:
            found = await self._client.get(self._step_path(state, start, move.to))
            if found is not None:
                step = msgspec.json.decode(found[0], type=JournalStep)
                if step.began_at == move.since:
                    return step
        raise Refused(f"the journal lacks the step to schema {move.to}", remedy="restore a backup: outlive restore")

    # Trees

    async def _copy_tree(self, source: str, target: str, move: SchemaMove) -> None:
        """Copy everything at and below ``source``, parents first; what was copied before stays."""
        await self._make_parents(target)
        begun_before = await self._client.find_stat(target) is not None
        level = [""]
        while level:
            following: list[str] = []
            for start in range(0, len(level), LEVEL):
                self._check_time(move)
                part = level[start : start + LEVEL]
                sources = [f"{source}{one}" for one in part]
                nodes, acls = await self._client.get_many(sources), await self._client.read_acls(sources)
                copied = await self._client.get_many([f"{target}{one}" for one in part]) if begun_before else []
                there = {one for one, found in zip(part, copied, strict=False) if found is not None}
                made: list[tuple[Operation, int]] = []
                for one, node, acl in zip(part, nodes, acls, strict=True):
                    if node is not None and one not in there:
                        data = _copy_data(one, *node)
                        made.append((create(f"{target}{one}", data, acl), len(data)))
                await self._commit_all(made)
                for parent, children in zip(part, await self._client.list_children(sources), strict=True):
                    below = [f"{parent}/{child}" for child in children or ()]
                    following += [one for one in below if not is_entry(f"{source}{one}")]
            level = following

    def _check_time(self, move: SchemaMove) -> None:
        """``_TooSlow`` where writers have waited for long enough."""
        last_s = 0.0 if self._last_since is None else self._clock.monotonic() - self._last_since
        if self._clock.now() - move.since.timestamp() > self._copy_s or last_s > self._last_s:
            raise _TooSlow

    async def _remove_tree(self, path: str) -> None:
        """Remove everything at and below ``path``, children first."""
        levels = [[path]]
        while levels[-1]:
            following: list[str] = []
            for start in range(0, len(levels[-1]), LEVEL):
                part = levels[-1][start : start + LEVEL]
                for parent, children in zip(part, await self._client.list_children(part), strict=True):
                    following += [f"{parent}/{child}" for child in children or ()]
            levels.append(following)
        if await self._client.find_stat(path) is None:
            return
        for level in reversed(levels):
            await self._commit_all([(remove(one), 0) for one in sorted(level)])

    async def _create(self, path: str, value: bytes) -> None:
        await self._make_parents(path)
        acl = self._given.get(path) or await self._client.get_acl(path.rpartition("/")[0] or "/")
        if path in self._kinds and acl != OPEN_ACL_UNSAFE:
            value = encode_acl(acl)  # what the kind's objects are made with
        found = await self._client.get(path)
        if found is None:
            await self._commit_all([(create(path, value, acl), len(value))])
        elif found[0] != value:
            await self._commit_all([(replace_data(path, value), len(value))])

    async def _make_parents(self, path: str) -> None:
        parts = path.split("/")
        for length in range(2, len(parts)):
            parent = "/".join(parts[:length])
            if await self._client.find_stat(parent) is None:
                await self._create(parent, b"")

    async def _convert(self, old: SchemaDocument, new: SchemaDocument) -> None:
        """Write objects anew whose kind is stored in another version; those that were written meanwhile are."""
        for plural, version in new.kinds.items():
            before = old.kinds.get(plural, version)
            root = new.find_path(f"objects.{plural}")
            if before == version or root is None:
                continue
            async for path, raw, znode_version in self._read_objects(root):
                plain, moved = split_moved(raw)
                converted = convert_document(plural, before, version, plain)
                if converted is None:
                    continue
                stat = await self._client.find_stat(path)
                had = moved or ("" if stat is None else str(stat.mzxid))
                try:
                    await self._commit([replace_data(path, mark_moved(converted, had), znode_version)])
                except TransactionRefused as refused:
                    if refused.index == 0 or not isinstance(refused.error, zk.BadVersionError | zk.NoNodeError):
                        raise

    async def _read_objects(self, root: str) -> AsyncIterator[tuple[str, bytes, int]]:
        buckets = (await self._client.list_children((root,), fresh=True))[0] or []
        for bucket in buckets:
            names = (await self._client.list_children((f"{root}/{bucket}",)))[0] or []
            for start in range(0, len(names), LEVEL):
                paths = [f"{root}/{bucket}/{name}" for name in names[start : start + LEVEL]]
                for path, found in zip(paths, await self._client.get_many(paths), strict=True):
                    if found is not None:
                        yield path, found[0], found[1].version

    # Transactions

    async def _write(self, state: SchemaState, *more: Operation) -> None:
        """Write which schema counts, and what belongs to it; from now on that is the condition."""
        answers = await self._client.commit([replace_data(SCHEMA_PATH, encode_state(state), self._version), *more])
        self._version = answers[0].version

    async def _commit(self, operations: Sequence[Operation]) -> None:
        await self._client.commit([check(SCHEMA_PATH, self._version), *operations])

    async def _commit_all(self, operations: Sequence[tuple[Operation, int]]) -> None:
        """In order, in as few transactions as the limits allow."""
        part: list[Operation] = []
        size = 0
        for operation, size_bytes in operations:
            if part and (len(part) == OPERATIONS - 1 or size + size_bytes > TRANSACTION_BYTES):
                await self._commit(part)
                part, size = [], 0
            part.append(operation)
            size += size_bytes
        if part:
            await self._commit(part)

    def _resolve_path(self, key: str, state: SchemaState) -> str:
        path = self._document(state.version).find_path(key)
        if path is None:
            raise Refused(f"storage schema {state.version} has no {key}", remedy="install another version of Outlive")
        return path

    def _step_path(self, state: SchemaState, start: int, to: int) -> str:
        return f"{self._resolve_path('schema.journal', state)}/{start}-{to}"


class _TooSlow(Exception):
    """Writers have waited for long enough."""


def _copy_data(path: str, data: bytes, stat: ZnodeStat) -> bytes:
    """The data of a copy: an object keeps the version that its readers know."""
    is_object = split_object(path.rpartition("/")[2])[1] != "" and data.startswith(b"{")
    return mark_moved(data, str(stat.mzxid)) if is_object else data
