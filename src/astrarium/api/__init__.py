"""What can be asked, from Python or the command line: values in, the same documents out.

`flags` is the table of all that can be given, `readers` make values of it, `asked` holds them.
`calls` has the functions of the package, `astrarium.plan` and others, `plans` what they return.
`planning` answers the question of a plan; `request`, `money` and `comparison` make workloads,
clusters and prices of what was asked. Modules here import little, and the rest when it is needed:
they are part of the start of every command.
"""
