"""Running jobs: a plan on a cluster that changes, slows down, breaks, or is spread over sites.

`change` applies what happened to a cluster, `state` says which bytes change place, `neighbours`
makes plans near a running one, `replan` decides. `stragglers` is about GPUs that are slow or
broken, `traces` and `simulate` about capacity over time, `sites` about data centres far apart.
"""
