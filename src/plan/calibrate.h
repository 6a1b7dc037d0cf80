// How fast this machine, or a device of it, runs the steps of a model file, measured by running a part of it.
#pragma once

#include "base/thread_pool.h"
#include "kernels/device.h"
#include "kernels/kernels.h"
#include "model/forward/transformer.h"
#include "model/gguf.h"
#include "model/model_config.h"
#include "plan/step_speed.h"

namespace larder {

struct CalibrationOptions {
  KvTypes kv_types = {};
  TransformerLimits limits = {};
  // Of layers to load: several times what a third-level cache holds.
  double layer_bytes = 128e6;
  Device* device = nullptr;  // that computes; null = the CPU
};

// Loads as many of the file's layers as exceed any cache, runs steps of several sizes with and
// without tokens before them through the forward pass that serves, and extrapolates to all layers,
// which are alike. Takes a few seconds and, beside the weights of those layers, the scratch that
// limits ask for, a device's where there is one. Throws like Weights.
StepSpeed calibrate(const ModelConfig& config, const GgufFile& gguf,
                    const CalibrationOptions& options, ThreadPool& pool);

}  // namespace larder
