"""Prices of programs on devices: seconds and bytes, instruction by instruction."""

from astrarium.spmd.price.cut import Cut as Cut
from astrarium.spmd.price.cut import Keys as Keys
from astrarium.spmd.price.cut import axis_of_layout as axis_of_layout
from astrarium.spmd.price.cut import cut_of as cut_of
from astrarium.spmd.price.cut import keys_of as keys_of
from astrarium.spmd.price.devices import Devices as Devices
from astrarium.spmd.price.devices import devices_of as devices_of
from astrarium.spmd.price.memory import ALONE as ALONE
from astrarium.spmd.price.memory import chunks_of as chunks_of
from astrarium.spmd.price.memory import recomputed as recomputed
from astrarium.spmd.price.messages import bucket_elements as bucket_elements
from astrarium.spmd.price.messages import exchange_seconds as exchange_seconds
from astrarium.spmd.price.pricing import Pricer as Pricer
from astrarium.spmd.price.pricing import Prices as Prices
from astrarium.spmd.price.pricing import PriceSettings as PriceSettings
from astrarium.spmd.price.programs import MemoryUse as MemoryUse
from astrarium.spmd.price.programs import ProgramPrice as ProgramPrice
from astrarium.spmd.price.programs import document_of as document_of
from astrarium.spmd.price.programs import price_program as price_program
from astrarium.spmd.price.programs import with_price as with_price
