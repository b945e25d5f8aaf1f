"""The questions of Python and the command line: values in, the same documents out.

`flags` is the table of flags, `readers` turn what was given into values, `asked` holds them.
`calls` has the functions of the package, `astrarium.plan` and others, `plans` what they return.
`planning` answers the question of a plan; `request`, `money` and `comparison` make workloads,
clusters and prices of the flags. Modules that every command loads import little.
"""
