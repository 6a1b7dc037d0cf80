// The operator new of every program that does not define its own; those for arrays are the library's and come here.
// Nothing else is in this file, so that one with its own can have the rest.
#include <cstdlib>
#include <new>

#include "base/spare_memory.h"

// Sanitizers have theirs, which know what was allocated by which.
#ifdef __has_feature
#define LARDER_HAS_FEATURE(name) __has_feature(name)
#else
#define LARDER_HAS_FEATURE(name) 0
#endif
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !LARDER_HAS_FEATURE(address_sanitizer) && \
    !LARDER_HAS_FEATURE(thread_sanitizer) && !LARDER_HAS_FEATURE(memory_sanitizer)

// Not inlined: GCC 12 takes one of a pair that it sees without the other for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) {
  if (void* const bytes = std::malloc(size)) return bytes;
  if (void* const bytes = larder::take_spare(size)) return bytes;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* bytes) noexcept {
  if (!larder::give_spare(bytes)) std::free(bytes);
}
[[gnu::noinline]] void operator delete(void* bytes, std::size_t) noexcept { operator delete(bytes); }

#endif
