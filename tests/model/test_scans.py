"""FLOPs of scans against products of the chunked algorithms, counted as torch carries them out."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from astrarium.model import load_model
from astrarium.model.scans import Recurrence, Scan

LENGTH = 96
MAMBA = Scan(Recurrence.SSD, heads=6, head_dim=10, groups=2, state=14, chunk=32, taps=4)
DELTA = Scan(Recurrence.DELTA, heads=6, head_dim=10, groups=3, state=14, chunk=16, taps=4)
DECAY = Scan(Recurrence.DECAY, heads=6, head_dim=10, groups=6, state=10, chunk=32)


def counted(products: Any) -> int:
    torch = importlib.import_module("torch")
    flops = importlib.import_module("torch.utils.flop_counter")
    with torch.device("meta"), flops.FlopCounterMode(display=False) as counter:
        products(torch)
    return int(counter.get_total_flops())


def chunked(scan: Scan) -> Any:
    """All products of one sequence, with whole squares inside chunks."""
    chunks, c = LENGTH // scan.chunk, scan.chunk
    delta = scan.kind is Recurrence.DELTA
    key_heads = scan.heads if delta else scan.groups

    def run(torch: Any) -> None:
        keys = torch.ones(chunks * key_heads, c, scan.state)
        values = torch.ones(chunks * scan.heads, c, scan.head_dim)
        own_keys = torch.ones(chunks * scan.heads, c, scan.state)
        square = torch.ones(chunks * scan.heads, c, c)
        state = torch.ones(chunks * scan.heads, scan.state, scan.head_dim)
        keys @ keys.transpose(1, 2)  # queries with keys
        square @ values
        own_keys.transpose(1, 2) @ values  # into the state
        own_keys @ state  # out of it
        if delta:
            keys @ keys.transpose(1, 2)  # keys with keys
            square @ own_keys  # the solved triangle with keys and with values
            square @ values
            own_keys @ state  # what is stored under the keys

    return run


@pytest.mark.parametrize("scan", [MAMBA, DELTA, DECAY], ids=lambda scan: str(scan.kind))
def test_flops_are_those_of_the_chunked_algorithm(scan: Scan) -> None:
    """The half of a square above the diagonal is not counted; torch counts it."""
    whole = counted(chunked(scan))
    inside = counted(chunked(scan)) - LENGTH * _through_state(scan)
    half = inside * (scan.chunk + 1) / (2 * scan.chunk)
    assert scan.flops_per_token(LENGTH) * LENGTH == pytest.approx(whole - inside + half)


def _through_state(scan: Scan) -> int:
    passes = 3 if scan.kind is Recurrence.DELTA else 2
    return 2 * passes * scan.inner * scan.state


def test_chunks_are_no_longer_than_the_sequence() -> None:
    assert MAMBA.flops_per_token(8) < MAMBA.flops_per_token(32) == MAMBA.flops_per_token(4096)


def test_flops_of_mamba_against_megatrons_formula() -> None:
    """Its estimate of the scan, 7 x inner x state for a token, is older than kernels in chunks."""
    model = load_model("nemotron-h-8b")
    kinds = {block.name: block for block in model.blocks}
    inner, state, heads, groups, hidden = 8192, 128, 128, 8, 4096
    projections = 2 * hidden * (2 * inner + 2 * groups * state + heads) + 2 * inner * hidden
    layer = kinds["mamba"].flops_per_token(8192)
    assert layer == pytest.approx(projections + 7 * inner * state, rel=0.01)


def test_a_scan_costs_the_same_at_any_length() -> None:
    model = load_model("mamba2-2.7b")
    assert model.flops_per_token(2048) == model.flops_per_token(1_048_576)
