"""Attaching and detaching volumes, as Kubernetes and the CSI attacher share it.

The attach-detach controller compares what pods want with what it believes to be attached. It refuses a volume of one
writer to a second node, waits for an unmount before it detaches (at a node that is not ready six minutes, at one that
is out of service not at all), and notices only once a minute that somebody else has deleted an attachment.
"""

from __future__ import annotations

from typing import Any, Final

from outlive.resources.foreign import KubernetesNode, KubernetesPod, VolumeAttachment
from outlive.simulation.kubernetes.controllers import ControlLoop
from outlive.simulation.kubernetes.documents import (
    ATTACHER_FINALIZER,
    NO_EXECUTE,
    OUT_OF_SERVICE,
    attachment_document,
    has_taint,
    node_of,
    phase_of,
    resources_used,
)
from outlive.simulation.kubernetes.server import ENDED, Document, is_ready, is_terminating, key_of

RECONCILES_S: Final = 5.0
"""How often it looks though nothing changed; the real one does ten times in a second."""


class AttachDetach(ControlLoop):
    """See the module."""

    every_s = RECONCILES_S

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._attached: dict[tuple[str, str], str] = {}
        """Resource and node → name of the attachment: what it believes to be attached."""
        self._unwanted_s: dict[tuple[str, str], float] = {}
        """When it first wanted to detach them."""
        self._checked_s = 0.0

    def reconcile(self) -> None:
        """Detach what no pod wants, attach what one wants, check what it believes."""
        now_s = self.clock.monotonic()
        if now_s - self._checked_s >= self.spec.attachments_checked_every:
            self._checked_s = now_s
            found = {one["metadata"]["name"] for one in self.server.list_all(VolumeAttachment)}
            self._attached = {place: name for place, name in self._attached.items() if name in found}
        wanted: dict[tuple[str, str], Document] = {}
        for pod in self.server.list_all(KubernetesPod):
            if node_of(pod) and phase_of(pod) not in ENDED:
                wanted.update({(resource, node_of(pod)): pod for resource in resources_used(pod)})
        for place in sorted(self._attached):
            if place in wanted:
                self._unwanted_s.pop(place, None)
            else:
                self._detach(place, now_s)
        places = sorted(place for place in wanted if place not in self._attached)
        self.random.shuffle(places)
        for place in places:
            self._attach(place, wanted[place])

    def _detach(self, place: tuple[str, str], now_s: float) -> None:
        resource, name = place
        attachment = self.server.find(VolumeAttachment, self._attached[place])
        since_s = self._unwanted_s.setdefault(place, now_s)
        node = self.server.find(KubernetesNode, name)
        if node is not None and resource in node["status"].get("volumesInUse", ()):
            given_up = not is_ready(node) and now_s - since_s >= self.spec.force_detach_after
            if not given_up and not has_taint(node, OUT_OF_SERVICE, NO_EXECUTE):
                return
        if attachment is None:
            del self._attached[place], self._unwanted_s[place]
        elif not is_terminating(attachment):
            self.server.remove(VolumeAttachment, self._attached[place])

    def _attach(self, place: tuple[str, str], pod: Document) -> None:
        resource, node = place
        elsewhere = [other for one, other in self._attached if one == resource and other != node]
        if elsewhere:
            note = f"Multi-Attach error for volume {resource}: it is attached to {elsewhere[0]}"
            self.warn("Pod", pod, "FailedAttachVolume", note)
            return
        document = attachment_document(resource, node)
        name = document["metadata"]["name"]
        found = self.server.find(VolumeAttachment, name)
        if found is not None and is_terminating(found):
            return
        if found is None:
            self.server.add(VolumeAttachment, document)
        self._attached[place] = name


class CsiAttacher(ControlLoop):
    """Says of attachments that they are attached, and lets those go that were deleted."""

    def reconcile(self) -> None:
        """Every attachment."""
        for attachment in self.server.list_all(VolumeAttachment):
            key = key_of(attachment)
            if is_terminating(attachment):
                self.server.release(VolumeAttachment, key, ATTACHER_FINALIZER)
            elif not attachment.get("status", {}).get("attached"):
                self.server.edit(VolumeAttachment, key, lambda one: one.update(status={"attached": True}))
