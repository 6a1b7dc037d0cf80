// Any bytes as a safetensors file: refused with an Error, or read, with every byte of its tensors.
#include <cstdlib>
#include <span>

#include "fuzz_target.h"
#include "model/files/safetensors.h"
#include "refuse_or.h"

bool try_input(const std::uint8_t* data, std::size_t size) {
  return refuse_or([&] {
    std::size_t num_bytes = 0;
    unsigned sum = 0;
    for (const larder::SafetensorsTensor& tensor : larder::read_safetensors(std::as_bytes(std::span(data, size)))) {
      for (const std::byte value : tensor.data) sum += std::to_integer<unsigned>(value);
      num_bytes += tensor.data.size();
    }
    if (num_bytes > size || sum > 255 * num_bytes) std::abort();  // they would overlap
  });
}
