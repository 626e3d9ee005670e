"""Recorded histories: what was written once must be read, and replayed, for ever."""
