"""Models of providers that no module of `formats` supports, through the optional package pydantic-ai."""

from __future__ import annotations

API = "pydantic-ai"
