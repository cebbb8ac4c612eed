import os, sys
sys.path.insert(0, os.getcwd()); sys.path.insert(0, "benchmarks"); sys.path.insert(0, "benchmarks/probes")
import rlx, exp2, bench_skinny as bs
s = bs.Session("cuda")
for d, sh, m, v in (("f32", "B", 16, exp2.rows(8, 4, 8)), ("bf16", "B", 1, exp2.rows(8, 3)), ("f32", "D", 4, exp2.rows(4, 3))):
    c = exp2.case(d, sh, m)
    with bs.forcing(**v), s.compile(exp2.small(c)) as exe: exe.executable.run() if hasattr(exe, "executable") else None
