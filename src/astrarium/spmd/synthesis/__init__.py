"""Programs for graphs on devices: search and ratios in turn, meshes, baselines."""

from astrarium.spmd.synthesis.alternatives import Alternatives as Alternatives
from astrarium.spmd.synthesis.alternatives import Attempt as Attempt
from astrarium.spmd.synthesis.alternatives import fastest_of as fastest_of
from astrarium.spmd.synthesis.alternatives import leanest as leanest
from astrarium.spmd.synthesis.alternatives import simplest as simplest
from astrarium.spmd.synthesis.baselines import as_run as as_run
from astrarium.spmd.synthesis.baselines import space_of as space_of
from astrarium.spmd.synthesis.synthesis import synthesize as synthesize
