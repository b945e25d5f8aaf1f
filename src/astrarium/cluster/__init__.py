"""Hardware: pools of GPUs and the links between them.

`parse_gpus` reads the short form of the command line, `load_cluster` a cluster file.
"""

from __future__ import annotations

from pathlib import Path

from astrarium.cluster.build import parse_gpus as parse_gpus
from astrarium.cluster.interconnect import LinkKind as LinkKind
from astrarium.cluster.interconnect import Network as Network
from astrarium.cluster.types import LARGEST_CLUSTER as LARGEST_CLUSTER
from astrarium.cluster.types import Cluster as Cluster
from astrarium.cluster.types import Link as Link
from astrarium.cluster.types import Pool as Pool
from astrarium.cluster.types import billed_gpus as billed_gpus


def load_cluster(path: Path | str) -> Cluster:
    """Read a cluster file (YAML, TOML or JSON)."""
    # The schema library is loaded only for those who have a file.
    from astrarium.cluster.clusterfile import load_cluster as load

    return load(path)
