"""Facts of public launch files, in minimal files of our own with the same construct.

`benchmarks/launch_files.csv` has what public files state, by repository and path: of scripts, as
bash passes it to the program. The files themselves are not here; for every row, a small file that
says the same in the same way is read.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from astrarium.configs.detect import read_config

TABLE = Path(__file__).parents[2] / "benchmarks" / "launch_files.csv"
NUMBERS = ("gpus", "tp", "pp", "zero", "layers", "hidden", "heads", "seq_length", "micro_batch")


def rows() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


ROWS = rows()


def options(row: Mapping[str, str]) -> str:
    flags = {
        "--num-layers": "layers",
        "--hidden-size": "hidden",
        "--num-attention-heads": "heads",
        "--seq-length": "seq_length",
        "--max-position-embeddings": "seq_length",
        "--micro-batch-size": "micro_batch",
        "--global-batch-size": "global_batch",
        "--tensor-model-parallel-size": "tp",
        "--pipeline-model-parallel-size": "pp",
        "--zero-stage": "zero",
    }
    stated = [f"{flag} {row[key]}" for flag, key in flags.items() if row[key]]
    return " ".join([*stated, "--fp16", "--vocab-size 50257"])


def nodes(row: Mapping[str, str]) -> str:
    gpus = int(row["gpus"] or 1)
    each = 8 if gpus % 8 == 0 else gpus
    return f"--nproc_per_node {each} --nnodes {gpus // each}" if row["gpus"] else "--nnodes $NODES"


def in_srun(row: Mapping[str, str]) -> str:
    return f"""#!/bin/bash
#SBATCH --ntasks-per-node=1
source $WORK/start
ARGS=" \\
    {options(row)} \\
    "
export LAUNCHER="python -u -m torch.distributed.run {nodes(row)} "
export CMD=" `pwd`/pretrain_gpt.py $ARGS --deepspeed --deepspeed_config ./ds.$SLURM_JOB_ID.json"
clear; srun --jobid $SLURM_JOBID bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD' 2>&1 | tee log
"""


def in_eval(row: Mapping[str, str]) -> str:
    return f"""GPT_ARGS="{options(row)}"
if [ "true" = "true" ]; then
GPT_ARGS="${{GPT_ARGS}} \\
        --checkpoint-activations"
fi
run_cmd="torchrun {nodes(row)} pretrain_gpt.py ${{GPT_ARGS}} --deepspeed &> x.log"
echo ${{run_cmd}}
eval ${{run_cmd}}
"""


def in_deepspeed(row: Mapping[str, str]) -> str:
    gpus = int(row["gpus"] or 0)
    counted = f"--num_nodes 1 --num_gpus {gpus}" if gpus else "--hostfile nodes"
    return f"deepspeed {counted} pretrain_gpt.py {options(row)} --deepspeed\n"


def in_array(row: Mapping[str, str]) -> str:
    return f"""ARGS=(
    {options(row).replace(" --", chr(10) + "    --")}
)
torchrun {nodes(row)} pretrain_gpt.py ${{ARGS[@]}}
"""


def in_neox(row: Mapping[str, str]) -> str:
    return f"""{{
  "pipe-parallel-size": {row["pp"]}, "model-parallel-size": {row["tp"]},
  "num-layers": {row["layers"]}, "hidden-size": {row["hidden"]},
  "num-attention-heads": {row["heads"]}, "seq-length": {row["seq_length"]},
  "max-position-embeddings": {row["seq_length"]}, "pos-emb": "rotary",
  "zero_optimization": {{"stage": {row["zero"]}}}, "fp16": {{"enabled": true}},
  "train_micro_batch_size_per_gpu": {row["micro_batch"]}
}}"""


def in_flagscale(row: Mapping[str, str]) -> str:
    return f"""system:
  tensor_model_parallel_size: {row["tp"]}
  pipeline_model_parallel_size: {row["pp"]}
  precision: {{bf16: true}}
model:
  num_layers: {row["layers"]}
  hidden_size: {row["hidden"]}
  num_attention_heads: {row["heads"]}
  seq_length: {row["seq_length"]}
  micro_batch_size: {row["micro_batch"]}
  global_batch_size: {row["global_batch"]}
data:
  tokenizer: {{tokenizer_type: Llama3TokenizerFS, vocab_size: 128256}}
"""


def in_nanotron(row: Mapping[str, str]) -> str:
    replicas = int(row["gpus"]) // int(row["tp"]) // int(row["pp"])
    return f"""parallelism: {{tp: {row["tp"]}, pp: {row["pp"]}, dp: {replicas}}}
model:
  dtype: bfloat16
  model_config: {{hidden_size: {row["hidden"]}, num_hidden_layers: {row["layers"]},
    num_attention_heads: {row["heads"]}, intermediate_size: 1024, vocab_size: 1024}}
optimizer: {{zero_stage: {row["zero"]}}}
tokens: {{micro_batch_size: {row["micro_batch"]}, sequence_length: {row["seq_length"]}}}
"""


def in_torchtitan(row: Mapping[str, str]) -> str:
    name, _, flavor = row["model"].partition(" ")
    return f"""[model]
name = "{name}"
flavor = "{flavor}"
[training]
local_batch_size = {row["micro_batch"]}
seq_len = {row["seq_length"]}
[parallelism]
tensor_parallel_degree = {row["tp"]}
pipeline_parallel_degree = {row["pp"]}
pipeline_parallel_schedule = "1F1B"
pipeline_parallel_microbatch_size = {row["micro_batch"]}
"""


MADE = {
    "srun bash -c": in_srun,
    "eval": in_eval,
    "deepspeed": in_deepspeed,
    "array": in_array,
    "GPT-NeoX": in_neox,
    "FlagScale": in_flagscale,
    "nanotron": in_nanotron,
    "torchtitan": in_torchtitan,
}


def read_facts(text: str, folder: Path) -> dict[str, Any]:
    path = folder / "file"
    path.write_text(text, encoding="utf-8")
    read = read_config(str(path))
    assert read is not None
    described, shape = read.described, read.described.shape
    strategy = described.strategy
    sizes = (shape.layers, shape.hidden, shape.heads) if shape else (None, None, None)
    return {
        "gpus": described.gpus,
        "tp": strategy.get("tp"),
        "pp": strategy.get("pp", 1),
        "zero": strategy.get("zero_stage"),
        **dict(zip(("layers", "hidden", "heads"), sizes, strict=True)),
        "seq_length": described.seq_length,
        "micro_batch": strategy.get("micro_batch"),
        "global_batch": described.global_batch,
    }


def test_the_table_is_whole() -> None:
    assert len(ROWS) >= 200
    assert len({(row["repository"], row["path"]) for row in ROWS}) == len(ROWS)
    assert all(row["repository"].count("/") == 1 for row in ROWS)
    for row in ROWS:
        assert all(not row[name] or row[name].isdigit() for name in NUMBERS), row
    assert set(Counter(row["construct"] for row in ROWS)) == set(MADE)


@pytest.mark.parametrize("construct", MADE)
def test_facts_are_read(construct: str, tmp_path: Path) -> None:
    for row in ROWS:
        if row["construct"] != construct:
            continue
        found = read_facts(MADE[construct](row), tmp_path)
        stated = {name: int(row[name]) for name in (*NUMBERS, "global_batch") if row[name]}
        assert {name: found[name] for name in stated} == stated, row["path"]
        if not row["gpus"]:
            assert found["gpus"] is None
