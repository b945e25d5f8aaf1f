"""Makes the profile of a device from the rows of its journal.

`profile` writes and reads it, and applies it to cores. Inside, `factors` and `laws` compare
measured rows with the cost model.
"""
