// Transforms of lines whose length is a power of two: fft.h without the other radices, small enough to be unrolled when it
// is compiled.
#define POWERS
#include "fft.h"
