"""Megatron-LM: `importing` reads scripts and arguments, `overrides` reads YAML and overrides.

`nested` reads files of programs around it (FlagScale, NeMo, Primus) and scripts of recipes.

`override_text` recognises overrides without loading the rest, `settings` reads what logs print.
Inside, `arguments` cuts options as its parser does, `model` builds the model, `hybrid` its scans,
`layer_pattern` reads patterns of layers, `conflicts` holds the rules of its validation.
"""
