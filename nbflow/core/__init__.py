"""The pure core: decisions from history alone."""
