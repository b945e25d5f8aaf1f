"""GPUs that no split divides among the sequences of a batch, and the way out."""

from __future__ import annotations

from collections.abc import Sequence

from astrarium.cluster import Cluster
from astrarium.errors import NoFeasiblePlanError, Repair, flag
from astrarium.model.workload import Workload
from astrarium.search.outcome import FEWER_GPUS, Mode


def why_no_space(workload: Workload, cluster: Cluster) -> NoFeasiblePlanError:
    """The reason why there is nothing to search, and the way out."""
    gpus, batch = cluster.num_gpus, workload.global_batch
    if len(cluster.pools) > 1:
        layers = workload.model.num_layers
        return NoFeasiblePlanError(
            f"no pipeline lies over all {gpus} GPUs of {len(cluster.pools)} pools: each stage"
            f" takes tp x cp x dp GPUs, dp divides the global batch of {batch}, and"
            f" {layers} layers make at most {layers} stages; {flag('mode', 'up-to')} may leave GPUs"
            " out",
            repairs=FEWER_GPUS,
        )
    return NoFeasiblePlanError(
        f"no split of {gpus} GPUs divides a global batch of {batch}: dp must divide both"
        f" (what tp, pp and cp leave of the GPUs, and the batch); change {flag('global_batch')} to"
        f" a multiple of a power of two, or the number of GPUs"
    )


def batch_for_all(workload: Workload, cluster: Cluster, mode: Mode) -> tuple[str, Sequence[Repair]]:
    """The way out where data parallelism alone would have to use all GPUs, and cannot."""
    gpus, batch = cluster.num_gpus, workload.global_batch
    below = batch // gpus * gpus
    if mode is not Mode.EXACT or below == batch:
        return "", ()
    batches = f"{below:,} or {below + gpus:,}" if below else f"{gpus:,}"
    return (
        f"; {gpus:,} GPUs do not divide the global batch of {batch:,}: take a batch of {batches},"
        f" or {flag('mode', 'up-to')} to use fewer GPUs"
    ), FEWER_GPUS
