"""Plans on one pool: branch and bound over degrees, layouts and options."""

from astrarium.search.single.blocks import Block as Block
from astrarium.search.single.blocks import DegreeRows as DegreeRows
from astrarium.search.single.engine import Search as Search
