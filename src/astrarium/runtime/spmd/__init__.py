"""Synthesised programs, run on torch.distributed: every rank its own pieces."""
