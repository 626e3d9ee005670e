"""The history on disk; the only importer of duckdb."""
