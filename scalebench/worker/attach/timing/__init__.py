"""When the steps of a script count: the schedule, and how ranks agree on it."""
