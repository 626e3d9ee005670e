"""Bodies on executors: one suite over every kind of them, and what real processes do to them."""
