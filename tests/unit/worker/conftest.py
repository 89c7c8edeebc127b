"""Tensors of unit tests are small: one thread for each of them.

Where several workers of pytest share the cores, threads that wait for one another take thirty
times as long as one.
"""

import torch

torch.set_num_threads(1)
