#include <cstdlib>

#include "base/error.h"
#include "kernels/test_util.h"

namespace larder {
namespace {

TEST(Dispatch, NamesWhatThisMachineRuns) {
  std::string names;
  for (const KernelTable* table : test::tables()) names += std::string(" ") + table->name;
  std::printf("[  ISAs   ]%s\n", names.c_str());
  if (std::getenv("LARDER_ISA") == nullptr) {
    EXPECT_EQ(names.substr(0, 8), " generic");
  }
}

TEST(Dispatch, TheEnvironmentChoosesOrIsRefused) {
  const char* named = std::getenv("LARDER_ISA");
  const std::string outside = named == nullptr ? "" : named;
  ASSERT_EQ(unsetenv("LARDER_ISA"), 0);
  for (const Isa isa : kCpuIsas) {
    const KernelTable* table = kernels_for(isa);
    if (table == nullptr) continue;
    setenv("LARDER_ISA", table->name, 1);
    EXPECT_EQ(&select_kernels(), table);
    EXPECT_EQ(table->isa, isa);
  }
  unsetenv("LARDER_ISA");
  EXPECT_EQ(&select_kernels(), &best_kernels());
  if (const KernelTable* amx = kernels_for(Isa::kAmx)) {
    EXPECT_EQ(&best_kernels(), amx);
  }
  setenv("LARDER_ISA", "mmx", 1);
  EXPECT_THROW(select_kernels(), Error);
  if (kernels_for(Isa::kAmx) == nullptr) {
    setenv("LARDER_ISA", "amx", 1);
    EXPECT_THROW(select_kernels(), Error);
  }
  unsetenv("LARDER_ISA");
  if (named != nullptr) setenv("LARDER_ISA", outside.c_str(), 1);
}

}  // namespace
}  // namespace larder
