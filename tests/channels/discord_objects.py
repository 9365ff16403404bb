"""Objects of Discord's API, with every field that its libraries need, and answers of its REST API."""

import json
import time
from typing import Any

from aiohttp import web

BOT_ID = "1100000000000000001"
GUILD_ID = "1200000000000000001"
ROOM_ID = "1300000000000000001"
FORUM_ID = "1300000000000000002"
BOT_ROLE_ID = "1400000000000000001"


def rate_limited(after_s: float, scope: str = "user") -> web.Response:
    body = {"message": "You are being rate limited.", "retry_after": after_s, "global": scope == "global"}
    headers = {
        "Retry-After": str(int(after_s) + 1),
        "X-RateLimit-Scope": scope,
        "X-RateLimit-Bucket": "b0b0messages",
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Reset-After": f"{after_s:.3f}",
        "Via": "1.1 fake",
    }
    if scope == "global":
        headers["X-RateLimit-Global"] = "true"
    return answer(body, status=429, headers=headers)


def answer(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """An answer whose content type is exactly `application/json`, as that of Discord."""
    data = json.dumps(body).encode()
    return web.Response(status=status, body=data, content_type="application/json", headers=headers)


async def body(request: web.Request) -> dict[str, Any]:
    return await request.json() if request.content_type == "application/json" else {}


def refusal(status: int, code: int, message: str) -> web.Response:
    return answer({"message": message, "code": code}, status=status)


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000000+00:00", time.gmtime())


def user(user_id: str, name: str, *, bot: bool = False) -> dict[str, Any]:
    return {
        "id": user_id,
        "username": name,
        "discriminator": "0",
        "global_name": None if bot else name.capitalize(),
        "avatar": None,
        "bot": bot,
        "public_flags": 0,
    }


def channel(channel_id: str, kind: int, name: str) -> dict[str, Any]:
    return {
        "id": channel_id,
        "type": kind,
        "name": name,
        "position": 0,
        "permission_overwrites": [],
        "topic": None,
        "nsfw": False,
        "last_message_id": None,
        "rate_limit_per_user": 0,
        "parent_id": None,
        "flags": 0,
    } | (
        {"available_tags": [], "default_reaction_emoji": None, "default_sort_order": None}
        if kind == 15
        else {}
    )


def roles() -> list[dict[str, Any]]:
    common = {
        "color": 0,
        "hoist": False,
        "mentionable": True,
        "flags": 0,
        "icon": None,
        "unicode_emoji": None,
    }
    colors = {"primary_color": 0, "secondary_color": None, "tertiary_color": None}
    everyone = {"id": GUILD_ID, "name": "@everyone", "permissions": "8", "position": 0, "managed": False}
    own = {"id": BOT_ROLE_ID, "name": "hobnob", "permissions": "8", "position": 1, "managed": True}
    return [
        {**common, "colors": colors, **everyone},
        {**common, "colors": colors, **own, "tags": {"bot_id": BOT_ID}},
    ]


def own_user(user: dict[str, Any]) -> dict[str, Any]:
    """A user as the user itself sees it."""
    return user | {"verified": True, "mfa_enabled": False, "email": None, "flags": 0, "locale": "en-US"}


def application(owner: dict[str, Any], flags: int) -> dict[str, Any]:
    return {
        "id": BOT_ID,
        "name": "hobnob",
        "icon": None,
        "description": "",
        "summary": "",
        "bot_public": False,
        "bot_require_code_grant": False,
        "verify_key": "0" * 64,
        "flags": flags,
        "owner": owner,
        "team": None,
    }


def message(message_id: str, channel_id: str, author: dict[str, Any], content: str) -> dict[str, Any]:
    return {
        "id": message_id,
        "type": 0,
        "channel_id": channel_id,
        "author": author,
        "content": content,
        "timestamp": now(),
        "edited_timestamp": None,
        "tts": False,
        "mention_everyone": False,
        "embeds": [],
        "reactions": [],
        "pinned": False,
        "components": [],
    }


def thread(thread_id: str, name: str, parent: str, owner: str, kind: int, minutes: int) -> dict[str, Any]:
    state = {
        "archived": False,
        "auto_archive_duration": minutes,
        "archive_timestamp": now(),
        "locked": False,
        "create_timestamp": now(),
    }
    return {
        "id": thread_id,
        "guild_id": GUILD_ID,
        "parent_id": parent,
        "owner_id": owner,
        "name": name,
        "type": kind,
        "message_count": 0,
        "member_count": 1,
        "rate_limit_per_user": 0,
        "last_message_id": None,
        "thread_metadata": state,
    }


def member(user: dict[str, Any], nick: str | None, roles: list[str]) -> dict[str, Any]:
    return {
        "user": user,
        "nick": nick,
        "roles": roles,
        "joined_at": "2026-01-01T00:00:00+00:00",
        "deaf": False,
        "mute": False,
        "flags": 0,
    }


def guild(owner_id: str, chats: list[dict[str, Any]], members: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": GUILD_ID,
        "name": "Test",
        "icon": None,
        "splash": None,
        "discovery_splash": None,
        "description": None,
        "banner": None,
        "owner_id": owner_id,
        "application_id": None,
        "afk_channel_id": None,
        "widget_enabled": False,
        "widget_channel_id": None,
        "system_channel_id": None,
        "rules_channel_id": None,
        "public_updates_channel_id": None,
        "vanity_url_code": None,
        "premium_subscription_count": 0,
        "max_members": 250_000,
        "afk_timeout": 300,
        "verification_level": 0,
        "default_message_notifications": 0,
        "explicit_content_filter": 0,
        "mfa_level": 0,
        "nsfw_level": 0,
        "premium_tier": 0,
        "premium_progress_bar_enabled": False,
        "preferred_locale": "en-US",
        "system_channel_flags": 0,
        "safety_alerts_channel_id": None,
        "features": [],
        "emojis": [],
        "stickers": [],
        "roles": roles(),
        "channels": [chat for chat in chats if chat["type"] not in (10, 11, 12)],
        "threads": [chat for chat in chats if chat["type"] in (10, 11, 12)],
        "members": members,
        "member_count": len(members),
        "joined_at": "2026-01-01T00:00:00+00:00",
        "large": False,
        "unavailable": False,
        "voice_states": [],
        "presences": [],
        "stage_instances": [],
        "guild_scheduled_events": [],
        "soundboard_sounds": [],
    }
