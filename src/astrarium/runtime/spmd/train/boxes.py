"""Pieces of tensors in torch's distributed checkpoints: any boxes are written, any others read."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from astrarium.errors import InputError
from astrarium.runtime.spmd.execute import Piece
from astrarium.spmd.graph import Node

Keys = tuple[str, ...]
Content = dict[Keys, Any]  # by the path in the nested state dict: boxes, or what is pickled
JOINT: Final = "."  # of paths, in torch's names


@dataclass(frozen=True)
class Boxes:
    """The boxes of a tensor that are here, and their memory."""

    shape: tuple[int, ...]
    parts: tuple[tuple[Piece, Tensor], ...]

    @staticmethod
    def whole(tensor: Tensor) -> Boxes:
        shape = tuple(tensor.shape)
        return Boxes(shape, ((Piece((0,) * len(shape), shape), tensor),))


def stored_boxes(node: Node, piece: Piece, tensor: Tensor) -> Boxes:
    """A piece as boxes of what the module stores, which may have a dimension less."""
    if not tensor.dim() and node.shape:  # an optimizer's count of steps
        return Boxes.whole(tensor)
    stored, used = node.stored_shape, node.shape
    if stored == used:
        return Boxes(stored, ((piece, tensor),) if tensor.numel() else ())
    at = next(dim for dim, (a, b) in enumerate(zip(stored, used, strict=False)) if a != b)
    width = used[at + 1]
    assert stored == (*used[:at], used[at] * width, *used[at + 2 :]), "one dimension is two"
    parts = []
    for number in range(piece.sizes[at] if tensor.numel() else 0):
        start = (piece.starts[at] + number) * width + piece.starts[at + 1]
        box = Piece(
            (*piece.starts[:at], start, *piece.starts[at + 2 :]),
            (*piece.sizes[:at], *piece.sizes[at + 1 :]),
        )
        parts.append((box, tensor.select(at, number)))
    return Boxes(stored, tuple(parts))


def write(folder: Path, content: Content, group: ProcessGroup | None, alone: bool) -> None:
    """Write what all ranks have; what several have is written by one of them."""
    with _quiet():
        dcp.save(
            {JOINT.join(path): value for path, value in content.items()},
            storage_writer=dcp.FileSystemWriter(folder, sync_files=True),
            planner=_Writing({JOINT.join(path): path for path in content}),
            process_group=group,
            no_dist=alone,
        )


def read(folder: Path, content: Content, group: ProcessGroup | None, alone: bool) -> Content:
    """Fill boxes from a checkpoint; what is not tensors is returned."""
    planner = _Reading()
    with _quiet():
        dcp.load(
            {JOINT.join(path): value for path, value in content.items()},
            storage_reader=dcp.FileSystemReader(folder),
            planner=planner,
            process_group=group,
            no_dist=alone,
        )
    paths = {JOINT.join(path): path for path in content}
    return {paths[name]: value for name, value in planner.objects.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch warns of processes that are alone, which they are meant to be."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def metadata_of(folder: Path) -> Metadata:
    """The metadata of a checkpoint; InputError if it cannot be read."""
    try:
        return dcp.FileSystemReader(folder).read_metadata()
    except Exception as error:
        raise InputError(f"{folder} is damaged: its .metadata cannot be read: {error}") from error


def empty_like(known: TensorStorageMetadata) -> Tensor:
    """Room for the whole of a tensor of a checkpoint."""
    return torch.empty(known.size, dtype=known.properties.dtype)


class _Writing(dcp.DefaultSavePlanner):  # type: ignore[misc]  # torch is not analysed
    """Writes boxes wherever they begin and end."""

    def __init__(self, paths: Mapping[str, Keys]) -> None:
        super().__init__()
        self.mappings = dict(paths)

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        storage_meta: Any = None,  # noqa: ANN401  of torch
        is_coordinator: bool = False,
    ) -> None:
        self.state_dict, self.is_coordinator = state_dict, is_coordinator
        self._tensors = {
            (name, piece.starts): tensor
            for name, value in state_dict.items()
            if isinstance(value, Boxes)
            for piece, tensor in value.parts
        }

    def create_local_plan(self) -> SavePlan:
        items = []
        for name, value in self.state_dict.items():
            if not isinstance(value, Boxes):
                items.append(WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO))
                continue
            for piece, tensor in value.parts:
                data = TensorWriteData(
                    _chunk(piece),
                    TensorProperties.create_from_tensor(tensor),
                    torch.Size(value.shape),
                )
                index = MetadataIndex(name, torch.Size(piece.starts))
                items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=data))
        self.plan = SavePlan(items, planner_data=self.mappings)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:  # noqa: ANN401
        if index.offset is None:
            return self.state_dict[index.fqn]
        return self._tensors[index.fqn, tuple(index.offset)].contiguous()


class _Reading(dcp.DefaultLoadPlanner):  # type: ignore[misc]  # torch is not analysed
    """Reads boxes from others; runs nothing that a file holds."""

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Any = None,  # noqa: ANN401  of torch
        is_coordinator: bool = False,
    ) -> None:
        self.state_dict, self.metadata = state_dict, metadata
        self.objects: dict[str, Any] = {}
        self._tensors: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def create_local_plan(self) -> LoadPlan:
        items = []
        for name, value in self.state_dict.items():
            known = self.metadata.state_dict_metadata[name]
            if not isinstance(value, Boxes):
                items += _bytes_of(name)
                continue
            chunks = [_chunk(piece) for piece, _ in value.parts]
            self._tensors.update({(name, p.starts): tensor for p, tensor in value.parts})
            items += create_read_items_for_chunk_list(name, known, chunks)
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self._tensors[index.fqn, tuple(index.offset)]

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.objects[read_item.dest_index.fqn] = torch.load(value, weights_only=True)


def _chunk(piece: Piece) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(piece.starts), torch.Size(piece.sizes))


def _bytes_of(name: str) -> list[ReadItem]:
    index, none = MetadataIndex(name), torch.Size((0,))
    return [ReadItem(LoadItemType.BYTE_IO, index, none, index, none, none)]
