"""Jobs in an agent's workspace, written so that they can also run inside the sandbox.

These modules import only the standard library and each other: inside there is nothing else of Hobnob. Each
job inside starts a new interpreter, so they import little.
"""
