"""Small logs in NCCL's format: each says where a public log of this version and kind stands.

Written for the tests: hosts, addresses, pointers and most lines are our own.
"""

import re

_TOPOLOGY = """
=== System : maxBw 48.0 totalBw 370.8 ===
CPU/0 (1/1/2)
+ PCI[48.0] - PCI/16000 (1000c0301000100b)
              + PCI[48.0] - GPU/18000 (0)
                            + NVL[370.8] - NVS/0
              + PCI[48.0] - NIC/19000
                            + NET[50.0] - NET/3 (aa24210003bd70c4/1/50.000000)
+ PCI[48.0] - GPU/38000 (1)
              + NVL[370.8] - NVS/0
+ SYS[10.0] - CPU/1
==========================================
GPU/18000 :GPU/18000 (0/5000.000000/LOC) GPU/38000 (2/370.800000/NVL) CPU/0 (2/24.0/PHB)
"""


def log(text: str, host: str = "a", pid: int = 100) -> str:
    """Put NCCL's prefix before lines; ``@b2 `` before a line: of host b, device 2."""
    lines = []
    for line in text.strip("\n").splitlines():
        found = re.match(r"@([a-z]+)(\d) (.*)", line)
        at, device, said = found.groups() if found else (host, "0", line)
        number = pid + int(device)
        lines.append(f"{at}:{number}:{number + 50} [{device}] NCCL INFO {said}")
    return "\n".join(lines) + "\n"


LOGS = {
    # NCCL 2.4.8, https://github.com/espnet/espnet/issues/1940
    "2.4 sockets": "NCCL version 2.4.8+cuda10.0\n"
    + log(
        """
Bootstrap : Using [0]eth0:10.0.0.4<0>
NCCL_IB_DISABLE set by environment to 1.
NET/Socket : Using [0]eth0:10.0.0.4<0>
CUDA Dev 6[6], Socket NIC distance :  PHB
Channel 00 :    0   1
Ring 00 : 1 -> 0 [receive] via NET/Socket/0
NET/Socket: Using 1 threads and 1 sockets per thread
Ring 00 : 0 -> 1 [send] via NET/Socket/0
comm 0x7f6 rank 0 nranks 2 cudaDev 0 nvmlDev 6 - Init COMPLETE
"""
    ),
    # NCCL 2.7.8, https://github.com/pytorch/pytorch/issues/68893
    "2.7 veth": log(
        """
Bootstrap : Using [0]ens5:10.0.0.1<0> [1]veth75f:fe80::14ad%veth75f<0>
NET/Socket : Using [0]ens5:10.0.0.1<0> [1]veth75f:fe80::14ad%veth75f<0>
Using network Socket
NCCL version 2.7.8+cuda11.1
Channel 00/04 :    0   1
Channel 00 : 1[1e0] -> 0[1e0] [receive] via NET/Socket/0
Channel 01 : 1[1e0] -> 0[1e0] [receive] via NET/Socket/1
Channel 00 : 0[1e0] -> 1[1e0] [send] via NET/Socket/0
comm 0x7f6 rank 0 nranks 2 cudaDev 0 busId 1e0 - Init COMPLETE
"""
    ),
    # NCCL 2.3.7, https://github.com/horovod/horovod/issues/584
    "2.3 refused": log(
        """
NET : Using interface lo:127.0.0.1<0>
NET : Using interface eth0:10.0.0.5<0>
NET/Socket : 2 interfaces found
comm 0x7fc rank 0 nranks 4
"""
    )
    + "a:100:150 [0] include/socket.h:361 NCCL WARN Call to connect timeout : Connection refused\n",
    # NCCL 2.17.1, https://github.com/NVIDIA/nccl/issues/1053
    "2.17 loopback": log(
        """
NCCL version 2.17.1+cuda12.1
NET/Socket : Using [0]lo:127.0.0.1<0>
Using network Socket
NET/Socket : GPU Direct RDMA Disabled for HCA 0 'lo'
Channel 00/0 : 0[7000] -> 1[7000] [send] via NET/Socket/0
@b0 NET/Socket : Using [0]lo:127.0.0.1<0>
@b0 Channel 00/0 : 0[7000] -> 1[7000] [receive] via NET/Socket/0
Connected all rings
"""
    ),
    # NCCL 2.18.3, https://github.com/NVIDIA/nccl/issues/952
    "2.18 no device": log(
        """
NET/IB : No device found.
NET/Socket : Using [0]ens32:10.0.0.1<0> [1]ens65:10.0.1.1<0> [2]ens129:10.0.2.1<0>
Using network Socket
Channel 00/0 : 8[0] -> 15[7] via P2P/IPC/read
@a7 Channel 03/0 : 15[7] -> 6[6] [send] via NET/Socket/2
"""
    ),
    # NCCL 2.21.5, https://github.com/NVIDIA/nccl/issues/1537
    "2.21 RoCE without GDR": log(
        """
NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB bond0:10.10.10.10<0>
Using non-device net plugin version 0
Using network IB
comm 0x55c rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1c000 commId 0x65e0 - Init START
NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'
NET/IB : GPU Direct RDMA Disabled for HCA 1 'mlx5_1'
Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0
Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0
"""
    ),
    # NCCL 2.10.3, https://github.com/NVIDIA/nccl/issues/899
    "2.10 no module": log(
        """
NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE ; OOB eth0:10.0.0.1<0>
NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0' (no module)
Channel 00 : 0[1a000] -> 1[1a000] [receive] via NET/IB/0
Channel 01 : 0[1a000] -> 1[1a000] [receive] via NET/IB/0
Channel 00 : 1[1a000] -> 0[1a000] [send] via NET/IB/0
"""
    ),
    # NCCL 2.21.5, https://github.com/NVIDIA/nccl/issues/1189
    "2.21 GDR and NVLink": log(
        f"""
NET/IB : Using [0]mlx5_2:1/IB [1]mlx5_3:1/IB [RO]; OOB ibs1:10.0.0.1<0>
Using network IB
ncclCommInitRank comm 0x55c rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 18000 commId 0x6 - Init START
@a1 ncclCommInitRank comm 0x56c rank 1 nranks 4 cudaDev 1 nvmlDev 1 busId 38000 commId 0x6 - Init
{_TOPOLOGY}
Channel 00/0 : 2[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
@a1 Channel 00/0 : 1[1] -> 3[1] [send] via NET/IB/1(0)/GDRDMA
Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
@a1 Channel 01/0 : 1[1] -> 0[0] via P2P/CUMEM/read
4 coll channels, 4 collnet channels, 0 nvls channels, 4 p2p channels, 2 p2p channels per peer
Connected all rings
Connected all trees
"""
    ),
    # NCCL 2.18.3, https://github.com/NVIDIA/nccl/issues/981
    "2.18 one of two adapters": log(
        """
NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.0.0.1<0>
comm 0x1 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 31000 commId 0x6 - Init COMPLETE
@a1 comm 0x2 rank 1 nranks 4 cudaDev 1 nvmlDev 1 busId 4b000 commId 0x6 - Init COMPLETE
Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/0/GDRDMA
@a1 Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA
"""
    ),
    # RCCL of 2021 (NCCL 2.8), https://github.com/ROCm/rccl/issues/419
    "RCCL one of four adapters": "RCCL version 2.8.4+hip4.2\n"
    + log(
        "NET/IB : Using [0]mlx5_3:1/IB [1]mlx5_2:1/IB [2]mlx5_1:1/IB [3]mlx5_0:1/IB; OOB\n"
        + "\n".join(
            f"@a{n} comm 0x{n} rank {n} nranks 8 cudaDev {n} busId {n + 1}6000 - Init COMPLETE\n"
            f"@a{n} + PCI[24.0] - GPU/{n + 1}6000 ({n})\n"
            f"@a{n}               + XGMI[36.0] - GPU/{(n + 1) % 4 + 1}6000"
            for n in range(4)
        )
        + """
@a0 + PCI[24.0] - GPU/26000 (1)
Channel 00 : 7[46000] -> 0[16000] [receive] via NET/IB/2/GDRDMA
@a0 Channel 00 : 0[16000] -> 1[26000] via P2P/IPC comm 0x1
@a3 Channel 00 : 3[46000] -> 4[16000] [send] via NET/IB/2/GDRDMA
"""
    ),
    # NCCL 2.8.4, https://github.com/NVIDIA/nccl/issues/622
    "2.8 shared memory": log(
        """
Channel 00 : 2[86000] -> 3[af000] via direct shared memory
Channel 01 : 2[86000] -> 3[af000] via direct shared memory
Connected all rings
"""
    ),
    # NCCL 2.18.5, eight A6000 with four bridges: https://github.com/NVIDIA/nccl/issues/1121
    "2.18 bridges": log(
        """
NCCL version 2.18.5+cuda11.8
+ PCI[24.0] - GPU/1000 (0)
              + NVL[56.2] - GPU/25000
+ PCI[24.0] - GPU/25000 (1)
              + NVL[56.2] - GPU/1000
+ PCI[24.0] - GPU/41000 (2)
Channel 00/0 : 0[0] -> 1[1] via P2P/IPC
Channel 00 : 1[1] -> 2[2] via SHM/direct/direct
Channel 01/0 : 0[0] -> 2[2] via P2P/IPC
2 coll channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer
"""
    ),
    # NCCL 2.19.3, a pod with four GPUs: https://github.com/NVIDIA/nccl/issues/1466
    "2.19 pod": log(
        """
comm 0x56 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 7000 commId 0xb - Init START
comm 0x56 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0
Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
"""
    ),
    # NCCL 2.22.3 with NCCL_P2P_DISABLE=1; topology as in https://github.com/NVIDIA/nccl/issues/1519
    "2.22 P2P disabled": log(
        f"""
NCCL_P2P_DISABLE set by environment to 1
comm 0x55c rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 18000 commId 0x6 - Init START
{_TOPOLOGY.replace("GPU/", "GPU/0-").replace("NVS/", "NVS/0-")}
Channel 00 : 0[0] -> 1[1] via SHM/CE/CE
Channel 01 : 0[0] -> 1[1] via SHM/CE/CE
"""
    ),
    # NCCL 2.20.5, two GPUs on two sockets: https://github.com/NVIDIA/nccl/issues/1358
    "2.20 PCIe": log(
        """
CPU/0 (1/1/2)
+ PCI[24.0] - GPU/2A000 (0)
+ SYS[10.0] - CPU/2
CPU/2 (1/1/2)
+ PCI[24.0] - GPU/AB000 (1)
Pattern 4, crossNic 0, nChannels 1, bw 10.000000/10.000000, type SYS/PIX, sameChannels 1
Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer
"""
    ),
    # NCCL 2.20.5 without GRAPH: https://github.com/NVIDIA/nccl/issues/1817
    "2.20 no topology": log("Channel 01/1 : 0[0] -> 3[3] via P2P/direct pointer"),
    # NCCL 2.23 with the plugin of AWS: https://github.com/NVIDIA/nccl/issues/1597
    "2.23 Libfabric": log("Channel 05/0 : 0[0] -> 1[1] [receive] via NET/AWS Libfabric/1/GDRDMA"),
    # NCCL with a plugin for InfiniBand: https://github.com/NVIDIA/nccl/issues/1814
    "2.21 IBext": log("Channel 01/0 : 26[2] -> 33[1] [receive] via NET/IBext_v8/4"),
    # NCCL 2.20 to 2.23 name the ports of a merged adapter: src/transport/net_ib.cc, NVIDIA/nccl
    "2.21 merged": log(
        """
NET/IB : Using [0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE} [1]mlx5_2:1/RoCE [RO]; OOB eth0:10.1<0>
Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA
AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}
"""
    ),
    # NCCL 2.26 and later name it in a line of its own; format as above
    "2.27 merged": log(
        """
NET/IB : Made virtual device [0] name=mlx5_0 speed=200000 ndevs=1
NET/IB : Using [0]mlx5_0:1:2/IB [1]mlx5_1:1:3/IB [RO]; OOB eth0:10.1<0>
NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=400000 ndevs=2
Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/2/GDRDMA(PCI)/Shared
AllReduce: 4096 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}
"""
    ),
    # NCCL 2.28.9 on one H200, two ranks that call themselves hosts (NCCL_HOSTID): tried by us
    "2.28 H200": log(
        """
NCCL version 2.28.9+cuda13.0
NET/IB : No device found.
NET/IB : Using [RO]; OOB eth0:192.0.2.2<0>
Failed to initialize NET plugin IB
NET/Socket : Using [0]eth0:192.0.2.2<0>
Using network Socket
ncclCommInitRankConfig comm 0x17e rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x5 - Init
+ PCI[48.0] - GPU/0-60 (0)
comm 0x17e rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
Channel 00/02 : 0 1
2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer
Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
Channel 01/0 : 0[0] -> 1[0] [send] via NET/Socket/0
Connected all rings, use ring PXN 0 GDR 0
Channel 00/1 : 1[0] -> 0[0] [receive] via NET/Socket/0/Shared
"""
    ),
}
