// Weights in BF16, and whether they are multiplied by rounded activations.
#pragma once

#include "kernels/cpu/panel.h"

namespace larder::LARDER_ISA_NAMESPACE {

inline constexpr int kPairBytes = kPanelRows * 4;  // two columns of a panel

LARDER_INLINE bool has_rounded_rows(const MatmulArgs& args) {
  return args.w->format == PackedFormat::kBF16 && args.rounds_to_bf16;
}

}  // namespace larder::LARDER_ISA_NAMESPACE
