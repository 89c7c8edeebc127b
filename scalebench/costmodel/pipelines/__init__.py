"""What a pipeline's step and memory should cost: its schedule as data, carried out dry."""
