"""Astrarium: which GPUs, how many, and how to split a Transformer across them."""

__version__ = "0.1.0"
