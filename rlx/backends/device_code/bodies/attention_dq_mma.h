// attention_dq.h by matrix instructions, in one of two forms, which SCORES names: 0, scores stay in registers; 1, they go
// through shared memory, since GLSL does not say which thread holds which element of a matrix.
#ifdef __cplusplus
#if SCORES == 0
#include "bodies/attention_dq_registers.h"
#else
#include "bodies/attention_dq_opaque.h"
#endif
#else
#include "bodies/attention_dq_opaque.h"
#endif
