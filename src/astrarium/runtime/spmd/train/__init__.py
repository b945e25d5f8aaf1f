"""Training with a program: steps, optimizers, rows, checkpoints."""

from astrarium.runtime.spmd.train.checkpoint import Reader as Reader
from astrarium.runtime.spmd.train.checkpoint import reassemble as reassemble
from astrarium.runtime.spmd.train.checkpoint import set_groups as set_groups
from astrarium.runtime.spmd.train.optimizers import Make as Make
from astrarium.runtime.spmd.train.trainer import HowTrained as HowTrained
from astrarium.runtime.spmd.train.trainer import Trainer as Trainer
from astrarium.runtime.spmd.train.trainer import device_of as device_of
from astrarium.runtime.spmd.train.trainer import start_trainer as start_trainer
from astrarium.runtime.spmd.train.training import Recipe as Recipe
from astrarium.runtime.spmd.train.training import Step as Step
from astrarium.runtime.spmd.train.training import Training as Training
