"""The front of time against money: `points` read from a document, as a `table`, as `files`.

Inside, `axes` scale both plots: `plot` draws with characters, `picture` with the shapes of
`drawing`, which become SVG or PNG.
"""
