"""From the records of a run to its summary: pure functions over what is stored."""
