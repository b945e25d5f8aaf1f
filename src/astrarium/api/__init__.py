"""What can be asked, from Python or the command line: values in, the same documents out.

`calls` holds the functions of the package, `astrarium.plan` and others, `plans` what they return.
`planning` answers the question of a plan, for them and for `astrarium plan`; `request`, `money` and
`comparison` make workloads, clusters and prices of texts. Modules here import little, and the rest
when it is needed: they are part of the start of every command.
"""
