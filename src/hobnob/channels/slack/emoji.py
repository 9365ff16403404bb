"""Slack's names of emoji. Reactions are set by name, while settings and agents write the character."""

from __future__ import annotations

import unicodedata

_NAMES = {
    "👀": "eyes", "👍": "+1", "👎": "-1", "✅": "white_check_mark", "❌": "x",
    "⏳": "hourglass_flowing_sand", "⌛": "hourglass", "🎉": "tada", "❤": "heart", "🔥": "fire",
    "🚀": "rocket", "🤔": "thinking_face", "😀": "grinning", "😄": "smile", "😂": "joy",
    "🙂": "slightly_smiling_face", "😉": "wink", "😍": "heart_eyes", "😢": "cry", "😭": "sob",
    "😡": "rage", "😱": "scream", "😅": "sweat_smile", "🙏": "pray", "👏": "clap", "👌": "ok_hand",
    "💯": "100", "⚠": "warning", "❓": "question", "❗": "exclamation", "💡": "bulb",
    "🤖": "robot_face", "🧠": "brain", "🔧": "wrench", "🛠": "hammer_and_wrench", "⚡": "zap",
    "⭐": "star", "✨": "sparkles", "💬": "speech_balloon", "✍": "writing_hand", "👋": "wave",
    "🐛": "bug", "📎": "paperclip", "🦞": "lobster", "☕": "coffee", "🙌": "raised_hands",
    "💪": "muscle", "🤝": "handshake", "🫡": "saluting_face", "🔄": "arrows_counterclockwise",
    "⏰": "alarm_clock", "🔍": "mag", "📌": "pushpin", "📝": "memo",
}  # fmt: skip


def name(emoji: str) -> str:
    """The name of an emoji: `eyes` for the character, for `:eyes:` and for `eyes`."""
    plain = emoji.strip().strip(":").replace("\ufe0f", "")
    if plain.isascii():
        return plain
    return _NAMES.get(plain) or unicodedata.name(plain[:1], "").lower().replace(" ", "_").replace("-", "_")
