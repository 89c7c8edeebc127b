"""How numbers, parts of a step and warnings are worded, everywhere alike."""
