"""Checks of what only reads: keys, list, history, visibility."""

from __future__ import annotations

from typing import Any

from hobnob.contract.client import Row
from hobnob.contract.registry import Gateway, check, require

HELPER, OUTSIDER = "agent:helper:main", "agent:outsider:main"
BAD_KEYS = ("", "agent::x", "agent:", "agent:main:../../etc", "k" * 600, "a\nb")


async def visit(gateway: Gateway, *keys: str) -> None:
    """Make sure that the main sessions of some agents exist."""
    for key in keys:
        await gateway.client.use("session_status", key)


def by_key(listed: Row) -> dict[str, Row]:
    return {row["key"]: row for row in listed["sessions"]}


@check("Keys")
async def own_main_is_main(gateway: Gateway) -> None:
    """The caller's own main session is shown as `main`, of the kind `main`; another's by its full key."""
    await visit(gateway, "main", HELPER)
    rows = by_key(await gateway.client.use("sessions_list"))
    require("main" in rows, "no row with the key main", sorted(rows))
    require(rows["main"]["kind"] == "main", "the kind of main", rows["main"]["kind"])
    require(HELPER in rows, f"no row {HELPER}", sorted(rows))
    require(rows[HELPER]["kind"] == "main", f"the kind of {HELPER}", rows[HELPER]["kind"])


@check("Keys")
async def main_is_of_the_caller(gateway: Gateway) -> None:
    """`main` means the main session of the calling agent, whoever that is."""
    await visit(gateway, "main", HELPER)
    own = await gateway.client.use("session_status", "main", sessionKey="main")
    other = await gateway.client.use("session_status", HELPER, sessionKey="main")
    require(own.get("sessionId") != other.get("sessionId"), "two agents have the same main session", own)


@check("Keys")
async def reserved_keys_are_never_listed(gateway: Gateway) -> None:
    """`global` and `unknown` are never listed."""
    rows = by_key(await gateway.client.use("sessions_list", limit=200))
    require(not {"global", "unknown"} & set(rows), "a reserved key is listed", sorted(rows))


@check("Keys")
async def a_session_id_names_its_session(gateway: Gateway) -> None:
    """A `sessionId` is accepted in the place of a key."""
    await visit(gateway, "main")
    row = by_key(await gateway.client.use("sessions_list"))["main"]
    found = await gateway.client.use("sessions_history", sessionKey=row["sessionId"])
    require("messages" in found, "history by sessionId", found)


@check("Keys")
async def bad_keys_are_refused(gateway: Gateway) -> None:
    """Keys outside the grammar are refused, and nothing breaks."""
    for key in BAD_KEYS:
        found = await gateway.client.use("sessions_history", sessionKey=key)
        require(found.get("status") in ("error", "forbidden"), f"the key {key[:20]!r} is accepted", found)


@check("sessions_list")
async def newest_first(gateway: Gateway) -> None:
    """Rows are ordered by `updatedAt`, the newest first."""
    await visit(gateway, "main", HELPER)
    times = [row["updatedAt"] for row in (await gateway.client.use("sessions_list"))["sessions"]]
    require(times == sorted(times, reverse=True), "the order of updatedAt", times)


@check("sessions_list")
async def limits_are_clamped(gateway: Gateway) -> None:
    """A limit out of range is clamped to 1…200, not refused."""
    await visit(gateway, "main", HELPER)
    least = await gateway.client.use("sessions_list", limit=0)
    require(least.get("count") == 1, "limit 0 gives one row", least.get("count", least))
    most = await gateway.client.use("sessions_list", limit=100_000)
    require(1 <= most.get("count", 0) <= 200, "limit 100000 gives at most 200 rows", most.get("count"))


@check("sessions_list")
async def pages_cover_all_rows_once(gateway: Gateway) -> None:
    """`nextCursor` leads through all rows, each once."""
    await visit(gateway, "main", HELPER, "agent:mute:main")
    whole = set(by_key(await gateway.client.use("sessions_list", limit=200)))
    seen: list[str] = []
    cursor: Any = None
    for _ in range(len(whole) + 2):
        more = {"cursor": cursor} if cursor else {}
        page = await gateway.client.use("sessions_list", limit=1, **more)
        seen += by_key(page)
        cursor = page.get("nextCursor")
        require(bool(page.get("hasMore")) == bool(cursor), "hasMore and nextCursor agree", page)
        if not cursor:
            break
    require(len(seen) == len(set(seen)), "a row comes twice", seen)
    require(set(seen) == whole, "rows of all pages", sorted(whole ^ set(seen)))


@check("sessions_list")
async def kinds_filter(gateway: Gateway) -> None:
    """`kinds` keeps only rows of these kinds."""
    await visit(gateway, "main")
    found = await gateway.client.use("sessions_list", kinds=["cron"])
    require(all(row["kind"] == "cron" for row in found["sessions"]), "other kinds are listed", found)


@check("sessions_list")
async def unknown_parameters_are_refused(gateway: Gateway) -> None:
    """An unknown parameter and an unknown kind are refused, with the right name in the message."""
    for wrong in ({"limits": 3}, {"kinds": ["mian"]}):
        found = await gateway.client.use("sessions_list", **wrong)
        require(found.get("status") in ("error", "forbidden"), f"{wrong} is accepted", found)
    require("limit" in str((await gateway.client.use("sessions_list", limits=3)).get("error")), "the hint")


@check("Visibility")
async def sessions_of_other_agents_need_permission(gateway: Gateway) -> None:
    """A session of an agent that may not be reached is refused as `forbidden`, with a code and a fix."""
    await visit(gateway, OUTSIDER)
    for tool in ("sessions_history", "session_status"):
        found = await gateway.client.use(tool, sessionKey=OUTSIDER)
        require(found.get("status") == "forbidden", f"{tool} of {OUTSIDER}", found)
        require(found.get("code"), "the refusal has no code", found)


@check("Visibility")
async def invisible_looks_like_unknown(gateway: Gateway) -> None:
    """An invisible session gets the same refusal as one that does not exist."""
    await visit(gateway, OUTSIDER)
    there = await gateway.client.use("sessions_history", sessionKey=OUTSIDER)
    unknown = await gateway.client.use("sessions_history", sessionKey="agent:outsider:hook:none")
    require(
        (there.get("status"), there.get("code")) == (unknown.get("status"), unknown.get("code")),
        "the two refusals differ",
        [there, unknown],
    )


@check("Visibility")
async def invisible_sessions_are_not_listed(gateway: Gateway) -> None:
    """An invisible session is neither listed nor counted."""
    await visit(gateway, "main", OUTSIDER)
    found = await gateway.client.use("sessions_list", limit=200)
    require(OUTSIDER not in by_key(found), f"{OUTSIDER} is listed", sorted(by_key(found)))
    require(found["count"] == len(found["sessions"]), "count is not the number of rows", found["count"])
