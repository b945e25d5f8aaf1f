"""Checkpoints of programs: every rank writes its own pieces, any other program can read them.

A checkpoint is a folder: `manifest.json` says which file holds which box of which parameter, and
what each file must look like. It is written under another name first, so that a folder with the
right name is always complete. Pieces that several ranks hold are written by the first of them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, distributed

from astrarium.errors import InputError
from astrarium.runtime.spmd.pieces import Piece
from astrarium.runtime.spmd.training import Training
from astrarium.spmd.graph import Node

SCHEMA: Final = "astrarium.checkpoint/1"
MANIFEST: Final = "manifest.json"
REST: Final = "rest.pt"  # buffers: what the state dict has beside parameters
STATE_DICT: Final = "state_dict.pt"
CHUNK_BYTES: Final = 1 << 22

Content = dict[str, dict[str, Tensor]]  # of a file: by parameter, "value" and the optimizer's


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file of a checkpoint: its size and sum, and the boxes it holds by parameter."""

    name: str
    bytes: int
    sha256: str
    pieces: dict[str, Piece] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint holds."""

    step: int
    optimizer: str
    shapes: dict[str, tuple[int, ...]]  # of whole parameters, as boxes are counted in them
    aliases: dict[str, str]  # other names of parameters in the state dict: tied weights
    files: tuple[FilePart, ...]
    # Of parameters that have another shape in the state dict.
    stored: dict[str, tuple[int, ...]] = field(default_factory=dict)


def save(
    folder: Path,
    training: Training,
    rest: Mapping[str, Tensor],
    aliases: Mapping[str, str],
) -> None:
    """Write a checkpoint, all ranks together, into a folder that all of them see.

    `rest` are buffers by name, of which those of the training have its values; `aliases` are
    further names of parameters.
    """
    place = training.interpreter.place
    unfinished = folder.with_name(folder.name + ".unfinished")
    if place.rank == 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
    _meet(training)
    own = _write_own(unfinished, training)
    files = _of_all(training, own)
    if place.rank == 0:
        now = {name: training.buffers.get(name, value).cpu() for name, value in rest.items()}
        torch.save(now, unfinished / REST)
        files.append(_described(unfinished / REST, {}))
        nodes = training.interpreter.program.graph.nodes
        held = [nodes[node] for node in training.parameters]
        manifest = Manifest(
            training.steps_done,
            training.recipe.optimizer,
            {node.target: node.shape for node in held},
            dict(aliases),
            tuple(files),
            {node.target: node.stored_shape for node in held if node.stored_shape != node.shape},
        )
        for part in files:
            if not (unfinished / part.name).is_file():
                raise InputError(
                    f"{unfinished / part.name} was written by another rank but is not here; give a"
                    " folder that all hosts share"
                )
        text = json.dumps({"schema": SCHEMA, **asdict(manifest)}, indent=1)
        (unfinished / MANIFEST).write_text(text)
        _put_in_place(unfinished, folder)
    _meet(training)


def _meet(training: Training) -> None:
    everyone = training.interpreter.place.everyone
    if everyone.count > 1:
        distributed.barrier(everyone.group)


def _write_own(folder: Path, training: Training) -> FilePart:
    interpreter = training.interpreter
    content: Content = {}
    pieces: dict[str, Piece] = {}
    for node, value in training.parameters.items():
        if value.numel() and interpreter.counts_here(node):
            target = interpreter.program.graph.nodes[node].target
            tensors = {"value": value, **training.state_of(node)}
            content[target] = {key: tensor.detach().cpu() for key, tensor in tensors.items()}
            pieces[target] = interpreter.own_piece(node)
    path = folder / f"rank-{interpreter.place.rank:05d}.pt"
    torch.save(content, path)
    return _described(path, pieces)


def _described(path: Path, pieces: dict[str, Piece]) -> FilePart:
    return FilePart(path.name, path.stat().st_size, _sum(path), pieces)


def _sum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _of_all(training: Training, own: FilePart) -> list[FilePart]:
    everyone = training.interpreter.place.everyone
    if everyone.count == 1:
        return [own]
    found: list[Any] = [None] * everyone.count
    distributed.all_gather_object(found, own, group=everyone.group)
    return found


def _put_in_place(unfinished: Path, folder: Path) -> None:
    """Rename, also where an older checkpoint has the name."""
    older = folder.with_name(folder.name + ".older")
    shutil.rmtree(older, ignore_errors=True)
    if folder.exists():
        folder.rename(older)
    unfinished.rename(folder)
    shutil.rmtree(older, ignore_errors=True)


def read_manifest(folder: Path) -> Manifest:
    """What a checkpoint says it holds; InputError if it is none or not whole."""
    import msgspec

    path = folder / MANIFEST
    if not path.is_file():
        raise InputError(f"{folder} is no checkpoint: it has no {MANIFEST}")
    try:
        data = json.loads(path.read_text())
        manifest = msgspec.convert(data, Manifest)
    except (ValueError, msgspec.ValidationError) as problem:
        raise InputError(f"{path} is damaged: {problem}") from problem
    if data.get("schema") != SCHEMA:
        raise InputError(f"{path} is of schema {data.get('schema')!r}; this reads {SCHEMA}")
    for part in manifest.files:
        _check_there(folder / part.name, part)
    return manifest


def _check_there(path: Path, part: FilePart) -> None:
    if not path.is_file():
        raise InputError(f"{path} is missing: the checkpoint is not whole; copy all of its files")
    if path.stat().st_size != part.bytes:
        raise InputError(
            f"{path} has {path.stat().st_size} bytes instead of {part.bytes}: it is damaged"
        )


class Reader:
    """Boxes of a checkpoint's parameters, whatever boxes its files hold."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.manifest = folder, read_manifest(folder)
        self._opened: dict[str, Any] = {}

    def _open(self, part: FilePart) -> Any:  # noqa: ANN401  what the file holds
        """The content of a file, which stays on disk until it is used."""
        if part.name not in self._opened:
            path = self.folder / part.name
            if _sum(path) != part.sha256:
                raise InputError(f"{path} is damaged: its content is not what was written")
            self._opened[part.name] = torch.load(
                path, map_location="cpu", weights_only=True, mmap=True
            )
        return self._opened[part.name]

    def parameter(self, name: str, wanted: Piece) -> dict[str, Tensor]:
        """A box of a parameter, "value" and what the optimizer kept of it."""
        if name not in self.manifest.shapes:
            raise InputError(f"{self.folder} holds no parameter {name!r}; it is of another model")
        found: dict[str, Tensor] = {}
        filled = 0
        for part in self.manifest.files:
            piece = part.pieces.get(name)
            common = None if piece is None else piece.common(wanted)
            if piece is None or common is None:
                continue
            for key, tensor in self._open(part)[name].items():
                if tensor.dim() == 0:  # the optimizer's count of steps
                    found[key] = tensor
                    continue
                whole = found.setdefault(key, tensor.new_zeros(wanted.sizes))
                whole[common.inside(wanted).slices] = tensor[common.inside(piece).slices]
            filled += common.elements
        if filled != wanted.elements:
            raise InputError(
                f"{self.folder} holds {filled} of {wanted.elements} numbers of {name!r}: it is not"
                " whole"
            )
        return found

    def state_dict(self) -> dict[str, Tensor]:
        """The plain state dict of the module."""
        state = {name: tensor.clone() for name, tensor in self.rest().items()}
        for name in self.manifest.shapes:
            state[name] = self._whole(name)["value"]
        for name, target in self.manifest.aliases.items():
            state[name] = state[target]
        return state

    def optimizer_state(self) -> dict[str, dict[str, Tensor]]:
        """What the optimizer kept of whole parameters."""
        found = {}
        for name in self.manifest.shapes:
            content = self._whole(name)
            found[name] = {key: value for key, value in content.items() if key != "value"}
        return found

    def _whole(self, name: str) -> dict[str, Tensor]:
        """A parameter as the state dict has it, "value" and what the optimizer kept of it."""
        shape = self.manifest.shapes[name]
        return _reshaped(
            self.parameter(name, Piece((0,) * len(shape), shape)),
            self.manifest.stored.get(name, shape),
        )

    def piece_of(self, node: Node, piece: Piece) -> dict[str, Tensor]:
        """A box of a parameter that may have had another shape in the program that wrote it."""
        name = node.target
        if self.manifest.shapes.get(name, node.shape) == node.shape:
            return self.parameter(name, piece)
        if self.manifest.stored.get(name, self.manifest.shapes[name]) != node.stored_shape:
            raise InputError(
                f"{self.folder} holds {name!r} of shape {self.manifest.shapes[name]}, not of"
                f" {node.stored_shape}; it is of another model"
            )
        whole = _reshaped(self._whole(name), node.shape)
        return {key: piece.of(x) if x.dim() else x for key, x in whole.items()}

    def rest(self) -> dict[str, Tensor]:
        """Buffers, and whatever else the state dict has beside trained parameters."""
        part = next(part for part in self.manifest.files if part.name == REST)
        rest: dict[str, Tensor] = self._open(part)
        return rest


def _reshaped(content: dict[str, Tensor], shape: tuple[int, ...]) -> dict[str, Tensor]:
    """All but the optimizer's count of steps, which has no shape."""
    return {key: x.reshape(shape) if x.dim() else x for key, x in content.items()}


def load(folder: Path, training: Training) -> None:
    """Give a training the parameters and the optimizer of a checkpoint, this rank's pieces."""
    reader = Reader(folder)
    if reader.manifest.optimizer != training.recipe.optimizer:
        raise InputError(
            f"{folder} was trained with {reader.manifest.optimizer}, not"
            f" {training.recipe.optimizer}; go on with the same optimizer"
        )
    interpreter = training.interpreter
    nodes = interpreter.program.graph.nodes
    for node, value in training.parameters.items():
        if not value.numel():
            continue
        kept = reader.piece_of(nodes[node], interpreter.own_piece(node))
        value.copy_(kept.pop("value"))
        training.set_state(node, kept)
    rest = reader.rest()
    for name, buffer in training.buffers.items():
        if name in rest:  # not all are kept: `persistent=False`
            buffer.copy_(rest[name])
    training.steps_done = reader.manifest.step


def reassemble(folder: Path) -> Path:
    """Write the plain state dict of a checkpoint beside its pieces."""
    path = folder / STATE_DICT
    unfinished = path.with_suffix(".unfinished")
    torch.save(Reader(folder).state_dict(), unfinished)
    unfinished.rename(path)
    return path
