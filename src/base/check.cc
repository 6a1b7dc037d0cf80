#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace larder::internal {

void check_failed(const char* condition, const char* file, int line, const std::string& values) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s%s\n", file, line, condition, values.c_str());
  std::abort();
}

}  // namespace larder::internal
