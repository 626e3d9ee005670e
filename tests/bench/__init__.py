"""The budgets, measured side by side: `python -m tests.bench`. Prints; asserts nothing."""
