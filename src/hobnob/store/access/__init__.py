"""Store verbs on credentials that the gateway issues."""
