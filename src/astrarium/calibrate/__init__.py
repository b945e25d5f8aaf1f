"""Measuring a device, and learning from measurements.

`measure` times operators on a device, `fit` makes its profile, `learn` makes the profile of a
cluster from measured iterations. `standalone` measures where only torch and NumPy are installed.
"""
