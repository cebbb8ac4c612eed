// attention_dq.h by matrix instructions, in one of three forms, which SCORES names: scores stay in registers, and each
// warp multiplies for itself (0), or four together (2); or they go through shared memory (1), since GLSL does not say
// which thread holds which element of a matrix.
#ifdef __cplusplus
#if SCORES == 2 && WIDE == 4 && DEEP == 1
#define RESIDENT 3
#else
#define RESIDENT 1
#endif
#if SCORES == 1
#include "bodies/attention_dq_opaque.h"
#else
#if SCORES == 0
#include "bodies/attention_slopes_registers.h"
#else
#define HOLDS_LEFT 1
#include "bodies/attention_slopes_wgmma.h"
#endif
#include "bodies/attention_dq_registers.h"
#endif
#else
#include "bodies/attention_dq_opaque.h"
#endif
