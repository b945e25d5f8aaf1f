"""Imported once, before workers are forked: a question fills all caches that they share.

It is the example that the page opens with, whose answer the workers then have; and what it leaves
behind is what most edits of it ask for.
"""

from __future__ import annotations

import gc

from astrarium.web import answers, example, worker

work = worker.work  # what the workers run

example.keep(answers.learn(example.EXAMPLE).content)
gc.freeze()  # the copies leave what is there alone, and so do not copy its pages
