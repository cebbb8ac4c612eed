"""The compiled runner of step tables: what the calling thread and the workers of the pool execute outside of Python.

A job is one run of a table by one thread, its leader. Steps follow each other; the items of a step are cut into chunks.
A step that is worth several threads is published in the pool: the word `claim` holds its number (upper half), how many
chunks are left, and which of them is the first. A thread that changes it, by compare and exchange, owns the first or
the last of the chunks that are left. Since all are one word, a late worker cannot take a chunk of one step for one of
another, and the leader does not go on before all chunks are done. The leader and every other worker take chunks from
the front, the rest from the back: so a thread mostly reads in one step what it wrote in the one before, from its own
core's cache. A thread that waits spins for a moment, then sleeps on a futex. After some milliseconds the leader returns
to Python, which handles signals and calls again. `job` names the words that the text reads by their numbers.

A thread that finds a gap in its own spinning was preempted, and so was one that holds up the leader for long: other
processes want the cores. For some milliseconds from then on threads spin for a shorter time, which saves their time
slices for work, and only long steps are shared. A worker without work that was woken on the leader's own core, as
happens when the other cores are taken, keeps the leader from running; it goes to sleep at once.
"""

from __future__ import annotations

from rlx.backends.cpu.ir import Arguments
from rlx.backends.cpu.machine import Machine
from rlx.records import Record

_X86 = {
    "pause": 'call void asm sideeffect "pause", "~{memory}"()',
    "ticks": "call i64 @llvm.readcyclecounter()",
    "syscall": (
        'call i64 asm sideeffect "syscall", '
        '"={rax},{rax},{rdi},{rsi},{rdx},{r10},{r8},{r9},~{rcx},~{r11},~{memory}"'
    ),
    "number": "202",
    "spin": "1000000",  # ticks of the time stamp counter: some 400 µs
    "short": "100000",
    "gap": "1250000",  # some 500 µs
    "calm": "75000000",  # some 30 ms
    "slice": "50000000",  # some 20 ms
}
# The counter has a rate of 24 MHz to 1 GHz, which the text does not know, and threads were never run there. At 1 GHz a
# pause of 0.1 ms counts as a crowd, for 2 ms; at 24 MHz one of 3 ms, a usual time slice, passes unnoticed, and a longer
# one counts for 80 ms. That decides how long threads spin and which steps they share, no result.
_ARM = {
    "pause": 'call void asm sideeffect "isb", "~{memory}"()',
    "ticks": 'call i64 asm sideeffect "mrs $0, cntvct_el0", "=r"()',
    "syscall": 'call i64 asm sideeffect "svc #0", "={x0},{x8},{x0},{x1},{x2},{x3},{x4},{x5},~{memory}"',
    "number": "98",
    "spin": "10000",  # ticks of a counter of 24 MHz to 1 GHz: 10 to 400 µs
    "short": "1000",
    "gap": "100000",
    "calm": "2000000",
    "slice": "1000000",
}

_COMMON = """
declare i64 @llvm.readcyclecounter()

define internal i64 @futex(ptr %word, i64 %op, i64 %value, ptr %time, i64 %bits) #0 {
  %at = ptrtoint ptr %word to i64
  %until = ptrtoint ptr %time to i64
  %r = SYSCALL(i64 NUMBER, i64 %at, i64 %op, i64 %value, i64 %until, i64 0, i64 %bits)
  ret i64 %r
}

; The number of the core that the thread is on, or -1 where that is not known.
define internal i64 @core(ptr %pool) #0 {
start:
  %at = getelementptr i64, ptr %pool, i64 61
  %get = load ptr, ptr %at, align 8
  %none = icmp eq ptr %get, null
  br i1 %none, label %unknown, label %ask
ask:
  %found = call i32 %get()
  %core = sext i32 %found to i64
  ret i64 %core
unknown:
  ret i64 -1
}

; Takes a chunk of the published step, the first or (`back`) the last that is left: its number, or -1 for none.
define internal i64 @take(ptr %pool, i1 %back) #0 {
start:
  %seen0 = load atomic i64, ptr %pool seq_cst, align 8
  br label %again
again:
  %seen = phi i64 [ %seen0, %start ], [ %now, %try ]
  %low = and i64 %seen, 4294967295
  %left = lshr i64 %low, 16
  %first = and i64 %seen, 65535
  %none = icmp eq i64 %left, 0
  br i1 %none, label %nothing, label %try
try:
  %taken = select i1 %back, i64 65536, i64 65535
  %less = sub i64 %seen, %taken
  %pair = cmpxchg ptr %pool, i64 %seen, i64 %less seq_cst seq_cst, align 8
  %now = extractvalue { i64, i1 } %pair, 0
  %won = extractvalue { i64, i1 } %pair, 1
  br i1 %won, label %mine, label %again
mine:
  %end = add i64 %first, %left
  %last = sub i64 %end, 1
  %chunk = select i1 %back, i64 %last, i64 %first
  ret i64 %chunk
nothing:
  ret i64 -1
}

; Runs a chunk of a row unless `skip`; counts it as done and wakes the leader after the last.
define internal void @chunk(ptr %pool, i64 %chunk, i1 %skip) #0 {
start:
  %rowat = getelementptr i64, ptr %pool, i64 16
  %row = load atomic ptr, ptr %rowat seq_cst, align 8
  %totalat = getelementptr i64, ptr %row, i64 5
  %total = load i64, ptr %totalat, align 8
  br i1 %skip, label %counted, label %work
work:
  %f = load ptr, ptr %row, align 8
  %argsat = getelementptr i64, ptr %row, i64 1
  %args = load ptr, ptr %argsat, align 8
  %itemsat = getelementptr i64, ptr %row, i64 2
  %items = load i64, ptr %itemsat, align 8
  %sizeat = getelementptr i64, ptr %row, i64 3
  %size = load i64, ptr %sizeat, align 8
  %first = mul i64 %chunk, %size
  %end = add i64 %first, %size
  %past = icmp sgt i64 %end, %items
  %last = select i1 %past, i64 %items, i64 %end
  call void %f(ptr %args, i64 %first, i64 %last)
  br label %counted
counted:
  %doneat = getelementptr i64, ptr %pool, i64 8
  %before = atomicrmw add ptr %doneat, i32 1 seq_cst
  %wide = zext i32 %before to i64
  %sum = add i64 %wide, 1
  %all = icmp eq i64 %sum, %total
  br i1 %all, label %ring, label %out
ring:
  %sleepsat = getelementptr i64, ptr %pool, i64 40
  %sleeps = load atomic i64, ptr %sleepsat seq_cst, align 8
  %waits = icmp ne i64 %sleeps, 0
  br i1 %waits, label %wake, label %out
wake:
  call i64 @futex(ptr %doneat, i64 129, i64 1, ptr null, i64 0)
  br label %out
out:
  ret void
}
"""

_LEAD = """
define i64 @kernel(ptr %job) #0 {
start:
  %begun = TICKS
  %until = add i64 %begun, SLICE
  %stepat = getelementptr i64, ptr %job, i64 0
  %itemat = getelementptr i64, ptr %job, i64 1
  %countat = getelementptr i64, ptr %job, i64 2
  %tableat = getelementptr i64, ptr %job, i64 3
  %cellat = getelementptr i64, ptr %job, i64 4
  %sharedat = getelementptr i64, ptr %job, i64 5
  %ownsat = getelementptr i64, ptr %job, i64 6
  %cancelat = getelementptr i64, ptr %job, i64 7
  %threadsat = getelementptr i64, ptr %job, i64 8
  %count = load i64, ptr %countat, align 8
  %table = load ptr, ptr %tableat, align 8
  %cell = load ptr, ptr %cellat, align 8
  %pool = load ptr, ptr %cell, align 8
  %threads = load i64, ptr %threadsat, align 8
  %cancelled = load i64, ptr %cancelat, align 8
  %cancel = icmp ne i64 %cancelled, 0
  %step0 = load i64, ptr %stepat, align 8
  %shared0 = load i64, ptr %sharedat, align 8
  %resumed = icmp ne i64 %shared0, 0
  %item0 = load i64, ptr %itemat, align 8
  %owns0 = load i64, ptr %ownsat, align 8
  %resumesat = getelementptr i64, ptr %job, i64 9
  %resumes = load i64, ptr %resumesat, align 8
  store i64 0, ptr %resumesat, align 8
  %asked = or i64 %resumes, %cancelled
  %fresh = icmp eq i64 %asked, 0
  %left1 = or i64 %step0, %item0
  %left2 = or i64 %left1, %owns0
  %left3 = or i64 %left2, %shared0
  %dirty = icmp ne i64 %left3, 0
  %refuse = and i1 %fresh, %dirty
  %doneat = getelementptr i64, ptr %pool, i64 8
  %rowat = getelementptr i64, ptr %pool, i64 16
  %bellat = getelementptr i64, ptr %pool, i64 24
  %sleepersat = getelementptr i64, ptr %pool, i64 32
  %sleepsat = getelementptr i64, ptr %pool, i64 40
  %ownerat = getelementptr i64, ptr %pool, i64 48
  %limitat = getelementptr i64, ptr %pool, i64 56
  %crowdedat = getelementptr i64, ptr %pool, i64 59
  %coreat = getelementptr i64, ptr %pool, i64 60
  br i1 %refuse, label %refused, label %clean
refused:
  ret i64 3
clean:
  br label %next
next:
  %step = phi i64 [ %step0, %clean ], [ %step1, %advance ]
  %inside = phi i1 [ %resumed, %clean ], [ false, %advance ]
  %over = icmp sge i64 %step, %count
  %stop0 = xor i1 %inside, true
  %stop1 = and i1 %cancel, %stop0
  %stop = or i1 %over, %stop1
  br i1 %stop, label %finish, label %go
go:
  %offset = mul i64 %step, 8
  %row = getelementptr i64, ptr %table, i64 %offset
  %r2 = getelementptr i64, ptr %row, i64 2
  %r4 = getelementptr i64, ptr %row, i64 4
  %r5 = getelementptr i64, ptr %row, i64 5
  %items = load i64, ptr %r2, align 8
  %wanted = load i64, ptr %r4, align 8
  %total = load i64, ptr %r5, align 8
  br i1 %inside, label %claim, label %choose
choose:
  %fewer = icmp slt i64 %threads, %wanted
  %limit = select i1 %fewer, i64 %threads, i64 %wanted
  %few = icmp sle i64 %limit, 1
  ; A step that was begun alone, as the pool was another's, goes on alone.
  %begun1 = load i64, ptr %itemat, align 8
  %begun2 = icmp ne i64 %begun1, 0
  %alone = or i1 %few, %begun2
  br i1 %alone, label %serial, label %several
several:
  %nopool = icmp eq ptr %pool, null
  br i1 %nopool, label %nowhere, label %room
nowhere:
  store i64 %step, ptr %stepat, align 8
  ret i64 2
room:
  %t0 = TICKS
  %crowded0 = load atomic i64, ptr %crowdedat monotonic, align 8
  %calm0 = icmp sgt i64 %t0, %crowded0
  %r6 = getelementptr i64, ptr %row, i64 6
  %least = load i64, ptr %r6, align 8
  %long = icmp sgt i64 %least, 1
  %share = or i1 %calm0, %long
  br i1 %share, label %own, label %serial
own:
  %owned0 = load i64, ptr %ownsat, align 8
  %owned = icmp ne i64 %owned0, 0
  br i1 %owned, label %publish, label %acquire
acquire:
  %got = cmpxchg ptr %ownerat, i64 0, i64 1 seq_cst seq_cst, align 8
  %free = extractvalue { i64, i1 } %got, 1
  br i1 %free, label %acquired, label %serial
acquired:
  store i64 1, ptr %ownsat, align 8
  br label %publish
publish:
  %poolat = getelementptr i64, ptr %job, i64 10
  store ptr %pool, ptr %poolat, align 8
  store atomic i32 0, ptr %doneat seq_cst, align 8
  store atomic i64 0, ptr %sleepsat seq_cst, align 8
  store atomic ptr %row, ptr %rowat seq_cst, align 8
  store atomic i64 %limit, ptr %limitat seq_cst, align 8
  %core = call i64 @core(ptr %pool)
  store atomic i64 %core, ptr %coreat monotonic, align 8
  %old = load atomic i64, ptr %pool seq_cst, align 8
  %number0 = lshr i64 %old, 32
  %number = add i64 %number0, 1
  %high = shl i64 %number, 32
  %low = shl i64 %total, 16
  %word = or i64 %high, %low
  store atomic i64 %word, ptr %pool seq_cst, align 8
  %sleepers = load atomic i64, ptr %sleepersat seq_cst, align 8
  %some = icmp ne i64 %sleepers, 0
  br i1 %some, label %wake, label %claim
wake:
  %bell = atomicrmw add ptr %bellat, i32 1 seq_cst
  %bits0 = icmp sgt i64 %limit, 31
  %bits1 = select i1 %bits0, i64 32, i64 %limit
  %bits2 = shl i64 1, %bits1
  %bits = sub i64 %bits2, 1
  call i64 @futex(ptr %bellat, i64 138, i64 %limit, ptr null, i64 %bits)
  br label %claim
claim:
  %mine = call i64 @take(ptr %pool, i1 false)
  %any = icmp sge i64 %mine, 0
  br i1 %any, label %work, label %wait
work:
  call void @chunk(ptr %pool, i64 %mine, i1 %cancel)
  %t1 = TICKS
  %late1 = icmp sgt i64 %t1, %until
  br i1 %late1, label %pause, label %claim
pause:
  store i64 1, ptr %sharedat, align 8
  store i64 %step, ptr %stepat, align 8
  ret i64 1
wait:
  %since = TICKS
  br label %spin
spin:
  %before = phi i64 [ %since, %wait ], [ %t2, %patient ], [ %t3, %doze ]
  %done = load atomic i32, ptr %doneat seq_cst, align 8
  %done64 = zext i32 %done to i64
  %ready = icmp eq i64 %done64, %total
  br i1 %ready, label %together, label %patience
patience:
  PAUSE
  %t2 = TICKS
  %gap = sub i64 %t2, %before
  %away = icmp sgt i64 %gap, GAP
  br i1 %away, label %aside, label %patient
aside:
  %again = add i64 %t2, CALM
  store atomic i64 %again, ptr %crowdedat monotonic, align 8
  br label %patient
patient:
  %spun = sub i64 %t2, %since
  %crowded1 = load atomic i64, ptr %crowdedat monotonic, align 8
  %calm1 = icmp sgt i64 %t2, %crowded1
  %most = select i1 %calm1, i64 SPIN, i64 SHORT
  %enough = icmp sgt i64 %spun, %most
  br i1 %enough, label %sleep, label %spin
sleep:
  store atomic i64 1, ptr %sleepsat seq_cst, align 8
  %seen = load atomic i32, ptr %doneat seq_cst, align 8
  %seen64 = zext i32 %seen to i64
  %ready2 = icmp eq i64 %seen64, %total
  br i1 %ready2, label %together, label %doze
doze:
  %timeat = getelementptr i64, ptr %pool, i64 57
  call i64 @futex(ptr %doneat, i64 128, i64 %seen64, ptr %timeat, i64 0)
  %t3 = TICKS
  %late3 = icmp sgt i64 %t3, %until
  br i1 %late3, label %pause, label %spin
together:
  store i64 0, ptr %sharedat, align 8
  %t6 = TICKS
  %waited = sub i64 %t6, %since
  %held = icmp sgt i64 %waited, GAP
  br i1 %held, label %heldup, label %advance
heldup:
  %again2 = add i64 %t6, CALM
  store atomic i64 %again2, ptr %crowdedat monotonic, align 8
  br label %advance
serial:
  %from = load i64, ptr %itemat, align 8
  %f = load ptr, ptr %row, align 8
  %r1 = getelementptr i64, ptr %row, i64 1
  %args = load ptr, ptr %r1, align 8
  %r3 = getelementptr i64, ptr %row, i64 3
  %size = load i64, ptr %r3, align 8
  br label %part
part:
  %at = phi i64 [ %from, %serial ], [ %end, %on ]
  %end = add i64 %at, %size
  %past = icmp sgt i64 %end, %items
  %last = select i1 %past, i64 %items, i64 %end
  call void %f(ptr %args, i64 %at, i64 %last)
  %left = icmp slt i64 %end, %items
  br i1 %left, label %on0, label %whole
on0:
  %t4 = TICKS
  %late4 = icmp sgt i64 %t4, %until
  br i1 %late4, label %pause2, label %on
on:
  br label %part
pause2:
  store i64 %end, ptr %itemat, align 8
  store i64 %step, ptr %stepat, align 8
  ret i64 1
whole:
  store i64 0, ptr %itemat, align 8
  br label %advance
advance:
  %step1 = add i64 %step, 1
  %more = icmp slt i64 %step1, %count
  %t5 = TICKS
  %late5 = icmp sgt i64 %t5, %until
  %rest = and i1 %more, %late5
  br i1 %rest, label %pause3, label %next
pause3:
  store i64 %step1, ptr %stepat, align 8
  ret i64 1
finish:
  store i64 0, ptr %stepat, align 8
  store i64 0, ptr %itemat, align 8
  %had = load i64, ptr %ownsat, align 8
  %has = icmp ne i64 %had, 0
  br i1 %has, label %release, label %out
release:
  store i64 0, ptr %ownsat, align 8
  store atomic i64 0, ptr %ownerat seq_cst, align 8
  br label %out
out:
  ret i64 0
}
"""

_WORK = """
define void @kernel(ptr %pool, i64 %number) #0 {
start:
  %bellat = getelementptr i64, ptr %pool, i64 24
  %sleepersat = getelementptr i64, ptr %pool, i64 32
  %limitat = getelementptr i64, ptr %pool, i64 56
  %crowdedat = getelementptr i64, ptr %pool, i64 59
  %coreat = getelementptr i64, ptr %pool, i64 60
  %high = icmp sgt i64 %number, 31
  %bit = select i1 %high, i64 31, i64 %number
  %bits = shl i64 1, %bit
  %back = trunc i64 %number to i1
  br label %fresh
fresh:
  %since = TICKS
  br label %look
look:
  %before = phi i64 [ %since, %fresh ], [ %now, %apart ]
  %word = load atomic i64, ptr %pool seq_cst, align 8
  %left = and i64 %word, 4294901760
  %none = icmp eq i64 %left, 0
  br i1 %none, label %idle, label %asked
asked:
  %limit = load atomic i64, ptr %limitat seq_cst, align 8
  %mine = icmp slt i64 %number, %limit
  br i1 %mine, label %try, label %idle
try:
  %chunk = call i64 @take(ptr %pool, i1 %back)
  %got = icmp sge i64 %chunk, 0
  br i1 %got, label %run, label %idle
run:
  call void @chunk(ptr %pool, i64 %chunk, i1 false)
  br label %fresh
idle:
  PAUSE
  %now = TICKS
  %gap = sub i64 %now, %before
  %away = icmp sgt i64 %gap, GAP
  br i1 %away, label %aside, label %patient
aside:
  %again = add i64 %now, CALM
  store atomic i64 %again, ptr %crowdedat monotonic, align 8
  br label %patient
patient:
  %core = call i64 @core(ptr %pool)
  %leads = load atomic i64, ptr %coreat monotonic, align 8
  %known = icmp sge i64 %core, 0
  %same = icmp eq i64 %core, %leads
  %inway = and i1 %known, %same
  br i1 %inway, label %tired, label %apart
apart:
  %spun = sub i64 %now, %since
  %crowded = load atomic i64, ptr %crowdedat monotonic, align 8
  %calm = icmp sgt i64 %now, %crowded
  %most = select i1 %calm, i64 SPIN, i64 SHORT
  %enough = icmp sgt i64 %spun, %most
  br i1 %enough, label %tired, label %look
tired:
  %more = atomicrmw add ptr %sleepersat, i64 1 seq_cst
  %bell = load atomic i32, ptr %bellat seq_cst, align 8
  %word2 = load atomic i64, ptr %pool seq_cst, align 8
  %left2 = and i64 %word2, 4294901760
  %none2 = icmp eq i64 %left2, 0
  br i1 %none2, label %sleep, label %asked2
asked2:
  %limit2 = load atomic i64, ptr %limitat seq_cst, align 8
  %mine2 = icmp slt i64 %number, %limit2
  br i1 %mine2, label %woken, label %sleep
sleep:
  %bell64 = zext i32 %bell to i64
  call i64 @futex(ptr %bellat, i64 137, i64 %bell64, ptr null, i64 %bits)
  br label %woken
woken:
  %fewer = atomicrmw sub ptr %sleepersat, i64 1 seq_cst
  br label %fresh
}
"""


class RunnerSpec(Record):
    """The function that leads a job, or the one that workers run."""

    part: str
    arch: str
    args = Arguments()

    def ir(self) -> str:
        words = _X86 if self.arch == "x86_64" else _ARM
        text = (_LEAD if self.part == "lead" else _WORK) + _COMMON
        for name, value in words.items():
            text = text.replace(name.upper(), value)
        return text + '\nattributes #0 = { nounwind "no-builtins" }\n'


def specs(machine: Machine) -> tuple[RunnerSpec, RunnerSpec]:
    return RunnerSpec("lead", machine.arch), RunnerSpec("work", machine.arch)
