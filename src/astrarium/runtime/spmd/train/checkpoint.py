"""Checkpoints of programs: every rank writes its own pieces, any other program can read them.

A checkpoint is a folder in the format of `torch.distributed.checkpoint`: `model.NAME` is a tensor
of the module's state dict, `optimizer.state.NAME.KEY` a state of the optimizer, `trainer` what is
not divided, `random.RANK` torch's random numbers of a rank. `astrarium.json` names the writer and
describes each file. A folder is written under another name first, so it is always complete.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import Tensor, distributed
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from astrarium.errors import InputError
from astrarium.runtime.spmd.execute import Peers
from astrarium.runtime.spmd.train import boxes
from astrarium.runtime.spmd.train.boxes import Boxes, Content, stored_boxes
from astrarium.runtime.spmd.train.training import Training
from astrarium.spmd.graph import Node

SCHEMA: Final = "astrarium.checkpoint/2"
MANIFEST: Final = "astrarium.json"
BEFORE: Final = "manifest.json"  # of astrarium.checkpoint/1
STATE_DICT: Final = "state_dict.pt"
MODEL, OPTIMIZER, STATE, TRAINER, RANDOM = "model", "optimizer", "state", "trainer", "random"
# Of an optimizer's groups: what they hold, and how it is computed on the device at hand.
NOT_SETTINGS: Final = (
    "params", "param_names", "foreach", "fused", "capturable", "differentiable",
)  # fmt: skip
CHUNK_BYTES: Final = 1 << 22


class Stateful(Protocol):
    """Another part of a checkpoint, such as a schedule of learning rates."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> object: ...


NOTHING: Final[Mapping[str, Stateful]] = {}
NO_ALIASES: Final[Mapping[str, str]] = {}
NO_TENSORS: Final[Mapping[str, Tensor]] = {}


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file of a checkpoint: its size and sum."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    step: int
    optimizer: str
    aliases: dict[str, str]  # other names of parameters in the state dict: tied weights
    files: tuple[FilePart, ...]


def save(
    folder: Path,
    training: Training,
    rest: Mapping[str, Tensor],
    aliases: Mapping[str, str] = NO_ALIASES,
    others: Mapping[str, Stateful] = NOTHING,
) -> None:
    """Write a checkpoint, all ranks together, into a folder that all of them see.

    `rest` are buffers by name, of which those of the training have its values; `aliases` are
    other names of parameters.
    """
    everyone = training.interpreter.place.everyone
    _check_replaceable(folder)
    unfinished = folder.with_name(folder.name + ".unfinished")
    if everyone.index == 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
    _meet(everyone)
    now = {name: training.buffers.get(name, value) for name, value in rest.items()}
    kept = {n: training.optimizer.state.get(x, {}) for n, x in training.parameters.items()}
    model, optimizer = _model(training, now), _optimizer(training, kept)
    content = {**model, **optimizer, **_rest_of(training, others)}
    boxes.write(unfinished, content, everyone.group, everyone.count == 1)
    files = _of_all(everyone, _own_files(unfinished, everyone.index))
    if everyone.index == 0:
        _check_shared(unfinished, files)
        kind = type(training.optimizer).__name__
        manifest = Manifest(training.steps_done, kind, dict(aliases), tuple(files))
        text = json.dumps({"schema": SCHEMA, **asdict(manifest)}, indent=1)
        (unfinished / MANIFEST).write_text(text)
        _on_disk(unfinished / MANIFEST)
        _on_disk(unfinished)
        _put_in_place(unfinished, folder)
    _meet(everyone)


def _check_replaceable(folder: Path) -> None:
    """A checkpoint takes the place of another, or of nothing."""
    if folder.exists() and not (folder / MANIFEST).is_file():
        found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else ["a file"]
        if found:
            raise InputError(
                f"{folder} holds something else than a checkpoint ({found[0]}); name another folder"
            )


def _nodes(training: Training) -> dict[int, Node]:
    nodes = training.interpreter.program.graph.nodes
    return {node: nodes[node] for node in training.parameters}


def _boxes_of(training: Training, node: int, tensor: Tensor) -> Boxes:
    interpreter = training.interpreter
    one = interpreter.program.graph.nodes[node]
    return stored_boxes(one, interpreter.own_piece(node), tensor)


def _model(training: Training, rest: Mapping[str, Tensor]) -> Content:
    """This rank's pieces of parameters, and everything else of the state dict."""
    content: Content = {(MODEL, name): Boxes.whole(tensor) for name, tensor in rest.items()}
    for node, one in _nodes(training).items():
        content[MODEL, one.target] = _boxes_of(training, node, training.parameters[node])
    return content


def _optimizer(training: Training, kept: Mapping[int, Mapping[str, Any]]) -> Content:
    """States of the optimizer for this rank's pieces, by node and key."""
    return {
        (OPTIMIZER, STATE, one.target, key): (
            _boxes_of(training, node, value) if isinstance(value, Tensor) else value
        )
        for node, one in _nodes(training).items()
        for key, value in kept[node].items()
    }


def _rest_of(training: Training, others: Mapping[str, Stateful]) -> Content:
    """Facts that are the same on all ranks, and their random numbers."""
    settings = {
        # Another program may divide a batch into more or fewer micro-batches.
        "batches": training.passes_done // training.interpreter.program.micro_batches,
        "groups": [_settings(group) for group in training.optimizer.param_groups],
        "scaler": None if training.scaler is None else training.scaler.state_dict(),
        "others": {name: one.state_dict() for name, one in others.items()},
    }
    _check_plain(settings)
    rank = training.interpreter.place.rank
    return {(TRAINER,): settings, (RANDOM, str(rank)): Boxes.whole(torch.get_rng_state())}


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in NOT_SETTINGS}


def _check_plain(settings: Mapping[str, Any]) -> None:
    """Refuse what could not be read again: no code is run when a checkpoint is read."""
    file = io.BytesIO()
    try:
        torch.save(settings, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as error:
        words = str(error).strip().splitlines()[0]
        raise InputError(
            "the optimizer's settings, or what else is to be saved, hold more than numbers, texts"
            f" and tensors: {words}"
        ) from error


def _meet(everyone: Peers) -> None:
    if everyone.count > 1:
        distributed.barrier(everyone.group)


def _own_files(folder: Path, rank: int) -> list[FilePart]:
    """The files that a rank wrote; the first also wrote torch's table of contents."""
    patterns = (f"__{rank}_*.distcp", *([".metadata"] if rank == 0 else []))
    paths = (path for pattern in patterns for path in sorted(folder.glob(pattern)))
    return [FilePart(path.name, path.stat().st_size, _sum(path)) for path in paths]


def _sum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _of_all(everyone: Peers, own: list[Any]) -> list[Any]:
    """Lists of all ranks, one after the other."""
    if everyone.count == 1:
        return own
    found: list[Any] = [None] * everyone.count
    distributed.all_gather_object(found, own, group=everyone.group)
    return [item for items in found for item in items]


def _check_shared(folder: Path, files: list[FilePart]) -> None:
    for part in files:
        if not (folder / part.name).is_file():
            raise InputError(
                f"{folder / part.name} was written by another rank but is not here; give a folder"
                " that all hosts share"
            )


def _put_in_place(unfinished: Path, folder: Path) -> None:
    """Rename, also where an older checkpoint has the name."""
    older = _older(folder)
    if folder.exists():
        shutil.rmtree(older, ignore_errors=True)
        folder.rename(older)
    unfinished.rename(folder)
    _on_disk(folder.parent)
    shutil.rmtree(older, ignore_errors=True)


def _on_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, would outlast a loss of power."""
    opened = os.open(path, os.O_RDONLY)
    os.fsync(opened)
    os.close(opened)


def _older(folder: Path) -> Path:
    return folder.with_name(folder.name + ".older")


class Reader:
    """A checkpoint, read by this process alone or as one of several ranks."""

    def __init__(self, folder: Path, everyone: Peers | None = None) -> None:
        # A process that ended between two renamings left the checkpoint before under this name.
        self.folder = folder if folder.exists() or not _older(folder).exists() else _older(folder)
        self.everyone = everyone or Peers()
        self.manifest = read_manifest(self.folder)
        self._check_content()
        self._known = boxes.metadata_of(self.folder).state_dict_metadata
        self._kept: dict[str, list[str]] = {}  # what the optimizer kept of each parameter
        start = f"{OPTIMIZER}.{STATE}."
        for name in self._known:
            if name.startswith(start):
                parameter, _, key = name.removeprefix(start).rpartition(".")
                self._kept.setdefault(parameter, []).append(key)

    def _check_content(self) -> None:
        """Look at all files, each rank at some of them: all must be what was written."""
        own = self.manifest.files[self.everyone.index :: self.everyone.count]
        wrong = [part.name for part in own if _sum(self.folder / part.name) != part.sha256]
        for name in _of_all(self.everyone, wrong):
            raise InputError(
                f"{self.folder / name} is damaged: its content is not what was written"
            )

    def read(self, content: Content) -> Content:
        return boxes.read(self.folder, content, self.everyone.group, alone=self.everyone.count == 1)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors of the state dict, without second names."""
        start = f"{MODEL}."
        return {
            name.removeprefix(start): tuple(known.size)
            for name, known in self._known.items()
            if name.startswith(start)
        }

    def known(self, *path: str) -> Any:  # noqa: ANN401  of torch
        """The metadata of a tensor, or None where there is none."""
        return self._known.get(boxes.JOINT.join(path))

    def kept(self, parameter: str) -> list[str]:
        """States of the optimizer for a parameter, by key."""
        return self._kept.get(parameter, [])

    def trainer(self) -> dict[str, Any]:
        """Facts that are not divided: counts, settings of the optimizer, and objects given."""
        found: dict[str, Any] = self.read({(TRAINER,): None})[TRAINER,]
        return found

    def state_dict(self) -> dict[str, Tensor]:
        state = {name: boxes.empty_like(self.known(MODEL, name)) for name in self.shapes}
        self.read({(MODEL, name): Boxes.whole(tensor) for name, tensor in state.items()})
        for name, target in self.manifest.aliases.items():
            state[name] = state[target]
        return state

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        """States of the optimizer for whole parameters."""
        content: Content = {}
        found: dict[str, dict[str, Any]] = {}
        for name in self.shapes:
            for key in self.kept(name):
                known = self.known(OPTIMIZER, STATE, name, key)
                if isinstance(known, TensorStorageMetadata):
                    tensor = boxes.empty_like(known)
                    found.setdefault(name, {})[key] = tensor
                    content[OPTIMIZER, STATE, name, key] = Boxes.whole(tensor)
                else:
                    content[OPTIMIZER, STATE, name, key] = None
        for (_, _, name, key), value in self.read(content).items():
            found.setdefault(name, {})[key] = value
        return found


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint; InputError if it is none or not whole."""
    import msgspec

    path = folder / MANIFEST
    if not path.is_file():
        raise InputError(f"{folder} is no checkpoint{_why_none(folder)}")
    try:
        data = json.loads(path.read_text())
        schema = data.get("schema")
        if schema != SCHEMA:
            raise InputError(f"{path} is of schema {schema!r}; this reads {SCHEMA}")
        manifest = msgspec.convert(data, Manifest)
    except (ValueError, AttributeError, msgspec.ValidationError) as problem:
        if isinstance(problem, InputError):
            raise
        raise InputError(f"{path} is damaged: {problem}") from problem
    for part in manifest.files:
        _check_there(folder / part.name, part)
    return manifest


def _why_none(folder: Path) -> str:
    if not folder.is_dir():
        return ": it is a file, not a folder" if folder.exists() else ": there is no such folder"
    if (folder / BEFORE).is_file():
        return f" of {SCHEMA}: its {BEFORE} is of an earlier release; go on with that"
    if (folder / ".metadata").is_file():
        return (
            f": torch can read it, but it has no {MANIFEST}; load its weights into the module, and"
            " make a trainer of that"
        )
    return f": it has no {MANIFEST}"


def _check_there(path: Path, part: FilePart) -> None:
    if not path.is_file():
        raise InputError(f"{path} is missing: the checkpoint is not whole; copy all of its files")
    if path.stat().st_size != part.bytes:
        raise InputError(
            f"{path} has {path.stat().st_size} bytes instead of {part.bytes}: it is damaged"
        )


def load(
    folder: Path,
    training: Training,
    rest: Mapping[str, Tensor] = NO_TENSORS,
    others: Mapping[str, Stateful] = NOTHING,
) -> None:
    """Go on from a checkpoint, with this rank's pieces; `rest` is that of `save`, and is filled."""
    reader = Reader(folder, training.interpreter.place.everyone)
    _check_optimizer(reader, training)
    held = {**rest, **training.buffers}
    _check_model(reader, training, held)
    # Buffers that are not kept have no place there: `persistent=False`.
    model = _model(training, {name: x for name, x in held.items() if name in reader.shapes})
    kept = {node: _room(reader, training, node) for node in training.parameters}
    random = _random(training, reader)
    found = reader.read({**model, **_optimizer(training, kept), **random, (TRAINER,): None})
    for node, one in _nodes(training).items():
        for key in kept[node]:
            kept[node][key] = found.get((OPTIMIZER, STATE, one.target, key), kept[node][key])
        piece = training.parameters[node]
        if kept[node]:
            training.optimizer.state[piece] = kept[node]
        else:  # written before the first step
            training.optimizer.state.pop(piece, None)
    for numbers in random.values():
        torch.set_rng_state(numbers.parts[0][1])
    training.steps_done = reader.manifest.step
    _restore(folder, training, found[TRAINER,], others)


def _check_optimizer(reader: Reader, training: Training) -> None:
    kind, before = type(training.optimizer).__name__, reader.manifest.optimizer
    if kind != before:
        raise InputError(
            f"{reader.folder} was trained with {before}, not {kind}; go on with the same optimizer"
        )


def _check_model(reader: Reader, training: Training, held: Mapping[str, Tensor]) -> None:
    """Refuse a checkpoint that lacks a parameter, has others, or has them in another shape."""
    own = {name: tuple(x.shape) for name, x in held.items()}
    trained = {node.target: node.stored_shape for node in _nodes(training).values()}
    for name in sorted(trained.keys() - reader.shapes.keys()):
        raise InputError(f"{reader.folder} holds no parameter {name!r}; it is of another model")
    for name, shape in reader.shapes.items():
        expected = {**own, **trained}.get(name)
        if expected is None:
            raise InputError(
                f"{reader.folder} holds {name!r}, which the module has not; it is of another model"
            )
        if shape != expected:
            raise InputError(
                f"{reader.folder} holds {name!r} of shape {shape}, not of {expected}; it is of"
                " another model"
            )
    _check_formats(reader, training, held)


def _check_formats(reader: Reader, training: Training, held: Mapping[str, Tensor]) -> None:
    """Refuse numbers of another format: the optimizer's would not go with the parameters."""
    pieces = {node.target: training.parameters[at] for at, node in _nodes(training).items()}
    for name, tensor in {**held, **pieces}.items():
        known = reader.known(MODEL, name)
        if isinstance(known, TensorStorageMetadata) and known.properties.dtype != tensor.dtype:
            raise InputError(
                f"{reader.folder} holds {name!r} in {known.properties.dtype}, not in"
                f" {tensor.dtype}; go on with a module of the same format"
            )


def _room(reader: Reader, training: Training, node: int) -> dict[str, Any]:
    """Memory for what the optimizer kept of this rank's piece of a parameter."""
    piece = training.parameters[node]
    found: dict[str, Any] = {}
    name = training.interpreter.program.graph.nodes[node].target
    for key in reader.kept(name) if piece.numel() else ():
        known = reader.known(OPTIMIZER, STATE, name, key)
        found[key] = None
        if isinstance(known, TensorStorageMetadata):
            is_whole = len(known.size) == 0 and piece.dim() > 0
            shape = () if is_whole else piece.shape
            # Counts of steps stay where most optimizers want them: on the processor.
            device = piece.device if not is_whole or _counts_there(training, piece) else "cpu"
            found[key] = torch.empty(shape, dtype=known.properties.dtype, device=device)
    return found


def _counts_there(training: Training, piece: Tensor) -> bool:
    """Whether the optimizer counts steps of a parameter on its device."""
    return any(
        group.get("fused") or group.get("capturable")
        for group in training.optimizer.param_groups
        if any(piece is one for one in group["params"])
    )


def _random(training: Training, reader: Reader) -> dict[tuple[str, ...], Boxes]:
    """Room for torch's random numbers, where as many ranks wrote theirs."""
    rank, count = training.interpreter.place.rank, reader.everyone.count
    last, after = (reader.known(RANDOM, str(number)) for number in (count - 1, count))
    if last is None or after is not None:
        return {}
    return {(RANDOM, str(rank)): Boxes.whole(torch.empty_like(torch.get_rng_state()))}


def _restore(
    folder: Path, training: Training, settings: Mapping[str, Any], others: Mapping[str, Stateful]
) -> None:
    """Counts, settings of the optimizer's groups, and what else was given to `save`."""
    training.passes_done = settings["batches"] * training.interpreter.program.micro_batches
    set_groups(training.optimizer, settings["groups"], folder)
    if training.scaler is not None and settings["scaler"] is not None:
        training.scaler.load_state_dict(settings["scaler"])
    for name, one in others.items():
        if name not in settings["others"]:
            known = ", ".join(settings["others"]) or "nothing"
            raise InputError(f"{folder} holds no {name!r}; beside the model it holds {known}")
        one.load_state_dict(settings["others"][name])


def set_groups(
    optimizer: torch.optim.Optimizer, settings: Sequence[Mapping[str, Any]], folder: Path
) -> None:
    """Let an optimizer's groups have the settings that they had."""
    if len(settings) != len(optimizer.param_groups):
        raise InputError(
            f"{folder} was trained with {len(settings)} groups of parameters, and the optimizer has"
            f" {len(optimizer.param_groups)}; make it with the same groups"
        )
    for group, before in zip(optimizer.param_groups, settings, strict=True):
        group.update(before)


def reassemble(folder: Path) -> Path:
    """Write the plain state dict of a checkpoint beside its pieces."""
    path = folder / STATE_DICT
    unfinished = path.with_suffix(".unfinished")
    torch.save(Reader(folder).state_dict(), unfinished)
    unfinished.rename(path)
    return path
