"""Jobs for a cluster's own queue, as text: a batch script for Slurm, manifests for Kubernetes."""
