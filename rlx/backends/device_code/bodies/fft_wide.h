// fft_powers.h for workgroups of 512, which take a line of 8192.
#include "fft_powers.h"
