#!/usr/bin/env bash
# Claim: in Ray Data 2.60 a fixed pool of N actors of one CPU each never gets a row on a cluster of N CPUs: the run waits
#   for ever, and raises nothing.
# A good guess says: the pool starts smaller, or reads first and starts actors when CPUs are free, or raises that nothing
#   is left for reading; one would set as many actors as there are processors.
# What is so: the actors of the least pool take every CPU and keep it; the tasks that list and read the files wait for
#   one. With one CPU more the same run ends in seconds.
# Why it matters to a tensor runtime: one actor for each processor is what a user asks for first, so functions that make
#   the pool have to leave a processor for reading, or to refuse the number.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check "ray[data]==2.60.0" pyarrow==26.0.1
cat >"$folder/rows.py" <<'PY'
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import ray

folder, cpus, actors = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
pq.write_table(pa.table({"n": range(100)}), f"{folder}/rows.parquet")
ray.init(num_cpus=cpus, include_dashboard=False, logging_level="error")


class Same:
    def __call__(self, batch):
        return batch


rows = ray.data.read_parquet(f"{folder}/rows.parquet")
pool = ray.data.ActorPoolStrategy(size=actors)
print(rows.map_batches(Same, compute=pool, num_cpus=1).count(), "rows")
PY
export RAY_USAGE_STATS_ENABLED=0
for cpus in 3 2; do
    timeout 90 "$folder/venv/bin/python" "$folder/rows.py" "$folder" "$cpus" 2 >"$folder/said" 2>&1 || true
    grep '^100 rows$' "$folder/said" >"$folder/$cpus" || echo "no row in 90 s" >"$folder/$cpus"
    echo "2 actors on $cpus CPUs: $(cat "$folder/$cpus")"
done
if grep -q '^100 rows$' "$folder/3" && grep -q 'no row' "$folder/2"; then
    echo "so: the actors have all processors, and nothing reads"
else
    echo "not so here"
    exit 1
fi
