"""Executes plans with the real megatron-core, scaled down where the machine is small.

`scaled` turns a plan into a job that a few processes can do, `launch` runs one process per rank,
`execute` compares the losses of the ranks with those of a single process. What runs inside a
rank (`worker` and the modules it loads) is the only part that imports torch.
"""
