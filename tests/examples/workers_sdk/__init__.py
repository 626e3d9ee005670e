"""Classes as they are written for Cloudflare's Python SDK; `test_workers_sdk.py` changes their import lines, nothing else."""
