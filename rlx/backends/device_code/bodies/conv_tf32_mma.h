// What conv_mma.h computes, of operands in f32 that are rounded to tf32: see there.
#define IN_TF32
#define T f32
#include "conv_mma.h"
