// How targets whose inputs are refused by Error call what they try.
#pragma once

#include <cstdlib>

#include "base/error.h"

// false: it was refused, as bad input is.
template <class Function>
bool refuse_or(Function&& function) {
  try {
    function();
    return true;
  } catch (const larder::Error& error) {
    if (error.kind() != larder::ErrorKind::kInvalidArgument) std::abort();
    return false;
  }
}
