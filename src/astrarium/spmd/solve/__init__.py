"""The cheapest program of a problem that is numbers alone: A* and bounds."""

from astrarium.spmd.solve.blocks import CountedPrices as CountedPrices
from astrarium.spmd.solve.problem import Conversions as Conversions
from astrarium.spmd.solve.problem import Effort as Effort
from astrarium.spmd.solve.problem import NodeWay as NodeWay
from astrarium.spmd.solve.problem import SearchProblem as SearchProblem
from astrarium.spmd.solve.problem import Solution as Solution
from astrarium.spmd.solve.quiet import without_library_output as without_library_output
from astrarium.spmd.solve.search import NoRoomError as NoRoomError
from astrarium.spmd.solve.search import cheapest as cheapest
from astrarium.spmd.solve.search import solve as solve
