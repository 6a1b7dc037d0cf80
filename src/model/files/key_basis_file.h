// What was measured of a model's keys (key_calibration.h), kept for the next start.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "kernels/device.h"
#include "kv/key_basis.h"
#include "model/files/model_files.h"
#include "model/model_config.h"

namespace larder {

struct KeyMeasurement {
  const ModelConfig& config;  // whose rotations may have been chosen by the longest sequence
  std::span<const TokenId> tokens;
};

// Of all that a measurement depends on: the files as they were opened, the rotations, the tokens, the kernels, the
// device (null: the CPU).
Digest key_basis_digest(const ModelFiles& files, const KeyMeasurement& measurement,
                        const KernelTable& kernels, const Device* device);

// One measurement in a folder of them. Thread: any.
class KeyBasisFile {
 public:
  KeyBasisFile(std::string folder, const Digest& digest);

  // Of every layer. None where there is no such file, or what it holds is not whole or of another shape.
  std::optional<std::vector<KeyBasis>> read(const ModelConfig& config) const;
  // Whole or not at all; the folder's oldest go where there are many. False where it cannot be written, which costs
  // but the next start's time.
  bool write(std::span<const KeyBasis> layers) const;

 private:
  std::string folder_;
  std::string path_;
};

}  // namespace larder
