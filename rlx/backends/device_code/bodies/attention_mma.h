// Attention by matrix instructions: attention_matrix.h and one of three kernels, which SCORES names; they differ in
// where scores are kept. GLSL does not say which thread holds which element of a matrix, so there they go through
// shared memory.
#include "bodies/attention_matrix.h"
#ifdef __cplusplus
#if SCORES == 0
#include "bodies/attention_softmax.h"
#include "bodies/attention_registers.h"
#elif SCORES == 1
#include "bodies/attention_opaque.h"
#else
#include "bodies/attention_softmax.h"
#include "bodies/wgmma.h"
#include "bodies/attention_wgmma.h"
#endif
#else
#include "bodies/attention_opaque.h"
#endif
