"""The web page and its REST API: `astrarium serve`.

A thin shell over `astrarium.api`, as the command line is: `flags` reads requests, `answers` makes
documents of them in worker processes (`worker`, `jobs`), `app` joins these to routes, `guard` keeps
strangers out. What comes back is what `--json` prints.
"""
