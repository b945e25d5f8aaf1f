"""Documents, tables and explanations for people and programs. Never searches.

Each package or module has one subject: `plan`, the `front` of time against money, `explain`, the
`timeline` of an iteration, the HTML `page`, the `catalog`, measured `runs`, a `program`, the
`validation` of predictions. They share `tables` and `wording`.
"""
