"""What ranks and the machine leave: raw readings, as they were measured."""
