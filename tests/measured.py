"""Rows of measured tables for tests."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from astrarium.validate.table import MeasuredRow, read_table

TEXTS = "source url_or_repo_path framework model gpu intra_link precision sp zero_or_fsdp"
CHOICES = "distributed_optimizer recompute attention_impl overlap notes gated_mlp tied_embeddings"
SIZES = "params_b layers hidden heads kv_heads ffn vocab seq_len moe_experts moe_topk head_dim"
DEGREES = "tp pp vpp dp cp ep micro_batch global_batch num_micro_batches"
MACHINES = "num_gpus gpus_per_node inter_link_gbps_per_gpu"
MEASURED = "iter_time_s tokens_per_s_per_gpu tflops_per_gpu_model mfu peak_mem_gb"
HEADER = " ".join([TEXTS, CHOICES, SIZES, DEGREES, MACHINES, MEASURED]).split()

# A run that could have been: half of the peak of eight H100.
LLAMA = {
    "source": "mine",
    "framework": "Megatron-LM core + TE",
    "model": "Llama-2-7B",
    "seq_len": "4096",
    "gpu": "H100-80GB",
    "num_gpus": "8",
    "precision": "bf16",
    "tp": "2",
    "pp": "1",
    "dp": "4",
    "micro_batch": "1",
    "global_batch": "64",
    "recompute": "none",
    "iter_time_s": "3.5",
}


def cells(**changes: object) -> dict[str, str]:
    """The cells of a row; None drops one, so that it is blank."""
    values = {**LLAMA, **{name: str(value) for name, value in changes.items()}}
    return {name: value for name, value in values.items() if changes.get(name, "") is not None}


def table_text(*rows: dict[str, str], header: list[str] = HEADER) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, header, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_rows(folder: Path, *rows: dict[str, str], name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(table_text(*rows), encoding="utf-8")
    return path


def row_of(folder: Path, **changes: object) -> MeasuredRow:
    """One row, read from a file as users' rows are."""
    return read_table(write_rows(folder, cells(**changes))).rows[0]
