"""Makes a plan small enough for a few processes: `job`, and `shapes` of models.

Inside, `small` chooses the sizes.
"""
