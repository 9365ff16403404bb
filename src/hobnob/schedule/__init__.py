"""Runs of scheduled jobs: how a run starts, how it ends, and what follows."""
