"""Models as lists of blocks, and where they come from."""

from __future__ import annotations

from astrarium.model.blocks import Attention as Attention
from astrarium.model.blocks import Block as Block
from astrarium.model.blocks import CustomBlock as CustomBlock
from astrarium.model.blocks import Embedding as Embedding
from astrarium.model.blocks import Head as Head
from astrarium.model.blocks import LayerTiming as LayerTiming
from astrarium.model.blocks import Linear as Linear
from astrarium.model.blocks import Model as Model
from astrarium.model.blocks import Module as Module
from astrarium.model.blocks import Norm as Norm
from astrarium.model.blocks import Split as Split
from astrarium.model.build import Architecture as Architecture
from astrarium.model.load import load_model as load_model
from astrarium.model.load import model_of_entry as model_of_entry
