"""Hobnob: a gateway where AI agents live in sessions and talk to each other."""

__version__ = "0.1.0"
