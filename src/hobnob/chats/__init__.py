"""Chats: messages from channels become turns, deliveries go out through channels."""
