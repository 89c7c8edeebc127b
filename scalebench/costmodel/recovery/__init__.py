"""How often to save, and what share of the time trains: formulas, and a simulation to test them."""
