"""Errors of operators where a whole design is left out of the fit: `--tables FOLDER`.

FOLDER as for fit_efficiency.py. Leaving out one type says little where its sister stays in; here
all types of an architecture go. The law is fitted to the others and tried on those left out, with
nothing of theirs but the data sheet; of attention also the trees. Prints a table for the docs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from attention_law import LAW_ROWS_PER_GPU as FEW_HEADS
from attention_law import ROWS_PER_GPU as HEADS
from attention_law import fit_attention_law, fit_trees, sampled, with_trees
from gemm_law import LAW_ROWS_PER_GPU, ROWS_PER_GPU, cool_seconds, law_of, rows_of, solve_law
from operator_fits import MULTIPROCESSORS, attention_table, errors

from astrarium.catalog import find_gpu

Medians = dict[str, float]  # by type


def architecture(gpu: str) -> str:
    """Without what tells a refresh from its first generation: both go together."""
    return find_gpu(gpu).architecture.split()[0]


def products(table: pd.DataFrame, dtype: str) -> Medians:
    """Median errors of forward products by the law of other designs."""
    few = rows_of(table, dtype, LAW_ROWS_PER_GPU, 2)
    found: Medians = {}
    for design in {architecture(gpu) for gpu in few}:
        others = {gpu: part for gpu, part in few.items() if architecture(gpu) != design}
        x = solve_law(others, dtype)
        for gpu, test in rows_of(table, dtype, ROWS_PER_GPU, 1).items():
            if architecture(gpu) == design:
                predicted = cool_seconds(law_of(x, gpu, dtype), gpu, dtype, test, x[8])
                found[gpu] = errors(predicted, test.seconds.to_numpy())["median"]
    return found


def attention(heads: pd.DataFrame) -> tuple[Medians, Medians]:
    """Median errors of causal attention, forward: by the law, and with trees."""
    table, few = sampled(heads, HEADS, 1), sampled(heads, FEW_HEADS, 2)
    by_law, by_trees = {}, {}
    for design in {architecture(gpu) for gpu in MULTIPROCESSORS}:
        inside = [gpu for gpu in MULTIPROCESSORS if architecture(gpu) == design]
        law = fit_attention_law(few[~few.gpu.isin(inside)])
        trees = fit_trees(law, table[~table.gpu.isin(inside)])
        for gpu in inside:
            test = table[table.gpu == gpu]
            seconds = test.median_us.to_numpy() * 1e-6
            plain = law.fit.fixed_seconds + law.seconds(test)
            by_law[gpu] = errors(plain, seconds)["median"]
            by_trees[gpu] = errors(with_trees(law, trees, test), seconds)["median"]
    return by_law, by_trees


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", type=Path, required=True)
    folder = parser.parse_args().tables
    table = pd.read_parquet(folder / "gemm_forward.parquet")
    columns = [products(table, dtype) for dtype in ("bf16", "fp8")]
    columns += attention(attention_table(folder / "attention_forward_causal.parquet"))
    print("| design left out | type | products | 8-bit products | attention, law | law + trees |")
    print("|---|---|---|---|---|---|")
    for gpu in sorted(MULTIPROCESSORS, key=architecture):
        cells = [f"{100 * of[gpu]:.1f}" if gpu in of else "" for of in columns]
        print("|", " | ".join([architecture(gpu), gpu, *cells]), "|")


if __name__ == "__main__":
    main()
