"""What an informer knows of writes that its stream has not shown yet, and of versions that its cache has left.

Versions are opaque, so that which of two states is the newer one has to be proven: what can be says ``PendingWrite``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Generic, Literal

from outlive.resources import ObjectRef, R

HOLD_S: Final = 10.0
"""How long a state of unknown age is held back."""

LEFT_KEYS: Final = 16_384
"""Objects of which the versions are remembered that the cache has left."""
LEFT_VERSIONS: Final = 4
"""How many versions of each."""

Age = Literal["current", "older", "unknown"]


@dataclass(slots=True)
class PendingWrite(Generic[R]):
    """Reported writes of one object that the stream has not shown yet.

    A writer reports the object that the store gave back, or that it deleted one. From then on states of the object
    that are older must not come through, but versions are opaque: an arrival that is not the reported version may
    be older or newer, and nothing in it says which. What can be proven, from the contract that one stream never
    shows an older state after a newer one, and that a compare-and-swap leaves nothing between two versions:

    * the reported version itself, and any state in which the object is being deleted, is not older;
    * the version that a reported write replaced, and earlier writes of the same chain, are older; so is, after a
      reported deletion, every state of the same uid;
    * where the stream stood at the very version that the first write of a chain replaced, every *other* version on
      that stream is newer; after a reported creation, every other version of that uid is;
    * another uid is newer once the stream has shown the reported uid.

    After a lost stream or a ``Reset`` nothing is proven to be older, neither for writes that were reported before nor
    for those that may have been sent before: the store may have been put back to a backup that has not got them.

    Where none of that decides, the arrival is held back (the last one only) for at most ``HOLD_S``, and shown then;
    so is what the cache showed before a write whose place in the stream is not known. Therefore: **a reported state
    is not followed by an older one, except by one of unknown age after ``HOLD_S``; and whatever is reported, the
    cache comes to hold what the stream says.** Writers that name what they replaced get proof in all cases but a
    lost stream and a ``Reset``.
    """

    uid: str
    latest: str = ""
    """The reported version; empty when a deletion was reported."""
    older: set[str] = field(default_factory=set)
    """Versions proven to be older than the reported one."""
    born: bool = False
    """The chain begins with the creation, before which this uid had no state."""
    adjoins: bool = False
    """The chain begins where this stream stood."""
    reached: bool = False
    """This stream has shown this uid."""
    doubted: bool = False
    """The store may have been put back to before the write."""
    dead: frozenset[str] = frozenset()
    """Earlier uids of the name, of which a deletion was reported."""
    deadline: float | None = None
    """When what is held back is shown; ``None`` while nothing is."""
    held: R | None = None
    """The held arrival; ``None`` with a deadline: the object was missing."""

    def is_past(self, version: str, replaced: str | None) -> bool:
        """Whether a write of this uid is proven to be no newer than the reported one."""
        return version == self.latest or version in self.older or replaced == "" or replaced in self.older

    def write(self, version: str, replaced: str | None) -> bool:
        """One more reported write, against ``replaced`` (``None``: nobody knows against which).

        Returns whether the stream is known to have shown it already, so that it is pending no more. What is held
        stays: it is what the stream said last.
        """
        if replaced is None or replaced != self.latest:
            self.born = self.adjoins = False
        if replaced:
            self.older.add(replaced)
        self.latest = version
        held = self.held.metadata if self.held is not None else None
        if held is None or held.uid != self.uid:
            return False
        if replaced and held.resource_version == replaced:
            self.adjoins = self.reached = True
            self.let_go()
        return held.resource_version == version

    def compare_age(self, obj: R) -> Age:
        """How old an arriving state is, compared with what was reported."""
        meta = obj.metadata
        older: Age = "unknown" if self.doubted else "older"
        if meta.uid in self.dead:
            return older
        if meta.uid != self.uid:
            return "current" if self.reached else "unknown"
        self.reached = True
        if meta.deletion_timestamp is not None or (self.latest and meta.resource_version == self.latest):
            return "current"
        if not self.latest or meta.resource_version in self.older:
            return older
        return "current" if self.born or self.adjoins else "unknown"

    def is_final(self, ref: ObjectRef) -> bool:
        """Whether a deletion that arrives is one of the reported object, or of a later one of its name."""
        return ref.uid == self.uid or self.reached

    def hold(self, obj: R | None, deadline: float) -> None:
        """Keep this arrival; the first deadline stays."""
        self.held = obj
        if self.deadline is None:
            self.deadline = deadline

    def let_go(self) -> None:
        """What was held is older than something that is."""
        self.held = None
        self.deadline = None

    def doubt(self) -> None:
        """A new listing begins anywhere: what was known of the stream's place is void."""
        self.adjoins = self.reached = False
        self.doubted = True


class PassedVersions:
    """Versions that the cache showed and left: a write against one of them is one that the stream has passed."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[tuple[str, str], ...]] = {}
        """The object that moved on last is the last one."""

    def leave(self, key: str, uid: str, version: str, *, gone: bool) -> None:
        """The cache moves on from this version, or (``gone``) from the uid as a whole."""
        entry = (uid, "" if gone else version)
        self._left[key] = (*self._left.pop(key, ()), entry)[-LEFT_VERSIONS:]
        if len(self._left) > LEFT_KEYS:
            del self._left[next(iter(self._left))]

    def has_passed(self, key: str, uid: str, version: str, replaced: str | None) -> bool:
        """Whether the cache is known to be beyond a write of ``version`` against ``replaced``."""
        entries = self._left.get(key, ())
        return (uid, "") in entries or (uid, version) in entries or bool(replaced and (uid, replaced) in entries)
