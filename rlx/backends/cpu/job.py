"""The words that the runner of step tables (`runner`) shares with Python: those of a table, a job and the pool."""

from __future__ import annotations

# A row of a table: kernel, args, items, items of a chunk, most threads, chunks, most threads where others want the
# cores.
ROW_WORDS = 8
# Words of a job.
STEP, ITEM, STEPS, TABLE, POOL_CELL, SHARED, OWNS, CANCEL, THREADS, RESUMES, POOL = range(11)
JOB_WORDS = 16
# Words of the pool, a cache line each.
CLAIM, DONE, ROW, BELL, SLEEPERS, LEADER_SLEEPS, OWNER, LIMIT = range(0, 64, 8)
POOL_WORDS = 64
# After LIMIT, the limit of threads: how long a leader sleeps at a time, the time until which other processes are taken
# to want the cores, the core on which the leader published the step, and the address of C's `int sched_getcpu(void)`,
# or 0.
SLEEP_S, SLEEP_NS, CROWDED, CORE, GET_CORE = range(LIMIT + 1, LIMIT + 6)
# What `lead` returns. A job stays unfinished where an exception is raised between two calls.
FINISHED, PAUSED, NO_POOL, UNFINISHED = range(4)
