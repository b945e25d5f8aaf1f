"""Plans as files that training software and schedulers read.

`target` finds a target and says what of a plan it cannot express; such a plan is refused. `folder`
puts the files together, `result` reports. `software` has one module per training program,
`launchers` one per way to start it; `nearest` finds the nearest plan that a target can express.
"""
