"""The database behind the store: transactions, SQL statements, and the SQLite engine."""
