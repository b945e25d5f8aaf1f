"""Executes plans with the real megatron-core, scaled down where the machine is small.

`plan_run`, `dry` and `measure` answer `astrarium run`. `scaled` turns a plan into a job that a few
processes can do, `launch` runs one process per rank, `execute` compares the losses of the ranks
with those of a single process. `megatron` is what runs inside a rank, and the only part that
imports torch; `spmd` runs synthesised programs.
"""
