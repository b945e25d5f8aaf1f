"""Plans as files that training software and schedulers read.

`target` finds a target and says what of a plan it cannot express: such a plan is refused with the
reason, never written differently. `folder` puts the files together, `result` says what was done.
`software` holds one module for each training program, `launchers` one for each way to start it;
`nearest` looks for the nearest plan that a target can express.
"""
