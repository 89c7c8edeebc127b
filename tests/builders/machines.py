"""What a good machine says of itself."""

GPU = {"index": 0, "name": "A GPU", "memory_bytes": 80e9}
FACTS = {
    "torch": "2.13.0+cu130",
    "cuda": "13.0",
    "backends": ["gloo", "nccl"],
    "devices": [GPU, GPU],
    "cgroup_cpus": None,
    "variables": {},
}
CONDITIONS = {
    "cpu_busy_share": 0.02,
    "busiest": None,
    "memory_available_bytes": 64e9,
    "swap_used_bytes": 0,
    "shm_bytes": 8 << 30,
    "no_loopback": None,
    "open_files_limit": 4096,
    "cpu_governor": "performance",
    "compiler": "/usr/bin/g++",
    "sched_batch": True,
    "cpu_clock_hz": 2.3e9,
    "links": {"lo": {"bit_per_s": None, "mtu_bytes": 65536}},
}
