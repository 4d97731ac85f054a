"""What a run answers: hosts best first, and everything needed to understand why.

The arrays of the run are kept as they are; names, scores and maps are made when somebody asks, because most
callers want the first few hosts and nothing else.

Scores are bounded by the hyperbolic tangent, so that a weigher may use any scale. Equal sums are told apart by a stable
hash of who asks and which host: equal hosts share the load, because every VM or slot sees them in another order, and
yet a repeated run gives the same answer on every machine (docs/reference/placement.md#ties). A key has 48 bits;
hosts whose keys collide are told apart by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from outlive.base import stable_hash
from outlive.placement.columns import BoolVector, FloatVector, Rows
from outlive.placement.steps import PipelineRun, StepEvent, StepRefusal

KeyVector = NDArray[np.uint64]
Positions = NDArray[np.intp]

KEY_BITS = 48
_STEP = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def tie_keys(resource_id: str, host_hashes: KeyVector) -> KeyVector:
    """The key of each host for one VM or other resource, the smaller goes first: from ``stable_hash(name)`` of each."""
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
    order = _order_of(_falling_keys(scores), bits)
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
    order[places] = _break_ties(order[places], ranked[places], keys, name_of)
    return order


def _break_ties(
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


def _falling_keys(scores: FloatVector) -> KeyVector:
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


_SATURATED = 20.0
"""Beyond this the hyperbolic tangent is one to the last bit."""


def squash(scores: FloatVector) -> FloatVector:
    """The hyperbolic tangent of each score, within 3e-16, so that it lies between -1 and 1.

    Written with ``exp``, which is four times as fast over a vector, and gives a number the same bits wherever
    in a vector it stands.
    """
    result = np.minimum(scores, _SATURATED)
    np.maximum(result, -_SATURATED, out=result)
    result += result
    np.exp(result, out=result)
    result += 1.0
    np.divide(2.0, result, out=result)
    np.subtract(1.0, result, out=result)
    return result


@dataclass(slots=True)
class StepTrace:
    """What one step did. Positions are those of the run. Nobody changes it; freezing it would cost every run."""

    name: str
    kind: Literal["filter", "weigher"]
    kept: BoolVector
    """Filter: the hosts that it kept. Weigher: those that it scored."""
    scores: FloatVector | None = None
    """Weigher: its scores, aligned with the true entries of ``kept``; ``None`` when it had nothing to say."""
    multiplier: float = 1.0
    contribution: FloatVector | None = None
    """Weigher: what it added to the weights, aligned with ``scores``."""
    statistic: str = ""
    removed: int = 0
    seconds: float = 0.0
    error: StepRefusal | None = None
    """Why the step failed, if it did."""
    rejected_all: bool = False
    """Whether its failure refused everybody."""
    events: tuple[StepEvent, ...] = ()

    def get_activations(self) -> FloatVector:
        """One number for each true entry of ``kept``; zeros for a step without scores."""
        return np.zeros(int(np.count_nonzero(self.kept))) if self.scores is None else self.scores


class StepResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One step in the answer to a person or a program."""

    step_name: str
    kind: Literal["filter", "weigher"]
    activations: dict[str, float]
    multiplier: float = 1.0
    error: StepRefusal | None = None


class RankingDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A ranking as JSON."""

    pipeline: str
    raw_in_weights: dict[str, float]
    normalized_in_weights: dict[str, float]
    step_results: tuple[StepResult, ...]
    aggregated_out_weights: dict[str, float]
    ordered_hosts: tuple[str, ...]
    target_host: str | None
    rejected: dict[str, StepRefusal] = {}
    refusal: StepRefusal | None = None


class Ranking:
    """The answer to one request."""

    def __init__(
        self,
        *,
        pipeline: str,
        run: PipelineRun,
        start: Rows,
        raw: FloatVector,
        normalized: FloatVector,
        order: Rows,
        out: FloatVector,
        traces: tuple[StepTrace, ...],
        rejected: Mapping[str, StepRefusal],
        seconds: float = 0.0,
    ) -> None:
        self.pipeline = pipeline
        self.run = run
        self.start = start
        """Positions of the candidates, before any step."""
        self.raw = raw
        """Their incoming weights."""
        self.normalized = normalized
        self.order = order
        """Positions of the answer, best first."""
        self.out = out
        """Final weights, aligned with ``order``."""
        self.traces = traces
        self.rejected = rejected
        """Host → the first reason against it; only filled when reasons were asked for."""
        self.seconds = seconds

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Hosts, best first."""
        return tuple(self.names_at(self.order))

    @cached_property
    def scores(self) -> tuple[float, ...]:
        """Final weights, aligned with ``hosts``; equal ones are ties."""
        return tuple(self.out.tolist())

    @property
    def target(self) -> str | None:
        """The first host."""
        return self.run.name_at(int(self.order[0])) if len(self.order) else None

    @property
    def refusal(self) -> StepRefusal | None:
        """The failed step that refused everybody, if one did."""
        return next((trace.error for trace in self.traces if trace.rejected_all), None)

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[str]:
        return iter(self.hosts)

    def json_hosts(self) -> bytes:
        """``hosts`` as a JSON list, without a string for each."""
        if self.run.extra:
            return msgspec.json.encode(self.hosts)
        return self.run.fleet.columns.json_list(self.run.names, self.order)

    def names_at(self, at: Rows) -> list[str]:
        """The hosts at these positions."""
        if not self.run.extra:
            names: list[str] = self.run.names[at].tolist()
            return names
        return [self.run.name_at(int(one)) for one in at]

    def to_document(self) -> RankingDocument:
        """Everything, by host name."""
        start = self.names_at(self.start)
        steps = tuple(
            StepResult(
                step_name=trace.name,
                kind=trace.kind,
                activations=dict(
                    zip(self.names_at(np.flatnonzero(trace.kept)), trace.get_activations().tolist(), strict=True)
                ),
                multiplier=trace.multiplier,
                error=trace.error,
            )
            for trace in self.traces
        )
        return RankingDocument(
            pipeline=self.pipeline,
            raw_in_weights=dict(zip(start, self.raw.tolist(), strict=True)),
            normalized_in_weights=dict(zip(start, self.normalized.tolist(), strict=True)),
            step_results=steps,
            aggregated_out_weights=dict(zip(self.hosts, self.scores, strict=True)),
            ordered_hosts=self.hosts,
            target_host=self.target,
            rejected=dict(sorted(self.rejected.items())),
            refusal=self.refusal,
        )


def explain_nowhere(ranking: Ranking) -> str:
    """How many hosts each step refused, the most first: ``1,400 by filter_has_enough_capacity``."""
    counts: dict[str, int] = {}
    for reason in ranking.rejected.values():
        counts[reason.step] = counts.get(reason.step, 0) + 1
    if not counts:
        return "there is no host"
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return "no host: " + ", ".join(f"{count} refused by {step}" for step, count in ordered)
