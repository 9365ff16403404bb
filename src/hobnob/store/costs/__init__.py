"""What model calls cost, and budgets."""
