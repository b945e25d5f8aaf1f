"""Shell scripts: `launch` finds the command that trains, `expansion` fills variables in.

Inside, `syntax` splits a script into words and `script` follows its variables.
"""
