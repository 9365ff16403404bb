"""Nodes at the network: how they sign in."""
