"""The wire formats of model providers, one module each."""
