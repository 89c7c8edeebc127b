"""How a rank takes times: the loop, its rounds, traces and clocks."""
