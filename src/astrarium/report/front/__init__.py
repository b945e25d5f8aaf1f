"""The front of time against money: `points` read from a document, as a `table`, as `files`.

`points` has the axes, too. `table` plots with characters; `picture` is the SVG.
"""
