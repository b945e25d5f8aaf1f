"""The content of a user's configuration, in a form that commands and reports can use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

from astrarium.configs.settings import Described
from astrarium.configs.values import table
from astrarium.errors import InputError, did_you_mean, in_shell
from astrarium.model.blocks import Block, Model
from astrarium.model.build import Architecture, assemble
from astrarium.value import Value

_AS_IF_SHOWN: Final = 3
MOST_LAYERS: Final = 10_000  # a larger number is a typing error
_OF_VOCABULARY: Final = ("weights", "gradients", "optimizer", "activations")
_PADDING: Final = 0.05  # of a vocabulary


class OpenQuestionError(InputError):
    """A configuration leaves open what decides; the message says how to answer.

    `variables` are those of the script that it asks for.
    """

    def __init__(
        self, message: str, part: str | None = None, variables: Iterable[str] = ()
    ) -> None:
        super().__init__(message, part)
        self.variables = tuple(dict.fromkeys(variables))


def variables_of(names: Iterable[str]) -> list[str]:
    """Variables that can be set by name: neither arguments nor outputs of commands."""
    alone = [name.partition(", by ")[0] for name in names]
    return [name for name in alone if not name.isdigit() and not name.startswith("$")]


def name_that_file() -> str:
    """The way out for a script whose settings are in a file that is not at hand."""
    return in_shell("name that file", "paste that file in its place")


def answer_for(variable: str, value: str = "VALUE") -> str:
    """The answer to a question about a variable of a script."""
    return in_shell(f"--set {variable}={value}", f"“${variable}”")


class NotTrainingError(InputError):
    """A script that trains nothing."""


class NotModelledError(InputError):
    """A training that is not modelled; the message names it."""


class Used(Value, frozen=True):
    """An option that decides something; `sets` is the field or fact it decides."""

    option: str
    value: str
    sets: str


class AsIf(Value, frozen=True):
    """An option whose effect is not modelled: what it is, what is predicted instead, and why."""

    option: str
    given: str
    assumed: str
    why: str

    @property
    def text(self) -> str:
        return f"{self.option} is {self.given}; predicted as if {self.assumed}: {self.why}"


class Fate(StrEnum):
    """The fate of an option that a program does not have."""

    IGNORED = "ignored"
    REFUSED = "refused"
    FORKED = "forked"  # refused as released; a fork may have it


class Unknown(Value, frozen=True):
    """An option that the program does not have, and what it makes of it."""

    option: str
    says: str
    fate: Fate = Fate.IGNORED


class Imported(Value, frozen=True):
    """A configuration and its options; `strategy_of` takes a number of layers and of GPUs."""

    source: str
    program: str  # with the version that it was read for
    described: Described
    strategy_of: Callable[..., dict[str, Any]]
    used: tuple[Used, ...] = ()
    neutral: tuple[str, ...] = ()
    as_if: tuple[AsIf, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    conflicts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return self.program.rpartition(" ")[0]

    @property
    def summary(self) -> tuple[str, ...]:
        """A few lines on the fate of the options."""
        counts = [f"{len(self.used)} decide", f"{len(self.neutral)} change nothing"]
        if self.unknown:
            names = ", ".join(one.option for one in self.unknown)
            counts.append(f"{len(self.unknown)} unknown: {names}")
        read = f"{self.source} read for {self.program}; of its options {', '.join(counts)}"
        more = len(self.as_if) - _AS_IF_SHOWN
        rest = [f"{more} more predicted as if; `astrarium explain` lists them"] if more > 0 else []
        shown = [one.text for one in self.as_if[:_AS_IF_SHOWN]]
        return (read, *shown, *rest, *self.notes)

    def model(self) -> Model:
        """The model that the configuration states in full, or names."""
        described = self.described
        if described.model is not None:
            from astrarium.model import load_model

            return load_model(described.model)
        if described.shape is None:
            raise OpenQuestionError(
                f"{self.source}: {described.why_no_shape}; name the model with --model", "model"
            )
        if described.shape.layers > MOST_LAYERS:
            raise InputError(
                f"{self.source}: {described.shape.layers:,} layers; at most {MOST_LAYERS:,} are"
                " read"
            )
        shape = described.shape
        if not shape.vocab and described.vocabulary:
            shape = replace(shape, vocab=described.vocabulary)
        if not shape.vocab:
            raise OpenQuestionError(
                f"{self.source}: the vocabulary is not stated; add --vocab-size ENTRIES, or name"
                " the model",
                "vocab_size",
            )
        from astrarium.configs.model_config import with_config

        model = assemble(self.source, "config", Architecture.DECODER, shape)
        return with_config(model, shape)

    def savings(self) -> dict[str, Mapping[str, tuple[float, float]]]:
        """Options that save memory and are not modelled: shares by cause, least and most."""
        shares = table("savings")
        found = {one.text: shares[one.option] for one in self.as_if if one.option in shares}
        if self.described.vocabulary_is_bound:
            bound = [one.text for one in self.as_if if one.option == "--vocab-size"]
            found |= dict.fromkeys(bound, dict.fromkeys(_OF_VOCABULARY, (0.0, 1.0)))
        return found

    def batch(self, gpus: int) -> int | None:
        """Sequences of an iteration; if only those of a replica are stated, on `gpus` GPUs."""
        described = self.described
        if described.global_batch is not None or described.batch_of_replica is None:
            return described.global_batch
        strategy = described.strategy
        replicas = gpus // max(
            strategy.get("tp", 1) * strategy.get("pp", 1) * strategy.get("cp", 1), 1
        )
        return described.batch_of_replica * max(replicas, 1)

    def disagreements(self, stated: Mapping[str, tuple[int, str]]) -> list[str]:
        """Facts of the configuration that a flag contradicts."""
        facts = {
            "gpus": ("GPU" if self.described.gpus == 1 else "GPUs", self.described.gpus),
            "seq_length": ("a sequence length of", self.described.seq_length),
            "global_batch": ("a global batch of", self.described.global_batch),
        }
        out = []
        for name, (value, who) in stated.items():
            words, own = facts[name]
            if name == "gpus" and self.described.gpus_is_default:
                continue  # the machine decides
            if own is not None and own != value:
                shown = f"{own:,} {words}" if name == "gpus" else f"{words} {own:,}"
                out.append(f"{self.source} has {shown}, but {who} says {value:,}")
        return out

    def model_disagreements(self, model: Model) -> list[str]:
        """Sizes that the configuration states and a model contradicts."""
        shape = self.described.shape
        theirs = sizes_of(model)
        own = dict(self.described.sizes)
        if shape is not None:
            own |= {
                "layers": shape.layers,
                "hidden size": shape.hidden,
                "attention heads": shape.heads,
                "key/value heads": shape.kv_heads,
                "experts": shape.experts.count if shape.experts else 0,
                "feed-forward size": shape.ffn,
                "matrices of a feed-forward part": 3 if shape.gated else 2,
            }
        found = [name for name in own if name in theirs and theirs[name] != own[name]]
        # Vocabularies are padded in one place or another.
        stated = shape.vocab if shape else own.get("entries of the vocabulary")
        own["entries of the vocabulary"] = stated or model.embedding.vocab
        theirs["entries of the vocabulary"] = model.embedding.vocab
        apart = abs(own["entries of the vocabulary"] - model.embedding.vocab)
        if apart > _PADDING * model.embedding.vocab:
            found.append("entries of the vocabulary")
        return [
            f"{self.source} has {own[name]:,} {name}, {model.name} has {theirs[name]:,}"
            for name in found
        ]


def unknown_keys(
    given: Iterable[str],
    known: Collection[str],
    says: str,
    section: str = "",
    fate: Fate = Fate.REFUSED,
) -> list[Unknown]:
    """Keys that a program does not know, with what it makes of them."""
    return [
        Unknown(f"{section}{key}", f"{says}{did_you_mean(str(key), known)}", fate)
        for key in given
        if key not in known
    ]


def sizes_of(model: Model) -> dict[str, int]:
    blocks = [kind for kind in model.kinds if isinstance(kind, Block)]
    kinds = [kind for kind in blocks if kind.attentions]
    out = {"layers": model.num_layers - model.mtp_layers, "hidden size": model.hidden}
    if kinds:
        out["attention heads"] = kinds[0].attentions[0].heads
        out["key/value heads"] = kinds[0].attentions[0].kv_heads
    out["experts"] = model.max_experts
    dense = [kind for kind in blocks if any(linear.name == "fc2" for linear in kind.linears)]
    if len({kind.gated for kind in dense}) == 1 and not out["experts"]:
        out["matrices of a feed-forward part"] = 3 if dense[0].gated else 2
        widths = {linear.inputs for linear in dense[0].linears if linear.name == "fc2"}
        out |= {"feed-forward size": widths.pop()} if len(widths) == 1 else {}
    return out
