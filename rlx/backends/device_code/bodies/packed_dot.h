// The sum over a whole row of q times the elements of x from `start` on, by one thread. DOT_X(i): four elements of x, for
// which a kernel may take more arguments, DOT_MORE. DOT_LOOP: what stands before each loop.
#ifndef DOT_LOOP
#define DOT_LOOP
#endif
#ifndef DOT_X
#define DOT_MORE
#define DOT_X(i) LOAD4(T, x, i)
#endif
RLX_FN float dot_of(PTR(T) x, DOT_MORE const Row row, const Planes at, const uint chunks, const uint start) {
    float sum = 0.0f;
    DOT_LOOP for (uint c = 0u; c < chunks; c++) {
        const uint b = c / UNITS, u = c % UNITS;
        const Chunk chunk = chunk_of(row, at, b, u);
        DOT_LOOP for (uint run = 0u; run < RUNS; run++) {
            const Scale scale = scale_of(row, at, b, u, run);
            DOT_LOOP for (uint w = 0u; w < 4u; w++) {
                const vec4 v = values_of(quad_of(chunk, u, run, w), scale.zero);
                const vec4 a = DOT_X((start + element_of(b, u, run)) / 4u + w);
                sum = FMA(a.x, weight_of(scale, v.x), sum);
                sum = FMA(a.y, weight_of(scale, v.y), sum);
                sum = FMA(a.z, weight_of(scale, v.z), sum);
                sum = FMA(a.w, weight_of(scale, v.w), sum);
            }
        }
    }
    return sum;
}
