"""Times scans on one GPU, with the convolution and the norm around them: `--out DIR`.

Needs torch and triton, and on the path einops, fla and mamba_ssm (folders `ops` and `utils`, with
an empty `__init__`). Shapes are drawn by seed; every other one is kept from the fit (`set`).
Kernels are compiled first, by a process for each kind: each tries many configurations.

A row is one call: seconds on the device with the host far ahead, seconds of the host, forward and
backward, and bytes that stay allocated behind the forward pass, output included. Operators: `ssd`
is the scan of Mamba-2, `delta` the gated delta rule, `delta_layer` all of a gated delta net between
its projections as megatron-core 0.19.2 has it, `lightning` decay by a fixed factor, `conv` the
causal convolution, `norm` the gated norm of Mamba-2.
Not measured: the convolution of causal-conv1d (that of fla stands for it), packed sequences.
"""

from __future__ import annotations

import argparse
import csv
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

SEED: Final = 20261118
LENGTHS: Final = (2048, 4096, 8192, 16384, 32768, 65536)
LEAST, MOST = 2**21, 2**28  # elements of values
SSD: Final = ((64, 128, 128), (64, 128, 256), (80, 128, 128), (128, 256, 256), (64, 64, 128))
DELTA: Final = ((8, 128), (16, 128), (32, 128), (16, 64))
WIDTHS: Final = (1024, 2560, 5120, 8192, 10240)
DRAWN, REPEATS, TIMED = 8, 4, 3
AHEAD_CYCLES: Final = int(1.9e9 * 0.004)  # of waiting for each call, so that the host is ahead
COMPILE_SECONDS: Final = 170


@dataclass(frozen=True)
class Case:
    """One operator and its shape."""

    op: str
    batch: int
    length: int
    heads: int
    groups: int
    head_dim: int
    state: int
    chunk: int
    set: str = "fit"

    @property
    def kind(self) -> tuple[Any, ...]:
        return self.op, self.head_dim, self.state, self.chunk


def cases() -> Iterator[Case]:
    """All cases; those of a kind alternate between fit and unseen."""
    draw = random.Random(SEED)
    sets = ("fit", "unseen")
    for width, state, chunk in SSD:
        for number in range(DRAWN):
            heads, groups, length, batch = _drawn_ssd(draw, width)
            yield Case("ssd", batch, length, heads, groups, width, state, chunk, sets[number % 2])
    for heads, width in DELTA:
        for number in range(6):
            length, batch = _drawn(draw, heads * width)
            groups = heads // draw.choice([1, 2, 2, 4])
            for op in ("delta", "delta_layer"):
                yield Case(op, batch, length, heads, groups, width, width, 64, sets[number % 2])
    for number in range(DRAWN):
        while True:
            width, length = draw.choice(WIDTHS), draw.choice(LENGTHS)
            if 2**23 <= width * length <= MOST:
                break
        for op in ("conv", "norm"):
            groups = draw.choice([1, 8])
            yield Case(op, 1, length, width // 64, groups, 64, 0, 0, sets[number % 2])
    for number in range(6):
        heads, length = draw.choice([8, 16, 64]), draw.choice([2048, 8192, 32768])
        yield Case("lightning", 1, length, heads, heads, 128, 128, 64, sets[number % 2])


def _drawn(draw: random.Random, width: int) -> tuple[int, int]:
    while True:
        length, batch = draw.choice(LENGTHS), draw.choice([1, 1, 2, 4])
        if LEAST <= batch * length * width <= MOST:
            return length, batch


def _drawn_ssd(draw: random.Random, width: int) -> tuple[int, int, int, int]:
    while True:
        heads, groups = draw.choice([8, 16, 32, 64, 128]), draw.choice([1, 2, 8])
        length, batch = draw.choice(LENGTHS), draw.choice([1, 1, 2, 4])
        if heads % groups == 0 and LEAST <= batch * length * heads * width <= MOST:
            return heads, groups, length, batch


Built = tuple[Callable[[], Any], list[Any]]  # a call, and its inputs that have gradients


def random_tensor(*shape: int, dtype: str = "bfloat16", scale: float = 1.0) -> Any:  # noqa: ANN401
    import torch

    made = torch.randn(*shape, device="cuda") * scale
    return made.to(getattr(torch, dtype)).requires_grad_(True)


def ssd(case: Case) -> Built:
    import torch
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    first = (case.batch, case.length)
    x, dt = random_tensor(*first, case.heads, case.head_dim), random_tensor(*first, case.heads)
    keys, queries = (random_tensor(*first, case.groups, case.state) for _ in range(2))
    decay = (-torch.rand(case.heads, device="cuda") - 1).requires_grad_(True)
    skip, shift = (random_tensor(case.heads, dtype="float32") for _ in range(2))

    def run() -> Any:  # noqa: ANN401
        return mamba_chunk_scan_combined(
            x, dt, decay, keys, queries, case.chunk, D=skip, dt_bias=shift, dt_softplus=True
        )

    return run, [x, dt, decay, keys, queries, skip, shift]


def delta(case: Case) -> Built:
    import torch
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from torch.nn import functional

    first = (case.batch, case.length, case.heads)
    q, k = (
        functional.normalize(torch.randn(*first, case.state, device="cuda"), dim=-1)
        .bfloat16()
        .requires_grad_(True)
        for _ in range(2)
    )
    v = random_tensor(*first, case.head_dim)
    decay = (-torch.rand(*first, device="cuda")).requires_grad_(True)
    strength = torch.rand(*first, device="cuda").bfloat16().requires_grad_(True)

    def run() -> Any:  # noqa: ANN401
        return chunk_gated_delta_rule(q, k, v, g=decay, beta=strength)[0]

    return run, [q, k, v, decay, strength]


def delta_layer(case: Case) -> Built:
    import torch
    from fla.modules.causal_conv1d.ops import causal_conv1d
    from fla.modules.norm.l2norm import l2norm
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from torch.nn import functional

    keys, values = case.groups * case.state, case.heads * case.head_dim
    first = (case.batch, case.length)
    entered = random_tensor(*first, 2 * keys + 2 * values + 2 * case.heads)
    taps = random_tensor(2 * keys + values, 4, scale=0.3)
    decays = random_tensor(case.heads, dtype="float32", scale=0.1)
    shifts, scale = random_tensor(case.heads, dtype="float32"), random_tensor(case.head_dim)

    def run() -> Any:  # noqa: ANN401
        widths = [2 * keys + values, values, case.heads, case.heads]
        mixed, gate, strength, step = torch.split(entered, widths, dim=-1)
        mixed, _ = causal_conv1d(x=mixed, weight=taps, bias=None, activation="silu")
        both, value = torch.split(mixed, [2 * keys, values], dim=-1)
        both = l2norm(both.reshape(*first, -1, case.state).contiguous())
        query, key = torch.split(both, [case.groups, case.groups], dim=2)
        if case.heads > case.groups:
            query, key = (
                one.repeat_interleave(case.heads // case.groups, dim=2) for one in (query, key)
            )
        value, gate = (one.reshape(*first, -1, case.head_dim) for one in (value, gate))
        ready = [one.contiguous() for one in (query, key, value, gate, strength, step)]
        decay = -decays.exp() * functional.softplus(ready[5].float() + shifts)
        made = chunk_gated_delta_rule(*ready[:3], g=decay, beta=ready[4].sigmoid())[0]
        normed = functional.rms_norm(made.reshape(-1, case.head_dim), (case.head_dim,), scale)
        opened = functional.silu(ready[3].reshape(-1, case.head_dim).float())
        return (normed * opened).to(torch.bfloat16).reshape(*first, -1)

    return run, [entered, taps, decays, shifts, scale]


def convolution(case: Case) -> Built:
    from fla.modules.causal_conv1d.ops import causal_conv1d

    width = case.heads * case.head_dim
    x, taps, shift = (random_tensor(*s) for s in ((1, case.length, width), (width, 4), (width,)))
    return lambda: causal_conv1d(x=x, weight=taps, bias=shift, activation="silu")[0], [
        x,
        taps,
        shift,
    ]


def gated_norm(case: Case) -> Built:
    from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn

    width = case.heads * case.head_dim
    x, z = (random_tensor(1, case.length, width) for _ in range(2))
    scale = random_tensor(width)
    group = width // case.groups
    return (
        lambda: rmsnorm_fn(x, scale, None, z=z, group_size=group, norm_before_gate=False),
        [x, z, scale],
    )


def lightning(case: Case) -> Built:
    from fla.ops.lightning_attn import chunk_lightning_attn

    first = (case.batch, case.length, case.heads)
    q, k, v = (random_tensor(*first, width) for width in (case.state, case.state, case.head_dim))
    return lambda: chunk_lightning_attn(q, k, v, layer_idx=3, num_layers=24)[0], [q, k, v]


BUILD: Final[dict[str, Callable[[Case], Built]]] = {
    "ssd": ssd,
    "delta": delta,
    "delta_layer": delta_layer,
    "conv": convolution,
    "norm": gated_norm,
    "lightning": lightning,
}


def timed(run: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of a call on the device, and of the host to launch it, which runs ahead."""
    import torch

    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(AHEAD_CYCLES * REPEATS)
    begin.record()
    started = time.perf_counter()
    for _ in range(REPEATS):
        run()
    host = (time.perf_counter() - started) / REPEATS
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / REPEATS, host


def measure(case: Case) -> dict[str, float]:
    import torch

    forward, inputs = BUILD[case.op](case)
    out = forward()
    gradient = torch.randn_like(out)
    torch.autograd.grad(out, inputs, gradient)
    del out
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    out = forward()
    torch.cuda.synchronize()
    kept = torch.cuda.memory_allocated() - before

    def backward() -> None:
        torch.autograd.grad(out, inputs, gradient, retain_graph=True)

    backward()
    pairs = [(timed(forward), timed(backward)) for _ in range(TIMED)]
    middle = TIMED // 2
    return {
        "forward": sorted(f[0] for f, _ in pairs)[middle],
        "backward": sorted(b[0] for _, b in pairs)[middle],
        "host_forward": min(f[1] for f, _ in pairs),
        "host_backward": min(b[1] for _, b in pairs),
        "kept_bytes": float(kept),
    }


def try_fewer_runs() -> None:
    """Let triton time each configuration shortly: it tries dozens."""
    import triton
    from triton.runtime.driver import driver

    real = triton.testing.do_bench

    def short(run: Callable[[], Any], *_: object, **more: Any) -> Any:  # noqa: ANN401
        return real(run, warmup=3, rep=12, quantiles=more.get("quantiles"))

    triton.testing.do_bench = short
    driver.active.get_benchmarker = lambda: short


def compile_kind(text: str) -> None:
    """Compile the kernels of one kind, which triton keeps on disk."""
    import torch

    try_fewer_runs()
    wanted = tuple(text.split(":"))
    first = {tuple(map(str, (*one.kind, one.heads))): one for one in cases()}
    for key, one in first.items():
        if key != wanted:
            continue
        small = Case(**{**asdict(one), "batch": 1, "length": 2048})
        started = time.time()
        try:
            run, inputs = BUILD[small.op](small)
            out = run()
            torch.autograd.grad(out, inputs, torch.randn_like(out))
            torch.cuda.synchronize()
            print(text, "compiled in", round(time.time() - started, 1), flush=True)
        except Exception:
            traceback.print_exc()


def kinds_to_compile() -> list[str]:
    """One of each kind; delta nets by heads too, which their kernels hold fixed."""
    found: dict[tuple[Any, ...], Case] = {}
    for one in cases():
        by_heads = one.op.startswith(("delta", "lightning"))
        found.setdefault((*one.kind, one.heads if by_heads else 0), one)
    return [":".join(map(str, (*one.kind, one.heads))) for one in found.values()]


def main() -> None:
    """Compile side by side, then time every case; rows are written as they come."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=330.0)
    parser.add_argument("--compile", default="")
    given = parser.parse_args()
    if given.compile:
        compile_kind(given.compile)
        return
    end = time.time() + given.seconds
    command = [sys.executable, __file__, "--out", str(given.out), "--compile"]
    workers = [subprocess.Popen([*command, kind]) for kind in kinds_to_compile()]
    limit = time.time() + COMPILE_SECONDS
    for worker in workers:
        try:
            worker.wait(timeout=max(limit - time.time(), 1.0))
        except subprocess.TimeoutExpired:
            worker.kill()
    print("compiled; seconds left:", round(end - time.time()), flush=True)
    try_fewer_runs()
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / "scans.csv").open("w", newline="") as file:
        write_rows(file, end)


def write_rows(file: Any, end: float) -> None:  # noqa: ANN401
    import torch

    waiting: dict[tuple[Any, ...], list[Case]] = {}
    for one in cases():
        waiting.setdefault(one.kind, []).append(one)
    # In turns, so that a stop leaves some of each kind.
    order = [queue.pop(0) for _ in range(2 * DRAWN) for queue in waiting.values() if queue]
    writer = None
    for one in order:
        if time.time() > end - 4:
            print("stopped", flush=True)
            return
        try:
            row = {**asdict(one), **measure(one)}
        except Exception as error:
            print("failed", one, repr(error)[:300], flush=True)
            torch.cuda.empty_cache()
            continue
        if writer is None:
            writer = csv.DictWriter(file, list(row))
            writer.writeheader()
        writer.writerow(row)
        file.flush()
        print(list(row.values()), round(end - time.time()), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
