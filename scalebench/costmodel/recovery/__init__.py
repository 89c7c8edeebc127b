"""How often to save, and what share of the time trains: formulas."""
