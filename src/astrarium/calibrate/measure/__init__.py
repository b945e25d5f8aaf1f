"""Times the operators of a device and keeps every result in a journal.

`device` runs a whole calibration: `sections` lists its cases, `run` measures those that the
`journal` lacks. `cores` are the devices of a processor. These modules are for everyone; inside,
`cases*` say what is run (plain data), `kernels*` and `collectives` run it through torch, and
`bench` times it. Only these three import torch.
"""
