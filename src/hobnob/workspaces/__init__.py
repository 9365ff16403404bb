"""The workspaces of agents: the service the gateway uses, and the code that runs inside the sandbox.

This file imports nothing: it is also imported inside the sandbox, where only the standard library exists.
"""
