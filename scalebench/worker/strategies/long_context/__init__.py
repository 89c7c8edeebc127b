"""What context parallel training is made of: zigzag order, blocks of attention, ring, Ulysses."""
