"""The tools of a gateway by group, as the tests expect them."""

TOOL_GROUPS = {
    "group:sessions": {
        "agents_list",
        "agents_wait",
        "session_status",
        "sessions_history",
        "sessions_list",
        "sessions_search",
        "sessions_send",
        "sessions_spawn",
        "sessions_yield",
        "subagents",
    },
    "group:fs": {"read", "write", "edit", "ls", "grep"},
    "group:runtime": {"exec", "process"},
    "group:web": {"web_fetch"},
    "group:messaging": {"message"},
    "group:automation": {"cron"},
    "group:nodes": {"nodes"},
}
SESSION_TOOLS = TOOL_GROUPS["group:sessions"]
CALLABLE_BY_CLIENTS = {
    "agents_list",
    "session_status",
    "sessions_history",
    "sessions_list",
    "sessions_search",
    "subagents",
    "read",
    "ls",
    "grep",
    "web_fetch",
}
