/* Plain C11 for every processor; the compiler vectorises it for the machine it builds for. */
#include "dot_portable.h"

const KernelSet kernel_set_portable = {
    .pack_panel = pack_panel,
    .multiply_stretch = multiply_stretch,
    .multiply_row = multiply_row,
    .softmax_row = softmax_row,
    .rms_norm_row = rms_norm_row,
    .rotary_row = rotary_row,
    .elementwise_span = elementwise_span,
    .argmax_row = argmax_row,
    .convert_span = convert_span,
};
