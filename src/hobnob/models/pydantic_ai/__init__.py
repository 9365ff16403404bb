"""Models of providers without a wire format of ours, through the optional package pydantic-ai."""

from __future__ import annotations

API = "pydantic-ai"
