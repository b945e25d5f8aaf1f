"""Files of users: scripts, arguments and config files of training programs, and logs.

`detect.read_config` reads any of them. `settings` is the common ground: names and texts, as a
program prints or is given them, and what they say about model, strategy and workload. `megatron` is
a package, as Megatron has arguments, YAML, overrides and rules; `shell` reads the scripts that
start it. Other programs have a module each.
"""
