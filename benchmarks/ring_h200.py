"""Times what one rank of torch's ring attention computes, on one GPU.

    python ring_h200.py > torch_ring_h200.csv

Keys and values travel through torch's fake process group, which answers at once: messages take no
time, but each step of the ring has its kernels, and partial outputs are merged as among real ranks.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import sys
from collections.abc import Iterator
from typing import Final

import torch
from fsdp_h200 import BACKENDS
from torch.nn import functional
from torch.nn.attention import sdpa_kernel

HEADS, WIDTH, REPEATS = 32, 128, 4
TOKENS: Final = (8192, 32768)  # of a rank
ROTATIONS: Final = ((1, "none"), *itertools.product((2, 4, 8), ("allgather", "alltoall")))


@contextlib.contextmanager
def ring(ranks: int, rotate: str, tokens: int) -> Iterator[None]:
    if ranks == 1:
        yield
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import set_rotate_method
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    set_rotate_method(rotate)
    whole = torch.zeros(1, tokens * ranks, device="cuda")
    mesh = init_device_mesh("cuda", (ranks,))
    with context_parallel(mesh, buffers=[whole], buffer_seq_dims=[1]):
        yield
    torch.distributed.destroy_process_group()


def fastest(tokens: int) -> tuple[float, float]:
    """Microseconds of both passes."""
    size = (1, HEADS, tokens, WIDTH)
    q, k, v = (
        torch.randn(size, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )
    found = []
    for _ in range(REPEATS):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        torch.cuda.synchronize()
        marks[0].record()
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        marks[1].record()
        gradient = torch.ones_like(out)
        marks[2].record()
        torch.autograd.grad(out, (q, k, v), gradient)
        marks[3].record()
        torch.cuda.synchronize()
        found.append([marks[at].elapsed_time(marks[at + 1]) * 1e3 for at in (0, 2)])
    forward, backward = (min(each) for each in zip(*found, strict=True))
    return forward, backward


def main() -> None:
    writer = csv.writer(sys.stdout)
    writer.writerow(("kind", "tokens", "ranks", "rotate", "forward_us", "backward_us"))
    for kind, backend in BACKENDS.items():
        for tokens in TOKENS:
            for ranks, rotate in ROTATIONS:
                with ring(ranks, rotate, tokens), sdpa_kernel([backend]):
                    writer.writerow((kind, tokens, ranks, rotate, *fastest(tokens)))


if __name__ == "__main__":
    main()
