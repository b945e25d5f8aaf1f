"""Measuring a device, and learning from what was measured.

`measure` times operators on a device, `fit` makes the profile of the device from their times, and
`learn` makes the profile of a cluster from measured iterations. `standalone` measures where only
torch and NumPy are installed.
"""
