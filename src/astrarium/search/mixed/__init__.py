"""Plans on several pools, or of unequal layers: branch and bound over pipelines."""

from astrarium.search.mixed.kept_plans import KeptPlans as KeptPlans
from astrarium.search.mixed.search import PartitionSearch as PartitionSearch
from astrarium.search.mixed.space import MixedSpace as MixedSpace
