"""``outlive crds``: the manifests of all kinds, for a Kubernetes cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from outlive.cli.commands import single
from outlive.cli.kinds import complete_kind, kind_named


def crds(
    kinds: Annotated[
        list[str] | None, typer.Argument(metavar="KIND", help="Only these.", autocompletion=complete_kind)
    ] = None,
) -> None:
    """Print the manifests of all kinds for a Kubernetes cluster, as YAML: outlive crds | kubectl apply -f -."""
    from outlive.cli.output import write, yaml_text
    from outlive.resources import KINDS
    from outlive.resources.schema import crd

    chosen = [kind_named(name) for name in kinds] if kinds else list(KINDS.values())
    write("---\n".join(yaml_text(crd(kind)) for kind in chosen))


app = single("crds", crds)
