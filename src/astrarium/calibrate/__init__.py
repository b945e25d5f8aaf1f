"""Measuring a device, and learning from what was measured.

`cases*` say what is run (pure data), `kernels*` how torch runs it, `bench` times it, `journal`
keeps every result as soon as it is there, `run` puts these together. `fit` compares a journal's
rows with the operator model, and `profile` keeps rows and factors in one file.

`logs*` and `learn_table` read measured iterations, `learn*` fits a few factors of a cluster to
them, and `learn_profile` keeps those.

Only `bench`, `kernels*` and `collectives` import torch. What measures (`python -m
astrarium.calibrate.standalone`) needs torch, NumPy and the standard library alone, so that it
can run where nothing else is installed.
"""
