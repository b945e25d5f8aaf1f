"""Execution of a program on one rank: actions, messages, the order of both."""

from astrarium.runtime.spmd.execute.actions import Compute as Compute
from astrarium.runtime.spmd.execute.actions import Gradients as Gradients
from astrarium.runtime.spmd.execute.actions import Pass as Pass
from astrarium.runtime.spmd.execute.collectives import Parts as Parts
from astrarium.runtime.spmd.execute.collectives import Peers as Peers
from astrarium.runtime.spmd.execute.collectives import all_gather as all_gather
from astrarium.runtime.spmd.execute.collectives import all_reduce as all_reduce
from astrarium.runtime.spmd.execute.interpreter import Interpreter as Interpreter
from astrarium.runtime.spmd.execute.interpreter import RankContext as RankContext
from astrarium.runtime.spmd.execute.pieces import Cutter as Cutter
from astrarium.runtime.spmd.execute.pieces import Piece as Piece
from astrarium.runtime.spmd.execute.pieces import RankPlace as RankPlace
from astrarium.runtime.spmd.execute.pieces import take_place as take_place
