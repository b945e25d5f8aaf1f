"""Launchers, which start a program on all nodes: one module with a `TARGET` each.

`node_blocks`, `checkpoints` and the script of `torchrun` are what they share.
"""
