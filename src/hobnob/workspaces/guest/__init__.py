"""Work in an agent's workspace, in the form in which it can also be done inside the sandbox.

These modules know nothing but the standard library and each other: inside there is nothing else of Hobnob.
They are imported anew for each piece of work there, so they import little.
"""
