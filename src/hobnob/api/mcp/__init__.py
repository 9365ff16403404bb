"""The MCP server at `/mcp`: the session tools for MCP clients, each bound to one session by a grant.

`access` identifies the caller, `calls` runs tools as its session, `endpoint` receives requests. `server`
imports the package `mcp`, which is optional and slow to import: it is imported at the first request.
"""
