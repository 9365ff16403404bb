"""Verbs on chats: messages that came in, senders who were let in, threads of sub-agents."""
