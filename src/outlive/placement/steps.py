"""What filters and weighers are, and what one run hands to them.

A filter answers over vectors (``mask``), which is what serves requests, and for one host (``check``), which explains a
refusal with numbers. Both must agree on every host; a ``FactsFilter`` states its rule once and has both from it.

Positions: a run numbers the fleet's rows first, then the hosts that the request named and nobody knows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from outlive.placement.columns import BoolVector, FloatVector, Rows
from outlive.placement.fleet import Fleet
from outlive.placement.request import PlacementRequest
from outlive.placement.rules import HostFacts, Unsuited
from outlive.placement.settings import PlacementSettings

OnError = Literal["skip", "reject"]


class StepRefusal(msgspec.Struct, frozen=True, rename="camel"):
    """Why a step refused a host: the step, a word that never changes, and a sentence with the numbers."""

    step: str
    code: str
    message: str


class StepEvent(msgspec.Struct, frozen=True):
    """Something that a step noticed, counted by name and labels."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    count: int = 1


class NoParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step without parameters."""


@dataclass(slots=True)
class PipelineRun:
    """One request on its way through a pipeline."""

    fleet: Fleet
    request: PlacementRequest
    settings: PlacementSettings
    size: int
    """Rows of the fleet."""
    extra: Mapping[str, int]
    """Hosts of the request that nobody knows, and their positions behind the rows."""
    candidates: BoolVector
    """Hosts that are still in."""
    now: float = 0.0
    """Unix time of the run."""
    memo: dict[object, Any] = field(default_factory=dict)
    """What filters on facts ask for, by filter."""
    names: NDArray[np.object_] = field(init=False)
    """Name of each row at the time of the run: rows of removed hosts are used again."""

    def __post_init__(self) -> None:
        """Keep the names."""
        self.names = self.fleet.columns.names

    @property
    def length(self) -> int:
        """Positions of this run."""
        return self.size + len(self.extra)

    def name_at(self, at: int) -> str:
        """The host at a position."""
        return str(self.names[at]) if at < self.size else tuple(self.extra)[at - self.size]

    def pad(self, known: BoolVector, *, keep_unknown: bool) -> BoolVector:
        """A mask over rows as one over positions."""
        if not self.extra:
            return known
        return np.concatenate((known, np.full(len(self.extra), keep_unknown)))

    def mask_hosts(self, names: Sequence[str]) -> BoolVector:
        """The positions of these hosts; names that are no candidates are fine."""
        mask = self.pad(self.fleet.mask_hosts(names), keep_unknown=False)
        if self.extra:
            mask[[self.extra[name] for name in names if name in self.extra]] = True
        return mask

    def positions_of(self, rows: Sequence[int] | Rows) -> Rows:
        """The positions of hosts at these rows of the fleet; a row may be of a host that only reservations name."""
        at = np.asarray(rows, dtype=np.intp)
        if not self.extra:
            return at
        moved = {self.fleet.row_of(name): position for name, position in self.extra.items()}
        return np.array([moved.get(int(row), int(row)) for row in at], dtype=np.intp)

    def mask_none(self) -> BoolVector:
        """The mask that refuses everybody."""
        return np.zeros(self.length, dtype=np.bool_)

    def find_facts(self, host: str) -> HostFacts | None:
        """What is known of a host."""
        return self.fleet.find_facts(host)


class PipelineStep(ABC):
    """A filter or a weigher, with its parameters."""

    name: ClassVar[str]
    params_type: ClassVar[type[msgspec.Struct]] = NoParams
    needs: ClassVar[str] = ""
    """Name of the ``Knowledge`` whose records it works with; empty: none."""
    on_error: ClassVar[OnError] = "skip"
    """What its failure means unless the pipeline says otherwise."""

    def __init__(self, params: Any = None) -> None:
        self.params: Any = params if params is not None else self.params_type()

    def skips(self, run: PipelineRun) -> bool:
        """Whether the step has nothing to say about this request."""
        return False


class Filter(PipelineStep):
    """Keeps some hosts."""

    counts_events: ClassVar[bool] = False

    @abstractmethod
    def mask(self, run: PipelineRun) -> BoolVector:
        """True for the positions that may stay; ``StepFailed`` when that cannot be said."""

    @abstractmethod
    def check(self, run: PipelineRun, host: str) -> StepRefusal | None:
        """Why this host may not stay, ``None`` when it may. Plain Python; agrees with ``mask``."""

    def collect_events(self, run: PipelineRun) -> list[StepEvent]:
        """What is worth counting about this run, also when the step skips."""
        return []

    def refuse(self, code: str, message: str) -> StepRefusal:
        """A refusal by this step."""
        return StepRefusal(self.name, code, message)

    def refuse_unsuited(self, found: Unsuited | None) -> StepRefusal | None:
        """What a rule of ``outlive.placement.rules`` says, as a refusal by this step."""
        return None if found is None else self.refuse(found.code, found.message)

    def refuse_unknown(self, host: str) -> StepRefusal:
        """The refusal of a host without a record."""
        return self.refuse("unknown-host", f"no host {host} is known")


class FactsFilter(Filter):
    """A filter whose answer rests on what it asks for and on slow facts of the host, and on nothing else."""

    admits_unknown: ClassVar[bool] = False
    """Whether hosts without a record may stay."""

    @abstractmethod
    def find_demand(self, run: PipelineRun) -> Any:
        """What it asks of a host, as a hashable value; ``None`` where it has nothing to say about the request."""

    @abstractmethod
    def find_refusal(self, asked: Any, facts: HostFacts) -> StepRefusal | None:
        """Why a host with these facts may not stay; ``None`` when it may."""

    def skips(self, run: PipelineRun) -> bool:
        """Whether nothing is asked for."""
        return self._cached_demand(run) is None

    def mask(self, run: PipelineRun) -> BoolVector:
        """The hosts that are not refused; each class of hosts is judged once for what is asked."""
        asked = self._cached_demand(run)
        known = run.fleet.mask_accepted((self.name, asked), lambda facts: self.find_refusal(asked, facts) is None)
        return run.pad(known, keep_unknown=self.admits_unknown)

    def check(self, run: PipelineRun, host: str) -> StepRefusal | None:
        """The refusal of one host."""
        facts = run.find_facts(host)
        if facts is not None:
            return self.find_refusal(self._cached_demand(run), facts)
        return None if self.admits_unknown else self.refuse_unknown(host)

    def _cached_demand(self, run: PipelineRun) -> Any:
        if self not in run.memo:
            run.memo[self] = self.find_demand(run)
        return run.memo[self]


class Weigher(PipelineStep):
    """Scores hosts; larger is better."""

    statistic: ClassVar[str] = ""
    """What its figure is called in metrics; empty: none."""

    @abstractmethod
    def weigh(self, run: PipelineRun, at: Rows) -> FloatVector:
        """The score of each of these positions, before scaling and multiplier."""
