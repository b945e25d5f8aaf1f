"""A fixed set of predictions, written down: whoever moves them must say so.

python tests/snapshot.py    writes tests/data/predictions.json anew
"""

from __future__ import annotations

import json
from pathlib import Path

from astrarium.cluster import parse_gpus
from astrarium.model import load_model
from astrarium.model.workload import Workload
from astrarium.search.outcome import Mode, Objective
from astrarium.search.planner import plan, predict
from astrarium.search.refusals import with_permitted_overlap
from astrarium.strategy.document import read_strategy, strategy_to_dict

PATH = Path(__file__).parent / "data" / "predictions.json"

PREDICTIONS = (
    ("llama-2-7b", "a100:8", 4096, 64, "tp=1,zero_stage=3"),
    ("llama-2-7b", "rtx4090:8", 2048, 64, "tp=2,pp=4,recompute=full"),
    ("llama-2-70b", "h100:64", 4096, 1024, "tp=8,pp=4"),
    ("llama-2-70b", "h100:64", 4096, 1024, "tp=4,pp=8,virtual_stages=5,micro_batch=2"),
    ("llama-3.1-405b", "h100:1024", 8192, 512, "tp=8,pp=16,virtual_stages=4,split=balanced"),
    ("llama-3-8b", "b200:16", 131072, 16, "tp=2,cp=8,recompute=full,recompute_method=block"),
    ("gpt3-175b", "a100:512", 2048, 1536, "tp=8,pp=8,recompute=selective"),
    ("gpt2-xl", "v100:16", 1024, 512, "tp=1,pp=2,sequence_parallel=false"),
    ("mixtral-8x7b", "h100:64", 4096, 256, "tp=2,pp=4,ep=8"),
    ("deepseek-v3", "h800:2048", 4096, 8192, "pp=16,ep=64,etp=1"),
    ("qwen3-30b-a3b", "gb200:72", 4096, 576, "ep=8,pp=1"),
    ("t5-11b", "mi300x:8", 512, 128, "tp=2,pp=2"),
    ("bert-large-uncased", "t4:16", 512, 256, "tp=1"),
    ("vit-l/16", "l40s:8", 197, 1024, "tp=1,micro_batch=16"),
)
PLANS = (
    ("llama-2-70b", "h100:64", 4096, 1024, Mode.EXACT, Objective.THROUGHPUT),
    ("llama-3-8b", "a100:64", 8192, 256, Mode.UP_TO, Objective.COST),
    ("mixtral-8x7b", "h200:32", 4096, 256, Mode.EXACT, Objective.THROUGHPUT),
)


def predictions() -> dict[str, dict[str, object]]:
    """What the cost model and the search say of every case."""
    out: dict[str, dict[str, object]] = {}
    for name, gpus, seq_length, batch, text in PREDICTIONS:
        workload, cluster = Workload(load_model(name), seq_length, batch), parse_gpus(gpus)
        given = read_strategy(
            text, gpus=cluster.num_gpus, global_batch=batch, layers=workload.model.num_layers
        )
        strategy = with_permitted_overlap(
            workload, cluster.pools, given.strategy, given.overlap_given
        )
        found = predict(workload, cluster, strategy)
        out[f"predict {name} {gpus} {seq_length} {batch} {text}"] = {
            "iteration_seconds": found.iteration_seconds,
            "peak_bytes": found.peak_bytes,
            "mfu": found.mfu,
        }
    for name, gpus, seq_length, batch, mode, objective in PLANS:
        workload, cluster = Workload(load_model(name), seq_length, batch), parse_gpus(gpus)
        best = plan(workload, cluster, mode=mode, objective=objective, top=1).plans[0]
        strategy_dict = json.loads(json.dumps(strategy_to_dict(best.strategy)))
        del strategy_dict["stages"]
        out[f"plan {name} {gpus} {seq_length} {batch} {mode} {objective}"] = {
            "iteration_seconds": best.iteration_seconds,
            "peak_bytes": best.peak_bytes,
            "strategy": strategy_dict,
        }
    return out


if __name__ == "__main__":
    PATH.write_text(json.dumps(predictions(), indent=1) + "\n")
