// What an emulation of kernels needs of the fake CUDA runtime.
#pragma once

#include <cstddef>

extern "C" {

/// Runs one launch on the stream's own host thread; `arguments` is the kernel's parameter block.
typedef void (*nha_emulated_kernel)(const void* arguments, size_t bytes, unsigned blocks,
                                    unsigned threads);

/// Until a function is registered for `symbol`, launching it is an error.
void nha_emulate_kernel(const void* symbol, nha_emulated_kernel run);
}
