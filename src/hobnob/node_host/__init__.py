"""The node host: this machine as a node of a gateway elsewhere.

`link` is the connection, and a client to copy: it needs nothing of the rest. `commands` is what is offered.
"""
