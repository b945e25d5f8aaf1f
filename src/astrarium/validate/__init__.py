"""Predictions against measurements: tables of measured iterations, and how near the model comes.

`table` reads a table, `scenario` says what a row trains, on what and how, in the words of the
project, `predictions` prices all rows, `metrics` compares.
"""
