"""Reads what nccl-tests printed: a cluster's existing logs as points that a link can be fitted to.

`read_log` takes the text that any 2.x version prints (alone, or inside the log of a job) and the
JSON file that newer versions write for ``-J FILE``.

Checked against nccl-tests' own source: ``src/common.cu``, ``src/util.cu`` (JSON file versions 2
and 3) and the test of each operation, in versions from 2019 (a header for each test, ``error``
column), 2022 (one header with ``redop``, ``root`` and ``#wrong``) and 2026 (``timestamp``,
``#bitdiff`` and per-iteration columns); and against published logs, which are the golden files of
the tests. Facts that a reader has to know:

- Only newer versions print the name of the test. Else it is known from the command line in the
  log, from the columns where only one operation fits, or from the caller.
- ``cputime`` is how long the call took, not the operation, while both bandwidths are still
  computed from the operation's time: no time, and no check of it.
- All-gather and reduce-scatter in early versions (logs up to 2020), and hypercube to this day,
  print the busbw in the algbw column. Here algbw is always size / time.
- The ``error`` column of older versions is the largest deviation, no number of wrong elements.
- Without MPI support ``mpirun`` starts N jobs of one rank each, all of which print.
- A test split into groups (``NCCL_TESTS_SPLIT``) prints the results of rank 0's group.
- JSON lists one device for each process, text lists all.
"""

from scalebench.nccl_tests.model import Log, Point, Table
from scalebench.nccl_tests.reader import read_log

__all__ = ["Log", "Point", "Table", "read_log"]
