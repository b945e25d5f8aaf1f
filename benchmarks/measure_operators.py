"""Measures the operators of Transformer training on one GPU: `measure_operators.py --out FILE.csv`.

Needs only torch. One run takes seven minutes and writes one CSV row per case: what was run, the
median, smallest and largest microseconds over several batches of calls, what the host needed per
call, and when. Sections run in the order of `SECTIONS` until `--seconds` is used up.
Not measured: several GPUs, kernels that torch does not ship.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import operator_matrix_cases as matrix
import operator_memory_cases as memory
import torch
from operator_bench import FIELDS, Bench, Case

SECTIONS: dict[str, Callable[[Bench], Iterator[Case]]] = {
    "cooling": matrix.cooling_cases,
    "stream": memory.stream_cases,
    "optimizer": memory.optimizer_cases,
    "gemm": matrix.gemm_cases,
    "attention": matrix.attention_cases,
    "pointwise": memory.pointwise_cases,
    "vocabulary": memory.vocabulary_cases,
    "host": memory.host_cases,
    "layer": memory.layer_cases,
    "sustained": matrix.sustained_cases,
    "grouped": matrix.grouped_cases,
    "dtype": matrix.dtype_cases,
    "compiled": memory.compiled_cases,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=470.0)
    parser.add_argument("--sections", nargs="*", default=list(SECTIONS), choices=list(SECTIONS))
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        bench = Bench(torch.device(options.device), time.monotonic() + options.seconds, writer)
        for section in options.sections:
            for case in SECTIONS[section](bench):
                if bench.late():
                    break
                bench.measure(case)
            file.flush()
            spent = time.monotonic() - bench.started
            sys.stderr.write(f"{section}: {bench.rows} rows after {spent:.0f} s\n")


if __name__ == "__main__":
    main()
