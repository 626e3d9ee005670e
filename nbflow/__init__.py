"""Durable workflows for notebooks: kill the kernel at any moment, run the cell again, and the pipeline goes on."""
