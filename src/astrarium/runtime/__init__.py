"""Executes plans with megatron-core, FSDP2 or DeepSpeed, scaled down where the machine is small.

`plan_run`, `dry` and `measure` answer `astrarium run`. `scaled` makes a small job of a plan,
`launch` runs one process per rank, `execute` compares the losses. `megatron` runs inside a rank,
and `spmd` runs synthesised programs; only these import torch.
"""
