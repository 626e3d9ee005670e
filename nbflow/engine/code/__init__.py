"""The code of steps: what is recorded of it, and what has changed since (S56, S57)."""
