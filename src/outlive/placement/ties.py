"""How equal hosts are told apart: by a stable hash of who asks and which host.

Equal hosts share the load, because every VM or slot sees them in another order, and yet a repeated run
gives the same answer on every machine (docs/reference/placement.md#ties). A key has 48 bits;
hosts whose keys collide are told apart by name.

The vectorised and the scalar form give the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from outlive.base.hashing import stable_hash

FloatVector = NDArray[np.float64]
KeyVector = NDArray[np.uint64]
Positions = NDArray[np.intp]

KEY_BITS = 48
_WORD = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def tie_key(resource_id: str, host: str) -> int:
    """The key of one host for one VM or other resource; the smaller goes first."""
    return mix(stable_hash(resource_id), stable_hash(host))


def mix(resource_hash: int, host_hash: int) -> int:
    """``tie_key`` of hashes that are known already."""
    word = ((resource_hash ^ host_hash) + _STEP) & _WORD
    word = ((word ^ (word >> 30)) * _FIRST) & _WORD
    word = ((word ^ (word >> 27)) * _SECOND) & _WORD
    return (word ^ (word >> 31)) >> (64 - KEY_BITS)


def tie_keys(resource_id: str, host_hashes: KeyVector) -> KeyVector:
    """``tie_key`` for many hosts, given ``stable_hash(name)`` of each; same length and order."""
    word = host_hashes ^ np.uint64(stable_hash(resource_id))
    word += np.uint64(_STEP)
    shifted = word >> np.uint64(30)
    word ^= shifted
    word *= np.uint64(_FIRST)
    np.right_shift(word, np.uint64(27), out=shifted)
    word ^= shifted
    word *= np.uint64(_SECOND)
    np.right_shift(word, np.uint64(31), out=shifted)
    word ^= shifted
    word >>= np.uint64(64 - KEY_BITS)
    return word


def host_hashes(names: tuple[str, ...] | list[str]) -> KeyVector:
    """What ``tie_keys`` takes, for these names."""
    return np.fromiter((stable_hash(name) for name in names), dtype=np.uint64, count=len(names))


def best_first(scores: FloatVector, keys: Callable[[Positions], KeyVector], name_of: Callable[[int], str]) -> Positions:
    """Positions by falling score, then by rising key, then by name. Scores must not be NaN.

    ``keys`` gives the keys of some positions; it and ``name_of`` are only asked where scores (or keys) are equal.

    Sorting words is several times faster than sorting positions, so the position rides in the low bits of a
    word whose high bits are the score. Where the bits that are left do not decide, more exact steps follow.
    """
    bits = max(1, (len(scores) - 1).bit_length())
    order = _order_of(_falling(scores), bits)
    ranked = scores[order]
    if (ranked[1:] > ranked[:-1]).any():
        order = np.argsort(-scores, kind="stable")
        ranked = scores[order]
    same = ranked[1:] == ranked[:-1]
    if not same.any():
        return order
    tied = np.zeros(len(order), dtype=np.bool_)
    tied[1:] = same
    tied[:-1] |= same
    places = np.flatnonzero(tied)
    order[places] = _untied(order[places], ranked[places], keys, name_of)
    return order


def _untied(
    order: Positions, ranked: FloatVector, keys: Callable[[Positions], KeyVector], name_of: Callable[[int], str]
) -> Positions:
    """Positions that are in order of their scores, with those of one score in order of their keys and names."""
    bits = max(1, (len(order) - 1).bit_length())
    groups = np.zeros(len(order), dtype=np.uint64)
    np.cumsum(ranked[1:] != ranked[:-1], out=groups[1:])
    tied_keys = keys(order)
    key_bits = min(KEY_BITS, 64 - 2 * bits)
    words = groups << np.uint64(64 - bits)
    words |= tied_keys >> np.uint64(KEY_BITS - key_bits) << np.uint64(bits)
    within = _order_of(words, bits)
    return _settle(order[within], groups[within], tied_keys[within], name_of)


def _falling(scores: FloatVector) -> KeyVector:
    """Words that rise as the scores fall."""
    signed = (0.0 - scores).view(np.int64)
    flips = signed >> np.int64(63)
    flips |= np.int64(-(2**63))
    flips ^= signed
    return flips.view(np.uint64)


def _order_of(words: KeyVector, bits: int) -> Positions:
    """Positions in rising order of the words, of which the lowest bits are not looked at."""
    low = np.uint64((1 << bits) - 1)
    packed = words & ~low
    packed |= np.arange(len(words), dtype=np.uint64)
    packed.sort()
    packed &= low
    return packed.view(np.intp)


def _settle(order: Positions, groups: KeyVector, keys: KeyVector, name_of: Callable[[int], str]) -> Positions:
    """The order with hosts of one score by their whole key, and those of one key by name."""
    together = groups[1:] == groups[:-1]
    if not (together & (keys[1:] <= keys[:-1])).any():
        return order
    positions = sorted(range(len(order)), key=lambda at: (int(groups[at]), int(keys[at]), name_of(int(order[at]))))
    return order[np.array(positions, dtype=np.intp)]
