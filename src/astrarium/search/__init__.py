"""From a workload and a cluster to ranked plans."""
