/* Plain C11 for every processor; the compiler vectorises it for the machine it builds for. */
#include "attention_portable.h"
#include "probe_portable.h"
#include "int8_portable.h"
#include "quantized_portable.h"

DEFINE_KERNEL_SET(kernel_set_portable);
