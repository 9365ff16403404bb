"""Verbs on the secrets that the gateways of a PostgreSQL database share. The values are encrypted."""

from __future__ import annotations

from collections.abc import Mapping

from hobnob.store.engine.tx import Tx


def stored(tx: Tx) -> dict[str, str]:
    """The encrypted secrets by name; none in a database that an older version has made."""
    if not tx.value("secrets_table_exists"):
        return {}
    return {name: value for name, value in tx.rows("secrets_stored")}


def store_missing(tx: Tx, encrypted: Mapping[str, str]) -> dict[str, str]:
    """Store those that are not there yet. Returns all: another gateway may have been first."""
    for name, value in sorted(encrypted.items()):
        tx.run("secret_insert", name=name, value=value)
    return stored(tx)


def delete_all(tx: Tx) -> int:
    """Delete all of them. Returns how many there were."""
    return tx.run("secrets_delete") if tx.value("secrets_table_exists") else 0
