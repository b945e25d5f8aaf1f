"""Shell scripts: `launch` finds the command that trains, `expansion` fills variables in.

Inside, `lexer` and `syntax` parse a script into `nodes`, `script` follows them (with `builtins`,
`conditions`, `arithmetic`).
"""
