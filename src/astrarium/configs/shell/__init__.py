"""Shell scripts: `launch` finds the command that trains, `expansion` fills variables in.

Inside, `words` and `syntax` parse a script into `nodes`, `script` follows them (with `builtins`,
`conditions`, `arithmetic`), and `merging` joins the two ways of a condition that is not known.
"""
