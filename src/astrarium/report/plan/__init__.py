"""A plan as document and as text.

`document` turns the result of a search into a document, `text` prints it. `fit` and `imported`
answer "will it fit?" and "what does my configuration mean?". `compare`, `run`, `sensitivity` and
`stages` are sections that other reports show as well.
"""
