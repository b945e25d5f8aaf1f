"""Plans as what training software and schedulers read: one file per target.

A target says in data what it cannot express. A plan that asks for it is refused with the reason,
never written differently.
"""
