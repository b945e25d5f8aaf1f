"""Learns a few factors of a cluster from measured iterations.

`measurement`, `logs` and `log_settings` read iterations of tables and logs; `factors` learns from
those that pass `checks`, and `profile` keeps the result. Inside, `regression` is the arithmetic.
"""
