"""Plans on one pool: branch and bound over degrees, layouts and options."""

from astrarium.search.single.blocks import DegreeRows as DegreeRows
from astrarium.search.single.blocks import Expanded as Expanded
from astrarium.search.single.blocks import LayoutRows as LayoutRows
from astrarium.search.single.blocks import strategy_of_row as strategy_of_row
from astrarium.search.single.engine import Search as Search
