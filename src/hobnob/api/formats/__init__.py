"""Formats of other APIs: OpenAI chat completions and responses."""
