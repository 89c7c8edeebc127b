"""Dumps of collectives: torch.distributed's flight recorder and NCCL Inspector.

They tell what a job that hangs was doing, and what bandwidth each collective reached.
"""
