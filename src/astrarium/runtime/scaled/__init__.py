"""Makes a plan small enough for a few processes: `job`, and `shapes` of models.

Inside, `small_model` and `small_stages` choose the sizes.
"""
