"""`step.map`: items drawn, run, recorded and handed on (S61)."""
