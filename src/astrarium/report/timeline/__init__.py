"""One predicted iteration: as `columns` that a page draws, as a `trace` for Perfetto.

Inside, `events` runs the pipeline of a document pass by pass.
"""
