"""Workspaces of agents: `service` for the gateway, `guest` for the code that runs inside the sandbox.

This file imports nothing: it is also imported inside the sandbox, where only the standard library exists.
"""
