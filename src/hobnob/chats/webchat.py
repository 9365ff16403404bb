"""Webchat: the gateway's own chat, for the web page, the command line and WebSocket clients.

A message is published as an event to current subscribers. The stored delivery stays readable later.
"""

from __future__ import annotations

from hobnob.delivery_routes import WEBCHAT
from hobnob.events import WebchatMessage
from hobnob.hub import Hub
from hobnob.types import Delivery


class Webchat:
    """It takes whole deliveries, without parts: nothing limits their length."""

    name = WEBCHAT

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def post(self, delivery: Delivery) -> str:
        self._hub.publish_live(WebchatMessage(delivery.session_key, delivery))
        return delivery.delivery_id
