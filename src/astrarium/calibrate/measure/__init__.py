"""Times the operators of a device and keeps every result in a journal.

`device` runs a whole calibration: `sections` lists its cases, `run` measures those that the
`journal` lacks. Inside, `cases` are plain data, `kernels` and `collectives` run them through
torch, and `bench` times them. `cores` are the devices of a processor.
"""
