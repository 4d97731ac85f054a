"""``Secret``: a user name, and a value that only coordinators can read (docs/how-to/secrets.md)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from outlive.resources.meta import KindInfo, Part, Resource, Writers

VERSIONS: Final = ("v1", "v2")
"""Of sealed values: the first has only its name authenticated, the second user name and addresses as well."""
ADDRESSES_LIMIT: Final = 1000
SEALED_LENGTH: Final = 8192
"""The longest sealed value."""


class SecretSpec(Part, frozen=True, kw_only=True):
    """A user name, and the value that belongs to it, sealed."""

    username: Annotated[str, Meta(max_length=256)] = ""
    """Not secret: who the value is a password of."""
    addresses: Annotated[tuple[Annotated[str, Meta(max_length=256)], ...], Meta(max_length=ADDRESSES_LIMIT)] = ()
    """BMCs that may receive it (``spec.fencing.address``); none: any that an administrator gives it to."""
    sealed: Annotated[str, Meta(max_length=SEALED_LENGTH)] = ""
    """The value, sealed for the cluster's key; a value in clear is refused."""

    @property
    def key(self) -> str:
        """The id of the key that opens it; empty where it is no sealed value."""
        version, _, rest = self.sealed.partition(".")
        return rest.partition(".")[0] if version in VERSIONS else ""


class Secret(Resource, frozen=True, kw_only=True, tag="Secret"):
    """A credential, such as that of BMCs."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="secrets",
        short_names=("osec",),
        writers=Writers(fields={"spec": ("users",)}, creates=("users",), deletes=("users",)),
        columns=(("User", ".spec.username", 0),),
    )

    spec: SecretSpec = SecretSpec()
