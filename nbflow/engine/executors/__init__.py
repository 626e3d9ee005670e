"""Bodies elsewhere: local processes, pools, a Dask cluster (API.md §7)."""
