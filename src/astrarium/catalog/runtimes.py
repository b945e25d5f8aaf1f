"""Runtimes: what training programs do that decides time and memory, as data.

Each constant of `data/runtimes.json` is `[value, source]`, with its unit in the name. An entry
takes what it does not state from the one named in `like`. `astrarium.cost` has the formulas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

from astrarium.errors import InputError, Repair, did_you_mean, flag, in_shell, instead
from astrarium.value import Value

DATA: Final = Path(__file__).parent / "data" / "runtimes.json"
DEFAULT: Final = "megatron"
GRAPHS: Final = "megatron-graphs"
# Activations of this share of the layers wait in host memory, in per cent.
OFFLOADS: Final = {f"megatron-offload-{share}": share / 100 for share in (25, 50, 75)}


class ReportedMemory(StrEnum):
    """The kind of peak memory that a runtime's log reports."""

    ALLOCATED = "allocated"  # tensors alive
    RESERVED = "reserved"  # held by the allocator
    DEVICE = "device"  # used on the device, driver and libraries included


class AttentionKind(StrEnum):
    FUSED = "fused"  # the best the GPU has
    FLASH2 = "flash2"  # FlashAttention-2
    UNFUSED = "unfused"  # two products around a softmax


class Balance(StrEnum):
    """The ways to deal layers to stages by weight."""

    BOTTLENECK = "bottleneck"  # the heaviest stage as light as can be
    THRESHOLDS = "thresholds"  # a stage ends with the layer that takes it beyond its share


class Dispatch(StrEnum):
    """The ways of tokens to their experts."""

    COPY = "copy"  # once to each expert
    NODE = "node"  # once to each node with experts of it


WORDS: Final[Mapping[str, type[StrEnum]]] = {
    "attention": AttentionKind,
    "balanced_stages": Balance,
    "dispatch": Dispatch,
    "reported_memory": ReportedMemory,
}


class Runtime(Value, frozen=True):
    """One training program. Bytes are per parameter or element, seconds on the host."""

    name: str
    title: str
    rules: str  # the set of `validity_rules.json` that plans for it keep; "": none is known
    fused: frozenset[str]  # norms, activations and the like that run as one kernel
    attention: str  # a word of AttentionKind
    sequence_first: bool  # activations are kept so, which some attention kernels make copies of
    attention_forward_ratio: float  # time of its attention kernel against the one named
    attention_backward_ratio: float
    balanced_stages: str  # a word of Balance
    starved_pipelines: bool  # whether pipelines run with fewer micro-batches than pp - 1
    accumulates_in_product: bool  # weight gradients are added to the fp32 sum by the product
    gradients_copied: bool  # into the message of every micro-batch, instead of summed
    pads_to_longest: bool  # sequences, to that of their micro-batch
    fills_expert_rows: bool  # by kernels of their own, in 8 bits, to a multiple that products need
    fuses_mask: bool  # with the softmax, where scores are stored
    dropout: bool  # of attention's scores and of both branches that join the residual stream
    hides_tensor_gradients: bool  # input gradients are reduced beside the weight's gradient
    offloads_parameters: bool  # weights and gradients go to host memory with the optimizer
    shard_groups: bool  # whether plans for it may divide in several groups of ranks
    launches_itself: bool  # the device has no host beside it: what launches take is its own time
    varying_rows_ratio: float  # time of experts' activation where ranks share experts
    starts_level: bool  # the host waits for an update's outcome: it begins an iteration not ahead
    waits_for_passes: bool  # the host launches nothing of a pass before the one before it is done
    pass_seconds: float  # beside each pass of a rank, if the host waits for passes
    waits_for_messages: bool  # the host launches nothing while a tensor-parallel message runs
    sole_products: bool  # messages wait for matrix products that hold all multiprocessors
    one_adapter: bool  # a ZeRO group leaves its nodes through one adapter each
    gathers_to_recompute: bool  # ZeRO-3 gathers weights separately for recomputation and backward
    gathered_layers: float  # whole weights that ZeRO-3 holds at a time
    own_unit_memory: bool  # messages of weights and gradients have memory that nothing else gets
    ends_in_one_unit: bool  # embedding and head are gathered together, and stay for all passes
    pads_vocabulary: bool  # to a multiple that tensor cores and tensor parallelism like
    weight_bytes: float
    sharded_weight_bytes: float  # kept beside the master weights where ranks share them
    gradient_bytes: float
    reduced_gradient_bytes: float  # in messages
    tied_gradient_bytes: float  # in those between both copies of a tied table
    gathered_moved_bytes: float  # read and written to unpack one gathered weight
    sharded_moved_bytes: float  # likewise to cast and place one weight of the shard beforehand
    gradient_copy_rate: float  # of copies into messages, as a share of a plain copy's
    optimizer_bytes: float
    # Parameters of one data-parallel message, at least, and more where so many ranks share them;
    # 0: all in one.
    message_parameters: float
    message_parameters_per_rank: float
    bucket_bytes: float  # flat copies of gradients for messages, where ranks share weights
    fresh_gradient_bytes: float  # gradients of one micro-batch, all alive before they are added
    late_gradients: bool  # they are made in a backward pass and freed by the update
    gathered_inputs_alive: float  # inputs of a layer that were gathered and are freed with its pass
    sent_mask_bytes: float  # of one score, in a mask that goes along from stage to stage
    logit_bytes: float  # of one logit, at the peak of the loss
    divided_logit_bytes: float  # of one logit, beyond that, where tensor parallelism divides them
    logit_gap: float  # freed blocks among them that the loss cannot use, as a share of them
    scaled_input_bytes: float  # of one input element that an 8-bit product keeps for its gradient
    scaled_weight_bytes: float  # of 8-bit copies that stay beside one 16-bit weight
    scaled_product_ratio: float  # time of its 8-bit products against those of the operator model
    cast_rate: float  # of casts to 8 bits, as a share of a plain copy's
    expert_cast_ratio: float  # how much longer the casts of experts' rows take
    permute_rate: float  # of kernels that bring tokens to their experts, likewise
    expert_product_seconds: float  # to start and finish the product of one expert
    dispatch: str  # a word of Dispatch
    hidden_expert_messages: float  # share of their time that runs beside computation, if it can
    kept_ratio: float  # activations that are alive, over those of the schedule
    rms_norm_kept_bytes: float  # of one element that an RMS norm casts, beyond that element
    rms_norm_scaled_bytes: float  # of one element before it is multiplied by a weight that trains
    rotary_kept_bytes: float  # of one query or key element, beside the rotated one
    gated_kept_bytes: float  # of one input element of a gated activation, beside it and its output
    checkpoints_on_host: bool  # what recomputation starts from is moved there
    activations_on_host: float  # share of what layers keep that is moved there, beside the passes
    workspace_bytes: float  # of libraries, among the tensors
    optimizer_moved_bytes: float  # read and written to update one parameter
    step_moved_bytes: (
        float  # for each parameter on a rank in an iteration, whichever rank updates it
    )
    optimizer_transient_bytes: float  # of one parameter, alive only during the update
    optimizer_tensor_seconds: float  # for each weight tensor of an update, the device idle
    optimizer_launch_seconds: float  # to launch the update of one weight tensor
    layer_forward_seconds: float  # to launch the kernels of one layer
    layer_backward_seconds: float
    launch_seconds_per_tp_rank: float  # additional, for a layer, where a pipeline crosses nodes
    message_seconds_per_tp_rank: float  # additional, for a message, where its group crosses nodes
    rotary_launch_seconds: float  # additional, in each pass, where rotary embedding is many kernels
    router_launch_seconds: float  # both passes together, where experts are routed to
    expert_launch_seconds: float  # likewise for each expert on the rank
    latent_launch_seconds: float  # likewise where keys and values come from latent widths
    kernel_choice_seconds: float  # for a product of a size whose kernel is not remembered
    kernels_remembered: float
    expert_rows_met: float  # numbers of rows that experts had before what is timed began
    cast_launch_seconds: float  # additional, for a layer of 8-bit products, both passes together
    router_cast_launch_seconds: float  # likewise where experts are routed to
    expert_cast_launch_seconds: float  # likewise for each expert on the rank
    latent_cast_launch_seconds: float  # likewise where keys and values come from latent widths
    layer_recompute_seconds: float  # additional, to set up the repetition of a layer
    micro_batch_seconds: float  # to launch both ends of the model, for each micro-batch
    step_seconds: float  # for each iteration
    broadcast_seconds: float  # for each rank that hands out its part of the updated weights
    sharded_layer_step_seconds: float  # for each layer on a rank when ranks share its update
    reserved_bytes: float  # driver, libraries, communication buffers
    fragmentation: float  # blocks that the allocator cannot reuse, as a share of what moves
    reported_memory: ReportedMemory

    @property
    def program(self) -> str:
        """The program whose rules hold, perhaps with further ones: megatron of megatron-graphs."""
        return self.rules.partition("-")[0]

    @property
    def parses_as_megatron(self) -> bool:
        """Whether strategies become arguments of Megatron's parser, which refuses what it must."""
        return self.program == DEFAULT

    def __post_init__(self) -> None:
        for name, words in WORDS.items():
            _check_word(f"runtime {self.name}: {name}", getattr(self, name), list(words))


class Constant(Value, frozen=True):
    """A constant of a runtime and where it comes from."""

    name: str
    value: Any
    source: str


def runtime_names() -> tuple[str, ...]:
    return tuple(_entries())


def planned_runtimes() -> tuple[str, ...]:
    """Names of runtimes that plans can be made for."""
    return tuple(name for name in runtime_names() if find_runtime(name).rules)


@cache
def find_runtime(name: str = DEFAULT) -> Runtime:
    values = {constant.name: constant.value for constant in describe_runtime(name)}
    values["fused"] = frozenset(values["fused"])
    values["reported_memory"] = ReportedMemory(values["reported_memory"])
    return Runtime(name=name.lower(), title=_entries()[name.lower()]["title"], **values)


def offloaded_layers(runtime: Runtime, layers: int) -> int:
    """The number of layers whose activations a runtime of `OFFLOADS` moves to the host; or 0."""
    return round(OFFLOADS.get(runtime.name, 0.0) * layers)


def offloading(moved: int, layers: int) -> str:
    """The name of the runtime that moves as many, as nearly as any does."""
    return min(OFFLOADS, key=lambda name: abs(OFFLOADS[name] - moved / layers))


_MEGATRON: Final = (Repair("Plan for Megatron-LM", {"runtime": "megatron"}),)


def with_reduced_states(runtime: Runtime) -> Runtime:
    """The runtime with gradients and both moments of Adam in bf16.

    Megatron's --grad-reduce-in-bf16 and precision-aware optimizer; DeepSeek-V3 keeps its moments
    so (arXiv 2412.19437, section 3.3.3), NVIDIA's recipes their gradients. The update reads and
    writes 8 bytes less of the moments. Not counted: newer versions of TransformerEngine keep only
    the half of a master weight that the 16-bit weight lacks, 2 bytes less.
    """
    if not runtime.parses_as_megatron:
        raise InputError(
            f"{runtime.name} keeps its gradients and moments as it does: reduced numerics are"
            f" Megatron's ({flag('runtime', 'megatron')})",
            "numerics",
            _MEGATRON,
        )
    return replace(
        runtime,
        gradient_bytes=2.0,
        reduced_gradient_bytes=2.0,
        tied_gradient_bytes=2.0,
        optimizer_bytes=8.0,
        optimizer_moved_bytes=runtime.optimizer_moved_bytes - 8.0,
        step_moved_bytes=min(runtime.step_moved_bytes, 2.0),
    )


# Share of expert messages that cost nothing beside another micro-batch, as Megatron runs them: the
# median that NVIDIA's runs on H100 imply, 0.37 to 0.45 in four of Qwen3-235B on 256 (all to all)
# and 0.22 in one of DeepSeek-V3 on 1,024 (DeepEP).
HIDDEN_MESSAGES: Final = 0.4
# The merged schedule runs one chunk further ahead (`get_pp_rank_microbatches`): with pp 4 and two
# virtual stages 12 instead of 11 on the first rank, fewer with more of either.
MERGED_KEPT: Final = 12 / 11


# With scales for 32 elements products take 7.16 ms instead of 6.81 (TransformerEngine's GEMM
# profiling guide, B300, 2026). How rows of experts are filled up and cast was never measured.
MICROSCALED: Final[Mapping[str, Any]] = {
    "scaled_product_ratio": 1.05,
    "expert_cast_ratio": 1.0,
    "fills_expert_rows": False,
}


def as_asked(
    runtime: Runtime, numerics: str, expert_messages: str, precision: str = "bf16"
) -> Runtime:
    """The runtime with what a workload sets about it (`astrarium.model.workload`)."""
    if numerics == "reduced":
        runtime = with_reduced_states(runtime)
    if precision == "mxfp8":
        runtime = replace(runtime, **MICROSCALED)
    if expert_messages == "alltoall":
        return runtime
    return _sending(
        runtime,
        deepep=expert_messages.startswith("deepep"),
        overlapped=expert_messages.endswith("overlapped"),
    )


def _sending(runtime: Runtime, *, deepep: bool, overlapped: bool) -> Runtime:
    """The runtime that sends tokens to experts with DeepEP, beside another micro-batch, or both."""
    if not runtime.parses_as_megatron:
        raise InputError(
            f"{runtime.name} sends tokens to experts as it does: other messages are Megatron's"
            f" ({flag('runtime', 'megatron')})",
            "expert_messages",
            _MEGATRON,
        )
    sent = replace(runtime, dispatch=(Dispatch.NODE if deepep else Dispatch.COPY).value)
    if not overlapped:
        return sent
    return replace(sent, hidden_expert_messages=HIDDEN_MESSAGES, kept_ratio=MERGED_KEPT)


@cache
def describe_runtime(name: str) -> tuple[Constant, ...]:
    entries = _entries()
    if name.lower() not in entries:
        known = ", ".join(entries)
        raise InputError(
            f"unknown runtime '{name}'{did_you_mean(name, entries)}; known: {known}"
            + in_shell(" (`astrarium catalog runtimes`)"),
            "runtime",
            instead(name, list(entries)),
        )
    chain = []
    parent: str | None = name.lower()
    while parent is not None:
        chain.append(entries[parent]["constants"])
        parent = entries[parent].get("like")
    merged: dict[str, Any] = {}
    for constants in reversed(chain):
        merged |= constants
    names = [field.name for field in fields(Runtime)]
    return tuple(Constant(key, *merged[key]) for key in names if key in merged)


@cache
def _entries() -> Mapping[str, Any]:
    return read_entries(DATA)


def read_entries(path: Path) -> Mapping[str, Any]:
    """The entries of a file; keys that mean nothing are refused, as they would change nothing."""
    entries: Mapping[str, Any] = json.loads(path.read_bytes())["runtimes"]
    constants = [field.name for field in fields(Runtime) if field.name not in ("name", "title")]
    for name, entry in entries.items():
        where = f"{path}: {name}"
        for key in entry:
            _check_word(f"{where}: key", key, ("title", "like", "constants"))
        if "like" in entry:
            _check_word(f"{where}: like", entry["like"], tuple(entries))
        for key, stated in entry["constants"].items():
            _check_word(f"{where}: constant", key, constants)
            if not (isinstance(stated, list) and len(stated) == 2):
                raise InputError(f"{where}: {key}: expected [value, source], got {stated!r}")
            if key in WORDS:
                _check_word(f"{where}: {key}", stated[0], list(WORDS[key]))
    return entries


def _check_word(where: str, word: str, known: Sequence[str]) -> None:
    if word not in known:
        hint = did_you_mean(str(word), known)
        raise InputError(f"{where}: unknown '{word}'{hint}; known: {', '.join(known)}")
