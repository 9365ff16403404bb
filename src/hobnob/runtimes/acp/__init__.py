"""Runs external harnesses as child sessions over the Agent Client Protocol (ACP)."""
