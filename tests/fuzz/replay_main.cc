// Replays a corpus folder through a fuzz target, so that what was once found stays found. The seeds
// that are named are good ones: to refuse them is an error, too.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "fuzz_target.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER [GOOD_SEED...]\n", argv[0]);
    return 2;
  }
  std::set<std::string> not_taken(argv + 2, argv + argc);
  int num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string read{std::istreambuf_iterator<char>(file), {}};
    // Memory that ends where they end, for sanitizers to see what reads on.
    const std::vector<char> bytes(read.begin(), read.end());
    if (try_input(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()))
      not_taken.erase(entry.path().filename().string());
    ++num_files;
  }
  for (const std::string& name : not_taken)
    std::fprintf(stderr, "%s: a good seed, and not taken for one\n", name.c_str());
  std::printf("%d inputs replayed\n", num_files);
  return num_files > 0 && not_taken.empty() ? 0 : 1;
}
