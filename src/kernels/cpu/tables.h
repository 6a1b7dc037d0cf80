// One table per instruction set that was compiled in.
#pragma once

#include "kernels/kernels.h"

namespace larder {
namespace isa_generic {
extern const KernelTable kTable;
}
namespace isa_avx2 {
extern const KernelTable kTable;
}
namespace isa_avx512 {
extern const KernelTable kTable;
}
namespace isa_amx {
extern const KernelTable kTable;
}
// Compiled into the tests alone: isa_amx with its tile instructions written in C++.
namespace isa_amx_emulated {
extern const KernelTable kTable;
}
}  // namespace larder
