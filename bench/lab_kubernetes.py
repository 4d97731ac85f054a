"""The power loss of ``bench.lab`` where the cluster is kept on a Kubernetes API server instead of SQLite."""

from __future__ import annotations

from functools import partial

from bench import lab

measure = partial(lab.measure, on_kubernetes=True)
