"""Learns a few factors of a cluster from measured iterations.

`table`, `logs` and `log_settings` read iterations as values of `measurement`; `factors` learns from
those that pass `checks`, and `profile` keeps the result. Inside, `regression` is the arithmetic.
"""
