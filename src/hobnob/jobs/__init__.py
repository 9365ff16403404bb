"""Scheduled jobs: the verbs of every surface, the jobs of the settings, and the scheduler."""
