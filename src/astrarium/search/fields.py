"""The fields a rule may name, and where the search finds them.

Rules (Megatron's and the user's) read strategies, the model and the cluster by name. A field
becomes known at one of three steps of the search: with the degrees, with the layout, or with the
options; a rule is applied at the first step that knows all of its fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Any

import numpy as np

from astrarium.arrays import Ints
from astrarium.cluster import Pool
from astrarium.cluster.interconnect import NVLINK, Network
from astrarium.model.blocks import Block, Module
from astrarium.model.scans import Recurrence
from astrarium.model.workload import Numerics, Workload
from astrarium.strategy.columns import GRANULARITIES, METHODS, SPLITS, Degrees, Options, modules_of
from astrarium.strategy.types import Granularity, Method, Schedule
from astrarium.value import Value


class KnownAt(IntEnum):
    """The step of the search at which a field is known."""

    DEGREES = 0
    LAYOUT = 1
    OPTIONS = 2


# Never read: rules are applied only once their fields are known.
_UNDECIDED: Any = None


class Rows(Value, frozen=True):
    """The strategies at hand, as far as they are decided."""

    degrees: Degrees = _UNDECIDED
    virtual: Ints = _UNDECIDED
    split: Ints = _UNDECIDED
    options: Options = _UNDECIDED


Getter = Callable[[Rows], Any]


def _texts(codes: Ints, names: tuple[str | None, ...]) -> np.ndarray[Any, np.dtype[np.object_]]:
    return np.array(names, object)[codes]


def _module_texts(masks: Ints) -> np.ndarray[Any, np.dtype[np.object_]]:
    distinct, index = np.unique(masks, return_inverse=True)
    texts = [",".join(modules_of(int(mask))) for mask in distinct]
    return np.array(texts, object)[index]


_GRANULARITY_TEXTS = tuple(None if g is Granularity.NONE else g.value for g in GRANULARITIES)
_METHOD_TEXTS = tuple(None if m is Method.NONE else m.value for m in METHODS)
_SPLIT_TEXTS = tuple(s.value for s in SPLITS)

DEGREE_FIELDS: Mapping[str, Getter] = {
    name: (lambda rows, name=name: getattr(rows.degrees, name))  # type: ignore[misc]
    for name in (
        "tp",
        "pp",
        "dp",
        "cp",
        "ep",
        "etp",
        "micro_batch",
        "num_micro_batches",
        "sequence_parallel",
        "pipeline_inside",
        "shard_groups",
        "gpus",
    )
}

LAYOUT_FIELDS: Mapping[str, Getter] = {
    "virtual_stages": lambda rows: rows.virtual,
    "split": lambda rows: _texts(rows.split, _SPLIT_TEXTS),
    "schedule": lambda rows: np.where(
        rows.virtual > 1, Schedule.INTERLEAVED.value, Schedule.ONE_F_ONE_B.value
    ).astype(object),
}

OPTION_FIELDS: Mapping[str, Getter] = {
    "zero_stage": lambda rows: rows.options.zero_stage,
    "recompute_granularity": lambda rows: _texts(rows.options.granularity, _GRANULARITY_TEXTS),
    "recompute_method": lambda rows: _texts(rows.options.method, _METHOD_TEXTS),
    "recompute_layers": lambda rows: rows.options.recompute_layers,
    "recompute_modules": lambda rows: _module_texts(rows.options.recompute_modules),
    "offload_optimizer": lambda rows: rows.options.offload_optimizer,
    "overlap_grad_reduce": lambda rows: rows.options.overlap_grad_reduce,
    "overlap_param_gather": lambda rows: rows.options.overlap_param_gather,
    "overlap_p2p": lambda rows: rows.options.overlap_p2p,
    "overlap_tp": lambda rows: rows.options.overlap_tp,
}


RECOMPUTE_FIELDS = frozenset(name for name in OPTION_FIELDS if name.startswith("recompute"))


def constant_fields(workload: Workload, pool: Pool) -> dict[str, Any]:
    """Fields of model, workload and cluster: the same for every strategy."""
    model = workload.model
    blocks = [kind for kind in model.kinds if isinstance(kind, Block)]
    beside = workload.beside.model.kinds if workload.beside else ()
    divided = [*blocks, *(kind for kind in beside if isinstance(kind, Block))]
    attentions = [attention for block in blocks for attention in block.attentions]
    heads = [(a.heads, a.kv_heads) for block in divided for a in block.attentions]
    scans = [scan for block in divided for scan in block.scans]
    moe = next((block for block in blocks if block.experts), None)
    return {
        "layers": model.num_layers,
        "hidden": model.hidden,
        "ffn": _inner_width(blocks, Module.MLP),
        "moe_ffn": _inner_width(blocks, Module.EXPERTS),
        "shared_ffn": _inner_width(blocks, Module.SHARED_EXPERTS),
        "heads": int(np.gcd.reduce([every for every, _ in heads])) if heads else 0,
        "kv_heads": int(np.gcd.reduce([shared for _, shared in heads])) if heads else 0,
        "head_dim": max((a.key_dim for a in attentions), default=0),
        "scan_heads": int(np.gcd.reduce([s.heads for s in scans])) if scans else 0,
        "scan_groups": int(np.gcd.reduce([s.groups for s in scans])) if scans else 0,
        "delta_net": any(scan.kind is Recurrence.DELTA for scan in scans),
        "vocab": model.vocab,
        "experts": model.max_experts,
        "topk": moe.experts_per_token if moe else 0,
        "expert_bias": any(
            linear.bias
            for block in blocks
            for linear in block.linears
            if linear.module is Module.EXPERTS
        ),
        "mla": any(linear.name == "kv_up" for block in blocks for linear in block.linears),
        "sliding_window": any(attention.window is not None for attention in attentions),
        "parameters": model.parameters,
        "tied_embeddings": model.head.tied,
        "seq_length": workload.seq_length,
        "global_batch": workload.global_batch,
        "precision": workload.precision.value,
        "reduced_numerics": workload.numerics is Numerics.REDUCED,
        "expert_messages": workload.expert_messages.value,
        "optimizer": workload.optimizer,
        "lora_rank": workload.adapters.rank if workload.adapters else 0,
        "pairs": workload.beside is not None and workload.beside.pairs,
        "gpu": pool.gpu.name,
        "gpus_per_node": pool.gpus_per_node,
        "nvlink_domain": pool.nvlink_domain,
        "nvlink": pool.link in NVLINK,
        "rdma": pool.network in (Network.INFINIBAND, Network.ROCE),
        "compute_capability": pool.gpu.compute_capability,
        "memory_bytes": pool.gpu.memory_bytes,
        "host_memory_bytes": pool.host_memory,
    }


def _inner_width(blocks: list[Block], module: Module) -> int:
    widths = [
        linear.inputs
        for block in blocks
        for linear in [x for x in block.linears if x.module is module][-1:]
    ]
    return int(np.gcd.reduce(widths)) if widths else 0


class Fields(Mapping[str, Any]):
    """Looks fields up by name, computing only those that a rule reads."""

    def __init__(self, constants: Mapping[str, Any], rows: Rows) -> None:
        self._constants, self._rows = constants, rows

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401  columns of any type
        if name in self._constants:
            return self._constants[name]
        if name == "nodes":
            return -(-self._rows.degrees.gpus // self._constants["gpus_per_node"])
        for group in (DEGREE_FIELDS, LAYOUT_FIELDS, OPTION_FIELDS):
            if name in group:
                return group[name](self._rows)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        yield from (*self._constants, "nodes", *DEGREE_FIELDS, *LAYOUT_FIELDS, *OPTION_FIELDS)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def first_step(names: frozenset[str]) -> KnownAt:
    """The earliest step at which all these fields are known."""
    if names & OPTION_FIELDS.keys():
        return KnownAt.OPTIONS
    return KnownAt.LAYOUT if names & LAYOUT_FIELDS.keys() else KnownAt.DEGREES


def reads_only_options(names: frozenset[str]) -> bool:
    """Whether the choice of options alone (beside constants) decides about a rule."""
    return bool(names & OPTION_FIELDS.keys()) and not names & (
        DEGREE_FIELDS.keys() | LAYOUT_FIELDS.keys() | {"nodes"}
    )
