"""One writer per field; what was acknowledged is kept (S5); nothing grows beyond its limit."""

from __future__ import annotations

from typing import Final

from outlive.resources import Membership, Resource, VirtualMachine
from outlive.resources.vms import RECOVERY_STEPS
from outlive.simulation.history import History
from outlive.simulation.judges.truth import Truth
from outlive.simulation.refusals import Refusal
from outlive.simulation.stores import Author
from outlive.store.tables import Write

HOLDERS_LIMIT: Final = 8
"""Two in a move, and those that are fenced and not yet dropped."""
FINDINGS_LIMIT: Final = 6
"""One of each kind of proof."""


REFUSED_S: Final = 60.0
"""How long a process that hears of it may be refused one write, tried at least so often. Watches that broke are listed
anew within seconds, so until then it may have yet to notice something; after that the table and the code disagree."""


class RefusedWrites:
    """The writes that processes are refused again and again."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._since: dict[tuple[str, str, str], tuple[float, float]] = {}
        """Process, object and reason → when it was first refused, and last, without a longer time than ``REFUSED_S``
        between."""

    def refused(self, write: Write, author: Author, refusal: Refusal, now_s: float) -> str:
        """What is wrong with a process that tries what the server refuses a token with its names: nothing yet where the
        server has looked at more than the object itself, and the process may have yet to notice that."""
        what = f"{author.process} as {'/'.join(author.writers)} {refusal.why}"
        place = (author.process, f"{write.kind.__name__}/{write.key}", refusal.why)
        since_s, last_s = self._since.get(place, (now_s, float("-inf")))
        if now_s - last_s > REFUSED_S:
            since_s = now_s
            text = f"the server refuses it: {what}"
            self._history.add("refused", write.key, text, loud=not refusal.by_facts)
        if not author.hears:
            since_s = now_s
        self._since[place] = (since_s, now_s)
        if not refusal.by_facts:
            return what
        return f"{what}, and tries it for {REFUSED_S:g} s" if now_s - since_s > REFUSED_S else ""


def acknowledged_is_kept(truth: Truth, answer: object) -> str:
    """S5: the object that a writer got as an answer is what the store has, or something later, or was deleted since."""
    if not isinstance(answer, Resource):
        return ""
    kept = truth.store.find(type(answer), answer.name)
    if kept is None or kept.metadata.uid != answer.metadata.uid:
        return ""
    if int(kept.metadata.resource_version) < int(answer.metadata.resource_version):
        version = answer.metadata.resource_version
        return f"version {version} was acknowledged, and the store has {kept.metadata.resource_version}"
    return ""


def within_limits(after: Resource) -> str:
    """Lists in documents stay short."""
    if isinstance(after, VirtualMachine):
        if len(after.status.holders) > HOLDERS_LIMIT:
            return f"{len(after.status.holders)} holders"
        if after.status.recovery is not None and len(after.status.recovery.steps) > RECOVERY_STEPS:
            return f"{len(after.status.recovery.steps)} steps of one recovery"
    if isinstance(after, Membership) and len(after.record.fence.findings) > FINDINGS_LIMIT:
        return f"{len(after.record.fence.findings)} findings of one fence"
    return ""
