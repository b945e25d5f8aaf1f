"""What users already have: scripts, arguments and config files of training programs, and logs.

`settings` is the common ground: names and texts, as a program prints or is given them, and what
they say about model, strategy and workload. `megatron`, `torchtitan` and `nanotron` read settings;
`script`, `arguments`, `deepspeed` and others read files. `detect.read_config` does all of it.
"""
