"""Models of other providers, through the optional package pydantic-ai."""

from __future__ import annotations

API = "pydantic-ai"
