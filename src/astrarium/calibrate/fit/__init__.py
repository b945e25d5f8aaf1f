"""Makes the profile of a device from the rows of its journal.

`profile` writes and reads it, `processor` applies it to cores. Inside, `factors`, `links` and
`laws` compare measured rows with the cost model.
"""
