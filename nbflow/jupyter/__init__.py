"""The notebook: magics, panel, display."""
