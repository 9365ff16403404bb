"""Text of chats: long answers in parts, and Markdown converted to the markup of each platform."""

from hobnob.channels.text.markup import (
    matrix_html,
    plain_text,
    slack_text,
    telegram_html,
    telegram_length,
    whatsapp_text,
)
from hobnob.channels.text.parts import split

__all__ = [
    "matrix_html",
    "plain_text",
    "slack_text",
    "split",
    "telegram_html",
    "telegram_length",
    "whatsapp_text",
]
