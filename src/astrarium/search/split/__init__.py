"""One pipeline: where its stages lie, which layers they hold, what it takes at least.

Both searches use these modules, and nothing outside `astrarium.search` does:

- `arrangements`, `straddling`: stages on the GPUs of pools;
- `cases`, `contents`: pipelines on chosen GPUs, as the cost model prices their stages;
- `partition` (with `split_bounds`, `bottleneck`, `labels`): the best cuts with one chunk per rank;
- `dealing`, `dealing_bounds`: layers dealt to several chunks per rank, and what it takes at least;
- `pipeline_bounds`: what pipelines take at least, before anything is priced;
- `recutting`: plans of unequal layers with the best cuts for their degrees.
"""
