"""How long tests wait for what should happen at once."""

PATIENCE_S = 100.0
"""Only what hangs takes so long, however busy the machine is. pytest ends a test at 120 s."""
