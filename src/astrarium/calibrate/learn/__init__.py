"""Factors of a cluster, learned from measured iterations.

`measurement` and `logs` read iterations of tables and logs, and refuse those that cannot be true;
`factors` learns from the others, and `profile` keeps the result.
"""
