"""What all resources share: metadata, references, conditions, and the table of kinds.

A resource is a frozen ``msgspec.Struct`` with ``metadata`` and, for most kinds, a ``spec`` half (wanted)
and a ``status`` half (seen), as in Kubernetes. Frozen is a promise that extends to the maps inside:
nobody changes a map of an object that was read, but makes a new object with ``msgspec.structs.replace``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal, TypeVar

import msgspec

from outlive.base import Invalid, as_instant, limits, stable_hash

GROUP = "outlive.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

ZONE_LABEL = "topology.kubernetes.io/zone"
DOMAIN_LABEL_PREFIX = "outlive.dev/domain-"
CREATOR_LABEL = "outlive.dev/creator"
RESERVATION_TYPE_LABEL = "reservations.outlive.dev/type"
REQUEST_ID_ANNOTATION = "reservations.outlive.dev/creator-request-id"
HOST_LABEL = "outlive.dev/host"
SHARES_LABEL = "outlive.dev/shares-disks"
"""Of VMs with ``spec.sharedDisks``, by which hosts find them; the server sets it, and a host before it starts one."""
WRITER_LABEL = "outlive.dev/written-by"
"""Of what coordinators report about others: the host whose coordinator wrote it last."""
TAG_LABEL_PREFIX = "tags.outlive.dev/"
"""Of tags of VMs; the value is ``user`` or ``protected`` (docs/how-to/vms.md#tags)."""
PROFILE_LABEL = "outlive.dev/profile"
"""What a VM was made from, as its user calls it."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
NAME_LENGTH_LIMIT = 253
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9.-]+")
_KEPT_LENGTH = 200
"""Characters that are kept of the name of something else."""
_KEY = re.compile(
    r"(?:(?P<prefix>[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*)/)?"
    r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?\Z"
)
_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?\Z")
WORD_LENGTH_LIMIT = 63
"""Characters of a label's value, and of a key without its prefix."""
PREFIX_LENGTH_LIMIT = 253


LIST_ENTRIES: Final = 20_000
"""Entries of each list and each map that declares no limit of its own (``limit_entries``)."""


def limit_entries(entries: int) -> msgspec.Meta:
    """Annotates a list or map of a kind: it has at most so many entries (``resources.list_limits``)."""
    return msgspec.Meta(extra_json_schema={"maxItems": entries})


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A piece of a resource: camelCase on the wire, defaults left out, unknown fields refused."""


def is_in_effect(wanted: bool, until: datetime | None, now: float) -> bool:
    """Whether something that may end by itself lasts at ``now``, seconds since 1970.

    Nothing else in fencing is compared with the wall clock: a clock that jumps makes maintenance longer or shorter, and
    nothing unsafe (docs/how-to/fencing.md#maintenance).
    """
    return wanted and (until is None or now < as_instant(until))


class OwnerReference(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The owner of an object, as in Kubernetes, which deletes the object with its owner."""

    api_version: str
    """Group and version of the owner's kind."""
    kind: str
    """Kind of the owner."""
    name: str
    """Name of the owner."""
    uid: str
    """The owner's incarnation: an owner of the same name with another uid does not count."""
    controller: bool | None = None
    """Whether the owner is the one that controls the object."""
    block_owner_deletion: bool | None = None
    """Whether Kubernetes keeps the owner, while it deletes in the foreground, until this object is gone."""


class ObjectMeta(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Metadata; fields that only Kubernetes writes are dropped on reading."""

    name: str = ""
    """A DNS name of at most 253 characters, unique within the kind."""
    generate_name: str = ""
    """Instead of a name: its beginning; the store adds five characters."""
    namespace: str = ""
    """Empty: all kinds of Outlive are cluster-scoped."""
    uid: str = ""
    """Set by the store; it distinguishes an object from a later one of the same name."""
    resource_version: str = ""
    """Set by the store at each write; opaque, compare it for equality only."""
    generation: int = 0
    """Set by the store; counts changes of the wanted state."""
    creation_timestamp: datetime | None = None
    """When the store created the object."""
    deletion_timestamp: datetime | None = None
    """When it was deleted; it stays until its last finalizer is removed. Absent: it was not."""
    finalizers: Annotated[tuple[str, ...], limit_entries(64)] = ()
    """The object stays, marked as deleted, until the last of them is removed."""
    owner_references: Annotated[tuple[OwnerReference, ...], limit_entries(64)] = ()
    """Outlive neither writes nor removes them."""
    labels: Annotated[dict[str, str], limit_entries(1000)] = {}
    """Keys ``name`` or ``prefix/name``, values of at most 63 letters, digits, ``-``, ``_`` and ``.``."""
    annotations: Annotated[dict[str, str], limit_entries(1000)] = {}
    """Keys as for labels, any values, 256 KiB together."""

    @property
    def key(self) -> str:
        """What tells the object from others of its kind: ``name``, or ``namespace/name``."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class ObjectRef(Part, frozen=True, kw_only=True):
    """A reference to one object, of any kind and any cluster."""

    kind: str
    """Kind of the object that is meant."""
    name: str
    """Name of the object that is meant."""
    uid: str = ""
    """Which incarnation is meant; empty: any object of that name."""
    cluster: str = ""
    """The cluster that the object is in; empty: this one."""
    api_version: str = API_VERSION
    """Group and version of the kind; kinds of two groups may share a name."""
    namespace: str = ""
    """Of kinds that have namespaces; those of Outlive have none."""

    @property
    def key(self) -> str:
        """What tells the object from others of its kind: ``name``, or ``namespace/name``."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Condition(Part, frozen=True, kw_only=True):
    """One observed fact with the time of its last change."""

    type: str
    """The subject, such as ``Ready``; each type occurs once."""
    status: Literal["True", "False", "Unknown"]
    """Whether it is true; ``Unknown``: not known."""
    reason: str = ""
    """The reason as a code in one word."""
    message: str = ""
    """The reason as a sentence."""
    last_transition_time: datetime | None = None
    """When the status became what it is."""
    observed_generation: int = 0
    """Generation of the object for which the condition was written; 0: not known."""


class Writers(msgspec.Struct, frozen=True, kw_only=True):
    """Who may write what of a kind, under names of ``resources.writers``; what no line names, only administrators.

    ``labels`` says what an unconditional metadata patch may do: ``any``, ``refused``, or ``except-host``
    (anything but the label ``outlive.dev/host``, which only the assigning controller sets).
    """

    fields: Mapping[str, tuple[str, ...]]
    """A path such as ``status.host`` → who writes it; the longest path counts, and the empty one is all."""
    creates: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    given: Mapping[str, tuple[str, ...]] = {}
    """Paths, as in ``fields`` → who may give them in a creation as well, and not change them afterwards."""
    labels: Literal["any", "refused", "except-host"] = "any"


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a kind one store keeps: a writer that makes it more is refused (docs/reference/store.md#quotas)."""

    objects: int = 200_000
    mebibytes: int = 512
    """Of all of them together, as JSON."""
    owners: tuple[str, ...] = ()
    """What says whose an object is: ``by``, ``source``, ``host``, ``device.host``, or a label. The first one counts
    that an object has; one that has none is nobody's."""
    shares: int = 1
    """One owner has at most one of so many equal shares of both."""
    protocol: bool = False
    """Whether new ones are taken however full the store is, since the safety protocol writes them."""

    def get_limits(self, *, shared: bool = False) -> tuple[int, int]:
        """How many objects and bytes there are at most: of all owners, or (``shared``) of one."""
        shares = self.shares if shared else 1
        return self.objects // shares, self.mebibytes * 2**20 // shares


class KindInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How a kind is named and stored."""

    plural: str
    kind: str = ""
    """Its name where that is not the class's."""
    group: str = GROUP
    """Empty for the core of Kubernetes."""
    version: str = VERSION
    namespaced: bool = False
    """Whether its objects lie in namespaces, so that their keys are ``namespace/name``."""
    short_names: tuple[str, ...] = ()
    halves: bool = True
    """Spec and status are written apart; a kind without halves is one document."""
    writers: Writers
    quota: Quota = Quota()
    display: str = ""
    """Path of the name by which people call the object, which tables print before that of the object."""
    columns: tuple[tuple[str, str, int], ...] = ()
    """Printed columns: title, JSON path such as ``.status.host``, priority (0 always, 1 only in the wide view)."""

    @property
    def api_version(self) -> str:
        """Group and version, as documents have it."""
        if (self.group, self.version) == (GROUP, VERSION):
            return API_VERSION  # the very default of references, which is left out of documents
        return f"{self.group}/{self.version}" if self.group else self.version


class Resource(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag_field="kind"):
    """Any object that a store keeps. Subclasses add ``spec`` and ``status``, or fields of one document."""

    info: ClassVar[KindInfo]

    api_version: str = API_VERSION
    metadata: ObjectMeta = ObjectMeta()

    @classmethod
    def kind(cls) -> str:
        """The kind's name; kinds of other groups may have the same."""
        return cls.info.kind or cls.__name__

    @classmethod
    def singular_name(cls) -> str:
        """The kind's name in lower case, as commands and manifests have it."""
        return cls.kind().lower()

    @classmethod
    def has_status(cls) -> bool:
        """Whether the kind has a status half that is written apart."""
        return cls.info.halves and "status" in cls.__struct_fields__

    @property
    def name(self) -> str:
        """``metadata.name``."""
        return self.metadata.name

    @property
    def deleting(self) -> bool:
        """Whether it was deleted and still waits for its finalizers."""
        return self.metadata.deletion_timestamp is not None

    @property
    def ref(self) -> ObjectRef:
        """A reference to exactly this incarnation."""
        meta = self.metadata
        return ObjectRef(
            kind=self.kind(),
            name=meta.name,
            uid=meta.uid,
            api_version=self.info.api_version,
            namespace=meta.namespace,
        )


def creation_order(obj: Resource) -> tuple[float, str]:
    """Sorts objects from the oldest to the youngest, by name where two were created at once."""
    created = obj.metadata.creation_timestamp
    return (as_instant(created) if created is not None else 0.0, obj.name)


R = TypeVar("R", bound=Resource)


def find_condition(conditions: tuple[Condition, ...], kind: str) -> Condition | None:
    """The condition of that type."""
    return next((c for c in conditions if c.type == kind), None)


def with_condition(conditions: tuple[Condition, ...], new: Condition) -> tuple[Condition, ...]:
    """The conditions with ``new`` in place of its type; the time stays when the status does."""
    old = find_condition(conditions, new.type)
    if old is None:
        return (*conditions, new)
    if old.status == new.status:
        new = msgspec.structs.replace(new, last_transition_time=old.last_transition_time)
    return tuple(new if c.type == new.type else c for c in conditions)


def check_name(name: str) -> None:
    """``Invalid`` unless the name is a DNS name of at most 253 characters."""
    if len(name) > NAME_LENGTH_LIMIT or not _NAME.match(name):
        raise Invalid(
            f"name {name[:80]!r} is not a DNS name",
            place="metadata.name",
            remedy="use lower-case letters, digits, '-' and '.', at most 253 characters",
        )


def object_name(own_name: str, otherwise: str = "object", length: int = _KEPT_LENGTH) -> str:
    """A name for the object of something that has a name of its own: that one where it is a DNS name of at most
    ``length`` characters, else one made from it. ``otherwise``: how it begins where nothing of it can be kept."""
    if len(own_name) <= length and _NAME.match(own_name):
        return own_name
    readable = _NOT_IN_A_NAME.sub("-", own_name.lower())[: min(_KEPT_LENGTH, length - 9)].strip("-.").replace("..", "-")
    suffix = f"{stable_hash(own_name):016x}"[:8]
    return f"{re.sub('[-.]*[.][-.]*', '-', readable) or otherwise}-{suffix}"


def check_object(obj: Resource) -> None:
    """``Invalid`` unless every store could keep the object: name, scope, labels, annotations, finalizers.

    These are the rules of the strictest store (docs/reference/store.md#metadata), as far as types cannot say them.
    """
    check_version(obj)
    meta = obj.metadata
    check_name(meta.name)
    if meta.namespace:
        raise Invalid(
            f"{obj.kind()} {meta.name} has namespace {meta.namespace!r}",
            place="metadata.namespace",
            remedy=f"leave it out: {obj.kind()} is cluster-scoped",
        )
    check_labels(meta.labels)
    check_annotations(meta.annotations)
    for finalizer in meta.finalizers:
        check_key(finalizer, "metadata.finalizers")


def check_version(obj: Resource) -> None:
    """``Invalid`` unless the object is of the API version that stores keep."""
    if obj.api_version != API_VERSION:
        raise Invalid(f"apiVersion {obj.api_version!r} is not known", place="apiVersion", remedy=f"write {API_VERSION}")


def check_labels(labels: Mapping[str, str]) -> None:
    """``Invalid`` names the key or value that no store takes."""
    for key, value in labels.items():
        check_key(key, "metadata.labels")
        check_label_value(value, key, "metadata.labels")


def check_label_value(value: str, key: str, place: str) -> None:
    """``Invalid`` unless the text may be the value of a label."""
    if len(value) > WORD_LENGTH_LIMIT or not _VALUE.match(value):
        raise Invalid(
            f"value {value[:80]!r} of label {key!r} is malformed",
            place=place,
            remedy=f"at most {WORD_LENGTH_LIMIT} letters, digits, '-', '_' and '.', "
            "beginning and ending with a letter or digit",
        )


def check_annotations(annotations: Mapping[str, str]) -> None:
    """``Invalid`` names the malformed key, or the size of all annotations together."""
    size = 0
    for key, value in annotations.items():
        check_key(key, "metadata.annotations")
        size += len(key.encode()) + len(value.encode())
    if size > limits.ANNOTATION_BYTES:
        raise Invalid(
            f"annotations are {size} bytes",
            place="metadata.annotations",
            remedy=f"at most {limits.ANNOTATION_BYTES} bytes together",
        )


def check_key(key: str, place: str) -> None:
    """``Invalid`` unless the key is ``name`` or ``prefix/name`` with a DNS name as the prefix."""
    match = _KEY.match(key)
    prefix = (match["prefix"] or "") if match else ""
    name = key.rpartition("/")[2]
    if match is None or len(prefix) > PREFIX_LENGTH_LIMIT or len(name) > WORD_LENGTH_LIMIT:
        raise Invalid(
            f"key {key[:80]!r} is malformed",
            place=place,
            remedy="write name or prefix/name; a name has letters, digits, '-', '_' and '.', "
            f"at most {WORD_LENGTH_LIMIT} of them",
        )
