"""What a training step computes: nodes, operators, repeated layers. Needs no torch."""

from astrarium.spmd.graph.graph import ATTENTION as ATTENTION
from astrarium.spmd.graph.graph import CONSTANT as CONSTANT
from astrarium.spmd.graph.graph import DROPPING as DROPPING
from astrarium.spmd.graph.graph import DTYPE_BYTES as DTYPE_BYTES
from astrarium.spmd.graph.graph import GETITEM as GETITEM
from astrarium.spmd.graph.graph import INPUT as INPUT
from astrarium.spmd.graph.graph import KEEP as KEEP
from astrarium.spmd.graph.graph import PARAMETER as PARAMETER
from astrarium.spmd.graph.graph import RANDOM as RANDOM
from astrarium.spmd.graph.graph import RECURRENT as RECURRENT
from astrarium.spmd.graph.graph import SOURCES as SOURCES
from astrarium.spmd.graph.graph import Graph as Graph
from astrarium.spmd.graph.graph import Node as Node
from astrarium.spmd.graph.graph import Ref as Ref
from astrarium.spmd.graph.graph import chance as chance
from astrarium.spmd.graph.graph import draws as draws
from astrarium.spmd.graph.graph import find_blocks as find_blocks
from astrarium.spmd.graph.graph import kept_state as kept_state
from astrarium.spmd.graph.graph import mapped as mapped
from astrarium.spmd.graph.graph import with_refs as with_refs
