"""External harnesses, run as child sessions over the Agent Client Protocol."""
