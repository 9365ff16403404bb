"""Nodes: who they are, what they offer, and the commands and messages between them and the gateway."""
