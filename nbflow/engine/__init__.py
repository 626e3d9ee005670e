"""The shell: threads, user code, time."""
