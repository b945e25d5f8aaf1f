"""The graph of a model of the catalog, without torch: what `torch.export` would write of it.

Operators are those that Hugging Face's modules run one by one, since that is what executes a
program: norms over the root mean square and rotary positions are several kernels each, keys and
values of grouped heads are repeated. Weights that Megatron fuses (queries, keys and values; gate
and up projection) are parameters of their own, as there.

Parameters are float32, and so are their gradients and the optimizer's states. In a workload of 16
bits they are cast where they are read, so that products, activations and what is kept for the
backward pass have 16 bits: 18 bytes for each parameter in all, as in Megatron.

Left out, as neither decides a program: dropout, biases on scores instead of positions, labels that
are shifted inside of the model, and of encoders the pooler and the prediction of the next sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from astrarium.errors import InputError
from astrarium.model.blocks import Attention, Block, CustomBlock, Linear, Model, Module, Norm
from astrarium.model.build import Architecture
from astrarium.model.workload import Precision, Workload
from astrarium.spmd.graph import CONSTANT, INPUT, PARAMETER, Graph, Node, Ref
from astrarium.spmd.normalise import normalise

FUSED: Final = ("gpt2",)  # types of modules with one weight for queries, keys and values
DTYPES: Final = {
    Precision.BF16: "bfloat16",
    Precision.FP16: "float16",
    Precision.FP32: "float32",
}
EPSILON: Final = 1e-5
FULL: Final = "float32"  # what parameters, norms and the loss are computed in
LAYER_NORM_VECTORS: Final = 2  # a scale and a shift
EXPRESSED: Final = (Architecture.DECODER, Architecture.ENCODER)
# Of GELU by its formula, as the models of GPT-2's school write it: several kernels.
GELU_OF_SEVERAL: Final = ("gelu_new", "gelu_fast")
# Keys under which a config.json names the activation.
ACTIVATION_KEYS: Final = ("hidden_act", "activation_function", "hidden_activation", "activation")


def graph_of(workload: Workload, micro_batch: int | None = None) -> Graph:
    """A training step of the workload's model on so many sequences; by default all of the batch.

    InputError says why where the model cannot be expressed.
    """
    why = why_not(workload)
    if why:
        raise InputError(f"{workload.model.name} cannot be expressed as one program: {why}")
    build = _Builder(workload, micro_batch or workload.global_batch)
    return build.model()


def why_not(workload: Workload) -> str:
    """What the graph of a workload's model would need that is not expressed; "" if nothing."""
    model = workload.model
    if workload.precision not in DTYPES:
        return f"programs train in {', '.join(DTYPES)}, not in {workload.precision}"
    if any(isinstance(block, CustomBlock) for block in model.blocks):
        return "it has custom layers, of which only the size is known"
    if model.architecture not in EXPRESSED or model.later_inputs or model.carried:
        return f"its architecture is {model.architecture}; {' and '.join(EXPRESSED)} are expressed"
    if any(kind.timings for kind in model.kinds) or model.head.timings:
        return "its layers have measured times, which say nothing of their operators"
    if model.embedding.hidden != model.hidden:
        return "its token table is narrower than its layers"
    for block in model.kinds:
        why = _why_not_block(block) if isinstance(block, Block) else ""
        if why:
            return why
    return ""


def _why_not_block(block: Block) -> str:
    names = {linear.name for linear in block.linears}
    strange = names - _KNOWN
    if strange or len(block.attentions) != 1 or block.seq_length is not None:
        latent = any(name.startswith(("q_", "kv_")) for name in strange)
        what = "latent attention" if latent else f"layers named {block.name}"
        return f"it has {what}, whose operators have no rules"
    if block.extra_parameters:
        return "its layers have parameters beside weights and norms, such as attention sinks"
    if any(linear.bias for linear in block.linears if linear.module is Module.EXPERTS):
        return "its experts have biases"
    strange = {norm.name for norm in block.norms} - _NORMS
    return f"it has norms named {', '.join(sorted(strange))}" if strange else ""


_KNOWN: Final = frozenset(
    (
        *("qkv", "proj", "fc1", "fc2", "router", "expert_fc1", "expert_fc2"),
        *("shared_gate", "shared_fc1", "shared_fc2"),
    )
)
_NORMS: Final = frozenset(
    ("attention_norm", "mlp_norm", "attention_post_norm", "mlp_post_norm", "q_norm", "k_norm")
)


@dataclass
class _Builder:
    """Nodes in the order of computation; parameters stand before the first node that reads them."""

    workload: Workload
    batch: int
    nodes: list[Node] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    path: str = ""

    @property
    def _model(self) -> Model:
        return self.workload.model

    @property
    def _length(self) -> int:
        return self.workload.seq_length

    @property
    def _dtype(self) -> str:
        return DTYPES[self.workload.precision]

    def model(self) -> Graph:
        """The whole step: embedding, layers, head and loss."""
        ids = self._source(INPUT, "input_ids", (self.batch, self._length), "int64")
        labels = self._source(INPUT, "labels", (self.batch, self._length), "int64")
        table, stream = self._embedding(ids)
        rotary: dict[int, tuple[int, int]] = {}
        for block in self._model.kinds:
            width = block.attentions[0].rotary_dim if isinstance(block, Block) else 0
            if width and width not in rotary:
                shape = (1, 1, self._length, width)
                cos = self._source(CONSTANT, f"cos_{width}", shape, self._dtype)
                rotary[width] = (cos, self._source(CONSTANT, f"sin_{width}", shape, self._dtype))
        for number, block in enumerate(self._model.blocks):
            assert isinstance(block, Block)  # `why_not` refuses others
            self.path = f"model.layers.{number}"
            stream = self._layer(block, stream, rotary.get(block.attentions[0].rotary_dim))
        self.path = ""
        self._head(stream, table, labels)
        return normalise(self.nodes, self._model.name)

    # Nodes ----------------------------------------------------------------------------------

    def _source(self, kind: str, target: str, shape: Sequence[int], dtype: str) -> int:
        name = target.replace(".", "_")
        self.nodes.append(
            Node(name, kind, tuple(shape), dtype, target=target, source=self.path, path=self.path)
        )
        return len(self.nodes) - 1

    def _stored(self, name: str, *shape: int) -> int:
        """A parameter as it is kept, updated and checkpointed: in 32 bits."""
        return self._source(PARAMETER, self._within(name), shape, FULL)

    def _parameter(self, name: str, *shape: int) -> int:
        """A parameter as products read it: cast to the number format of the workload."""
        return self._cast(self._stored(name, *shape), self._dtype)

    def _within(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def _op(
        self,
        op: str,
        shape: Sequence[int],
        *args: object,
        dtype: str = "",
        module: str = "",
        **kwargs: object,
    ) -> int:
        """An operator of ATen; arguments that are node numbers are given as Ref."""
        short = op.split(".")[1] if "." in op else op
        number = self.names[short] = self.names.get(short, -1) + 1
        node = Node(
            f"{short}_{number}" if number else short,
            op,
            tuple(shape),
            dtype or self._dtype,
            tuple(args),
            tuple(kwargs.items()),
            path=self._within(module) if module else self.path,
            source=self._within(module) if module else self.path,
        )
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _shape(self, node: int) -> tuple[int, ...]:
        return self.nodes[node].shape

    def _pointwise(self, op: str, node: int, *args: object) -> int:
        return self._op(op, self._shape(node), Ref(node), *args, dtype=self.nodes[node].dtype)

    def _cast(self, node: int, dtype: str) -> int:
        if self.nodes[node].dtype == dtype:
            return node
        return self._op(
            "aten.to.dtype", self._shape(node), Ref(node), f"torch.{dtype}", dtype=dtype
        )

    def _add(self, left: int, right: int) -> int:
        return self._pointwise("aten.add.Tensor", left, Ref(right))

    def _mul(self, left: int, right: int) -> int:
        return self._pointwise("aten.mul.Tensor", left, Ref(right))

    def _linear(self, x: int, name: str, outputs: int, *, bias: bool) -> int:
        shape = self._shape(x)
        weight = self._parameter(f"{name}.weight", outputs, shape[-1])
        added = (Ref(self._parameter(f"{name}.bias", outputs)),) if bias else ()
        out = (*shape[:-1], outputs)
        return self._op("aten.linear.default", out, Ref(x), Ref(weight), *added, module=name)

    def _norm(self, x: int, name: str, width: int, vectors: int) -> int:
        """A layer norm, or one over the root mean square, kernel by kernel; without any vector."""
        if vectors >= LAYER_NORM_VECTORS:
            scale = self._parameter(f"{name}.weight", width)
            shift = self._parameter(f"{name}.bias", width)
            arguments = (Ref(x), [width], Ref(scale), Ref(shift), EPSILON, False)
            return self._op("aten.layer_norm.default", self._shape(x), *arguments, module=name)
        shape, wide = self._shape(x), self._cast(x, FULL)
        squares = self._pointwise("aten.pow.Tensor_Scalar", wide, 2)
        mean = self._op("aten.mean.dim", (*shape[:-1], 1), Ref(squares), [-1], True, dtype=FULL)
        root = self._pointwise("aten.rsqrt.default", self._pointwise("aten.add.Tensor", mean, 1e-6))
        normed = self._cast(self._mul(wide, root), self._dtype)
        if not vectors:
            return normed
        scale = self._parameter(f"{name}.weight", width)
        return self._op("aten.mul.Tensor", shape, Ref(scale), Ref(normed), module=name)

    # Parts of a model -----------------------------------------------------------------------

    def _embedding(self, ids: int) -> tuple[int, int]:
        """The token table and what it gives, with learned positions and a norm where there are."""
        model, hidden = self._model, self._model.hidden
        shape = (self.batch, self._length, hidden)
        table = self._stored("model.embed_tokens.weight", model.embedding.vocab, hidden)
        stream = self._op("aten.embedding.default", shape, Ref(table), Ref(ids), dtype=FULL)
        stream = self._cast(stream, self._dtype)
        rows = model.embedding.other_parameters // hidden
        is_encoder = model.architecture == Architecture.ENCODER
        if is_encoder:
            types = rows - model.max_seq_length - LAYER_NORM_VECTORS
            stream = self._looked_up(stream, "token_types", types, self.batch)
            stream = self._looked_up(stream, "positions", model.max_seq_length, 1)
        elif rows > LAYER_NORM_VECTORS:
            stream = self._looked_up(stream, "positions", rows, 1)
        if is_encoder or rows == LAYER_NORM_VECTORS:
            stream = self._norm(stream, "model.embed_norm", hidden, LAYER_NORM_VECTORS)
        return table, stream

    def _looked_up(self, stream: int, name: str, rows: int, batch: int) -> int:
        """The stream and what a small table has for the places of its tokens."""
        if rows < 1:
            return stream
        places = self._source(CONSTANT, f"{name}_ids", (batch, self._length), "int64")
        table = self._stored(f"model.{name}.weight", rows, self._model.hidden)
        shape = (batch, self._length, self._model.hidden)
        found = self._op("aten.embedding.default", shape, Ref(table), Ref(places), dtype=FULL)
        return self._add(stream, self._cast(found, self._dtype))

    def _layer(self, block: Block, stream: int, rotary: tuple[int, int] | None) -> int:
        """Attention and a feed-forward part, with norms before or behind them or both."""
        norms = {norm.name: norm for norm in block.norms}
        behind_sum = self._model.architecture == Architecture.ENCODER
        first = stream
        read = stream if behind_sum else self._normed(stream, norms.get("attention_norm"))
        attended = self._attention(block, read, norms, rotary)
        attended = self._normed(attended, norms.get("attention_post_norm"))
        if block.parallel_residual:
            own = norms.get("mlp_norm")
            inner = self._feed_forward(block, self._normed(first, own) if own else read)
            inner = self._normed(inner, norms.get("mlp_post_norm"))
            return self._add(self._add(inner, attended), first)
        stream = self._add(first, attended)
        if behind_sum:
            stream = self._normed(stream, norms.get("attention_norm"))
            inner = self._feed_forward(block, stream)
            return self._normed(self._add(stream, inner), norms.get("mlp_norm"))
        inner = self._feed_forward(block, self._normed(stream, norms.get("mlp_norm")))
        return self._add(stream, self._normed(inner, norms.get("mlp_post_norm")))

    def _normed(self, x: int, norm: Norm | None) -> int:
        return x if norm is None else self._norm(x, norm.name, norm.width, norm.vectors)

    def _attention(
        self, block: Block, x: int, norms: dict[str, Norm], rotary: tuple[int, int] | None
    ) -> int:
        attention = block.attentions[0]
        weights = {linear.name: linear for linear in block.linears}
        bias = weights["qkv"].bias
        heads, grouped, width = attention.heads, attention.kv_heads, attention.key_dim
        parts = []
        counts = {"q": heads, "k": grouped, "v": grouped}
        flats = self._projected(x, {name: n * width for name, n in counts.items()}, bias=bias)
        for (name, count), flat in zip(counts.items(), flats, strict=True):
            own = norms.get(f"{name}_norm")
            if own is not None and own.width != width:  # over all heads together
                flat, own = self._norm(flat, own.name, own.width, own.vectors), None
            part = self._by_head(flat, count, width)
            parts.append(part if own is None else self._head_norm(part, own))
        if rotary is not None:
            parts[:2] = [self._rotated(part, attention.rotary_dim, rotary) for part in parts[:2]]
        if grouped != heads:
            parts[1:] = [self._repeated(part, heads // grouped) for part in parts[1:]]
        mixed = self._scores(attention, parts)
        shape = (self.batch, self._length, heads, width)
        back = self._op("aten.transpose.int", shape, Ref(mixed), 1, 2)
        sizes = [self.batch, self._length, heads * width]
        flat = self._op("aten.reshape.default", sizes, Ref(back), sizes)
        out = weights["proj"]
        return self._linear(flat, "self_attn.o_proj", out.outputs, bias=out.bias)

    def _projected(self, x: int, widths: dict[str, int], *, bias: bool) -> list[int]:
        """Queries, keys and values, of a weight each; GPT-2's module has one for all."""
        if str((self._model.config or {}).get("model_type")) not in FUSED:
            return [
                self._linear(x, f"self_attn.{name}_proj", width, bias=bias)
                for name, width in widths.items()
            ]
        together = self._linear(x, "self_attn.qkv_proj", sum(widths.values()), bias=bias)
        width = widths["q"]
        shape = (*self._shape(together)[:-1], width)
        split = self._op("aten.split.Tensor", shape, Ref(together), width, 2)
        return [self._op("getitem", shape, Ref(split), part) for part in range(len(widths))]

    def _head_norm(self, x: int, norm: Norm) -> int:
        """A norm of every head; its vector is shared by all heads, or each has its own."""
        if norm.vectors <= LAYER_NORM_VECTORS:
            return self._norm(x, norm.name, norm.width, norm.vectors)
        scale = self._parameter(f"{norm.name}.weight", norm.vectors, 1, norm.width)
        return self._mul(self._norm(x, norm.name, norm.width, 0), scale)

    def _by_head(self, flat: int, heads: int, width: int) -> int:
        sizes = [self.batch, self._length, heads, width]
        split = self._op("aten.reshape.default", sizes, Ref(flat), sizes)
        shape = (self.batch, heads, self._length, width)
        return self._op("aten.transpose.int", shape, Ref(split), 1, 2)

    def _rotated(self, x: int, rotary_dim: int, rotary: tuple[int, int]) -> int:
        """Queries or keys turned by their positions: halves swapped, one of them negated."""
        shape = self._shape(x)
        rest = None
        if rotary_dim < shape[-1]:
            rest = self._cut(x, rotary_dim, shape[-1])
            x = self._cut(x, 0, rotary_dim)
        turned = self._mul(x, rotary[0])
        low = self._cut(x, 0, rotary_dim // 2)
        high = self._pointwise("aten.neg.default", self._cut(x, rotary_dim // 2, rotary_dim))
        swapped = self._op("aten.cat.default", self._shape(x), [Ref(high), Ref(low)], -1)
        whole = self._add(turned, self._mul(swapped, rotary[1]))
        if rest is None:
            return whole
        return self._op("aten.cat.default", shape, [Ref(whole), Ref(rest)], -1)

    def _cut(self, x: int, first: int, last: int) -> int:
        shape = self._shape(x)
        cut = (*shape[:-1], last - first)
        return self._op("aten.slice.Tensor", cut, Ref(x), len(shape) - 1, first, last, 1)

    def _repeated(self, x: int, times: int) -> int:
        """Keys or values once for every query head that reads them."""
        batch, heads, length, width = self._shape(x)
        one = self._op("aten.unsqueeze.default", (batch, heads, 1, length, width), Ref(x), 2)
        sizes = [batch, heads, times, length, width]
        many = self._op("aten.expand.default", sizes, Ref(one), sizes)
        flat = [batch, heads * times, length, width]
        return self._op("aten.reshape.default", flat, Ref(many), flat)

    def _scores(self, attention: Attention, parts: Sequence[int]) -> int:
        """Attention itself; a window shorter than the sequence is a mask."""
        local = attention.window is not None and attention.window < self._length
        mask = None
        if local:
            shape = (1, 1, self._length, self._length)
            mask = Ref(self._source(CONSTANT, self._within("self_attn.mask"), shape, "bool"))
        arguments = (*map(Ref, parts), mask, 0.0, attention.causal and not local)
        scale = attention.key_dim**-0.5
        op, made = "aten.scaled_dot_product_attention.default", self._shape(parts[0])
        return self._op(op, made, *arguments, module="self_attn", scale=scale)

    def _feed_forward(self, block: Block, x: int) -> int:
        weights = {linear.name: linear for linear in block.linears}
        if not block.experts:
            return self._mlp(x, "mlp", weights["fc1"], weights["fc2"], gated=block.gated)
        result = self._experts(block, weights, x)
        if "shared_fc1" not in weights:
            return result
        first, second = weights["shared_fc1"], weights["shared_fc2"]
        shared = self._mlp(x, "shared_expert", first, second, gated=block.gated)
        if "shared_gate" in weights:
            gate = self._linear(x, "shared_expert_gate", 1, bias=False)
            shared = self._mul(shared, self._pointwise("aten.sigmoid.default", gate))
        return self._add(result, shared)

    def _experts(self, block: Block, weights: dict[str, Linear], x: int) -> int:
        """Experts as GShard computes them: tokens go to places of experts by products.

        Each sequence is a group of its own, and an expert has as many places for it as balanced
        gating fills. So shapes are fixed, and batch, experts and features can each be divided.
        """
        batch, tokens, width = self._shape(x)
        places = -(-tokens * block.experts_per_token // block.experts)
        combine = self._gate(block, x, places, bias=weights["router"].bias)
        dispatch = self._cast(self._compared("aten.gt.Scalar", combine, 0), self._dtype)
        seated = (batch, block.experts, places, width)
        taken = self._einsum("bsec,bsd->becd", dispatch, x, seated)
        inner = weights["expert_fc2"].inputs
        inside = self._of_experts(taken, "gate_proj" if block.gated else "up_proj", inner)
        inside = self._activated(inside)
        if block.gated:
            inside = self._mul(inside, self._of_experts(taken, "up_proj", inner))
        result = self._of_experts(inside, "down_proj", width)
        return self._einsum("bsec,becd->bsd", combine, result, (batch, tokens, width))

    def _of_experts(self, x: int, name: str, outputs: int) -> int:
        """Each expert's product with the tokens in its places."""
        batch, experts, places, inputs = self._shape(x)
        weight = self._parameter(f"mlp.experts.{name}", experts, inputs, outputs)
        shape = (batch, experts, places, outputs)
        return self._einsum("becd,edf->becf", x, weight, shape)

    def _gate(self, block: Block, x: int, places: int, *, bias: bool) -> int:
        """What each place of each expert takes of each token: weights of its chosen experts."""
        scores = self._linear(x, "mlp.gate", block.experts, bias=bias)
        chances = self._pointwise("aten.softmax.int", scores, -1)
        chosen, left = None, chances
        numbers = self._source(CONSTANT, self._within("experts"), (block.experts,), "int64")
        for _ in range(block.experts_per_token):
            one = self._op("aten.argmax.default", self._shape(x)[:2], Ref(left), -1, dtype="int64")
            hot = self._one_hot(one, numbers)
            chosen = hot if chosen is None else self._compared("aten.__or__.Tensor", chosen, hot)
            left = self._pointwise("aten.masked_fill.Scalar", left, Ref(hot), 0.0)
        assert chosen is not None  # a token goes to at least one expert
        count = self._cast(chosen, "int64")
        shape = self._shape(chances)
        seats = self._op("aten.cumsum.default", shape, Ref(count), 1, dtype="int64")
        seat = self._op("aten.sub.Tensor", shape, Ref(seats), Ref(count), dtype="int64")
        fits = self._compared("aten.lt.Scalar", seat, places)
        kept = self._cast(self._compared("aten.__and__.Tensor", chosen, fits), self._dtype)
        taken = self._mul(chances, kept)
        total = self._op("aten.sum.dim_IntList", (*shape[:-1], 1), Ref(taken), [-1], True)
        total = self._pointwise("aten.clamp.default", total, 1e-9)
        part = self._pointwise("aten.div.Tensor", taken, Ref(total))
        part = self._op("aten.unsqueeze.default", (*shape, 1), Ref(part), -1)
        numbers = self._source(CONSTANT, self._within("places"), (places,), "int64")
        seated = self._cast(self._one_hot(seat, numbers), self._dtype)
        return self._op("aten.mul.Tensor", (*shape, places), Ref(part), Ref(seated))

    def _one_hot(self, index: int, numbers: int) -> int:
        shape = self._shape(index)
        apart = self._op("aten.unsqueeze.default", (*shape, 1), Ref(index), -1, dtype="int64")
        found = (*shape, *self._shape(numbers))
        return self._op("aten.eq.Tensor", found, Ref(apart), Ref(numbers), dtype="bool")

    def _compared(self, op: str, left: int, right: int) -> int:
        """A truth for every element; `right` is a number, or a node for operators of tensors."""
        other = Ref(right) if op.endswith("Tensor") else right
        return self._op(op, self._shape(left), Ref(left), other, dtype="bool")

    def _einsum(self, equation: str, left: int, right: int, shape: Sequence[int]) -> int:
        return self._op("aten.einsum.default", shape, equation, [Ref(left), Ref(right)])

    def _mlp(self, x: int, name: str, first: Linear, second: Linear, *, gated: bool) -> int:
        if gated:
            gate = self._linear(x, f"{name}.gate_proj", second.inputs, bias=first.bias)
            gate = self._activated(gate)
            up = self._linear(x, f"{name}.up_proj", second.inputs, bias=first.bias)
            inner = self._mul(gate, up)
        else:
            inner = self._activated(
                self._linear(x, f"{name}.up_proj", second.inputs, bias=first.bias)
            )
        return self._linear(inner, f"{name}.down_proj", second.outputs, bias=second.bias)

    def _activated(self, x: int) -> int:
        config = self._model.config or {}
        named = [config[key] for key in ACTIVATION_KEYS if isinstance(config.get(key), str)]
        name = str(named[0]) if named else _USUAL.get(str(config.get("model_type")), "gelu")
        if name in GELU_OF_SEVERAL:
            half = self._pointwise("aten.mul.Tensor", x, 0.5)
            cubed = self._pointwise("aten.pow.Tensor_Scalar", x, 3.0)
            bent = self._add(x, self._pointwise("aten.mul.Tensor", cubed, 0.044715))
            bent = self._pointwise("aten.mul.Tensor", bent, 0.7978845608028654)
            bent = self._pointwise("aten.tanh.default", bent)
            return self._mul(half, self._pointwise("aten.add.Tensor", bent, 1.0))
        op = next((op for word, op in _ACTIVATIONS.items() if name.startswith(word)), "")
        return self._pointwise(op or _ACTIVATIONS["gelu"], x)

    def _head(self, stream: int, table: int, labels: int) -> None:
        """The final norm or transform, the projection to the vocabulary, and the loss."""
        model, head, hidden = self._model, self._model.head, self._model.hidden
        if model.architecture == Architecture.ENCODER:
            if head.bias:  # a masked language model
                stream = self._linear(stream, "head.dense", hidden, bias=True)
                stream = self._norm(self._activated(stream), "head.norm", hidden, 2)
        elif head.other_parameters:
            stream = self._norm(stream, "model.norm", hidden, head.other_parameters // hidden)
        if not head.tied:
            table = self._stored("lm_head.weight", head.outputs, hidden)
        table = self._cast(table, self._dtype)
        added = (Ref(self._parameter("lm_head.bias", head.outputs)),) if head.bias else ()
        shape = (self.batch, self._length, head.outputs)
        arguments = (Ref(stream), Ref(table), *added)
        logits = self._op("aten.linear.default", shape, *arguments, module="lm_head")
        logits = self._cast(logits, FULL)
        sizes = [self.batch * self._length, head.outputs]
        flat = self._op("aten.reshape.default", sizes, Ref(logits), sizes, dtype=FULL)
        arguments = (Ref(labels), sizes[:1])
        wanted = self._op("aten.reshape.default", sizes[:1], *arguments, dtype="int64")
        self._op("aten.cross_entropy_loss.default", (), Ref(flat), Ref(wanted), dtype=FULL)


# What the modules of a type have, where their config does not say.
_USUAL: Final = {"gpt2": "gelu_new", "llama": "silu", "mistral": "silu", "mixtral": "silu"}
_ACTIVATIONS: Final = {
    "silu": "aten.silu.default",
    "swish": "aten.silu.default",
    "swiglu": "aten.silu.default",
    "relu": "aten.relu.default",
    "gelu": "aten.gelu.default",
}


def parameters_of(graph: Graph) -> int:
    """Trained numbers of a graph."""
    return sum(node.elements for node in graph.nodes if node.op == PARAMETER)
