// Whether a model file can be served.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/device.h"
#include "cli/doctor.h"
#include "cli/pull.h"
#include "model/files/model_files.h"
#include "model/vocabulary.h"
#include "server/chat/render_chat.h"

namespace larder {
namespace {

// A model as an option names it.
struct NamedModel {
  const char* what;    // of the findings
  const char* option;  // that names another
  const std::string& name;
};

// The folder that models are fetched into, which is made where it is not there yet.
void check_models_folder(const NamedModel& model, Findings& findings) {
  std::error_code ignored;
  std::filesystem::path folder = std::filesystem::absolute(models_folder(), ignored);
  while (!std::filesystem::exists(folder, ignored) && folder.has_relative_path())
    folder = folder.parent_path();
  if (!std::filesystem::is_directory(folder, ignored) || ::access(folder.c_str(), W_OK | X_OK) != 0)
    findings.fail(model.what, fmt::format("{}: cannot be written, and models are fetched into {}",
                                          folder.string(), models_folder()),
                  fmt::format("let this user write to it, XDG_CACHE_HOME=FOLDER, or {} FILE.gguf", model.option));
}

// "" where the file is not there, or still has to be fetched; the finding is made then.
std::string model_path(const NamedModel& model, Findings& findings) {
  const auto& [what, option, name] = model;
  const auto known = std::ranges::find_if(
      known_models(), [&](const KnownModel& one) { return model.name == one.name; });
  const std::string path =
      known == known_models().end() ? name : models_folder() + "/" + known->file;
  std::error_code failed;
  if (std::filesystem::exists(path, failed)) return path;
  if (failed)
    findings.fail(what, fmt::format("{}: {}", path, failed.message()),
                  fmt::format("{} FILE.gguf, where this user may read it", option));
  else if (known == known_models().end())
    findings.fail(what, path + ": no such file, and not a name that Larder knows",
                  fmt::format("{} FILE.gguf, or a name of `larder pull --help`", option));
  else {
    findings.warn(what, name + " is not here yet: the first start fetches it",
                  "larder pull " + name);
    check_models_folder(model, findings);
  }
  return "";
}

void check_tensors(const GgufFile& gguf, Findings& findings) {
  std::map<std::string, int> counts;
  for (const GgufTensor& tensor : gguf.tensors()) {
    const auto traits = ggml_type_traits(static_cast<std::uint32_t>(tensor.type));
    ++counts[traits ? std::string(traits->name) : "?"];
  }
  std::string text;
  for (const auto& [name, count] : counts)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name);
  const ModelConfig config = read_model_config(gguf);
  const auto size_bytes = static_cast<std::int64_t>(weights_size_bytes(config, gguf));
  findings.ok("weights", fmt::format("{} layers, {}; {} in memory", config.num_layers(), text,
                                     format_bytes(size_bytes)));
}

void check_tokenizer(const GgufFile& gguf, Findings& findings) {
  const Tokenizer tokenizer(read_vocabulary(gguf));
  const std::string sample = "Larder keeps 42 jars.\n";
  const std::vector<TokenId> tokens = tokenizer.encode(sample, false, false);
  const bool reads_back = tokenizer.decode(tokens) == sample;
  if (reads_back)
    findings.ok("tokenizer", fmt::format("{} tokens", tokenizer.vocab_size()));
  else
    findings.warn("tokenizer", "a text is not read back as it was written",
                  "convert the model again with a newer converter");
}

void check_chat_template(const GgufFile& gguf, const RuntimeOptions& options, Findings& findings) {
  const bool own = !options.chat_template_file.empty();
  const std::string source =
      own ? read_text_file(options.chat_template_file) : read_chat_template(gguf);
  if (source.empty())
    findings.warn("chat template", "the file has none: chats take ChatML",
                  "--chat-template FILE.jinja, if it was trained with another");
  const ChatTemplate chat_template(source);
  TemplateInput input;
  input.messages = {message_of("user", "Hello")};
  (void)chat_template.render(input);
  if (const std::string warning = chat_template.warning(); !warning.empty())
    findings.warn("chat template", warning, "--chat-template FILE.jinja, a copy without it");
  else if (!source.empty())
    findings.ok("chat template", own ? options.chat_template_file : "the file's own, and it runs");
}

// What helps against an error of that check.
std::string fix_of(std::string_view what, const std::exception& error) {
  if (what == "chat template") return "--chat-template FILE.jinja: one that can be read and runs";
  const auto* known = dynamic_cast<const Error*>(&error);
  const bool is_invalid = known != nullptr && known->kind() == ErrorKind::kInvalidArgument;
  if (what != "fit")
    return is_invalid ? "the file fetched again if it is damaged, one of Larder's by larder pull NAME; else another, or a conversion of it to a type that is "
                        "served"
                      : "-m FILE: one that is there and may be read";
  return is_invalid ? "what it says, or another value there; see `larder serve --help`"
                    : "what it says, or a smaller model; see `larder plan`";
}

void fail_workers(const Error& error, Findings& findings) {
  findings.fail(kWorkers, error, "start it, or correct --workers");
}

// False = the server would refuse them whatever the model.
bool check_known_options(const RuntimeOptions& options, Findings& findings) {
  RuntimeOptions others = options;
  bool are_right = true;
  try {
    check_worker_options(options.workers);
  } catch (const Error& error) {
    fail_workers(error, findings);
    others.workers = {};
    are_right = false;
  }
  try {
    check_options(others);
    return are_right;
  } catch (const Error& error) {
    findings.fail("fit", error.what(), fix_of("fit", error));
    return false;
  }
}

// The device that the server would compute on, null = the CPU. False = it would not start.
bool find_device(const RuntimeOptions& options, std::unique_ptr<Device>& device,
                 Findings& findings) {
  try {
    device = open_device(options);
    findings.ok("device", device ? device->describe() : "the CPU");
    return true;
  } catch (const Error& error) {
    findings.fail("device", error, "--device cpu, or auto");
    return false;
  }
}

std::int64_t check_fit(const RuntimeOptions& options, std::unique_ptr<Device>& device,
                       Findings& findings) {
  ThreadPool pool(num_threads_of(options));
  PlannedModel planned;
  try {
    plan_on_into(planned, options, pool, device);
  } catch (const Error& error) {
    if (planned.workers != nullptr) findings.ok(kWorkers, describe_shares(*planned.workers));
    if (error.param() != kWorkers) throw;
    fail_workers(error, findings);  // what fits is not known without them
    return planned.layout->block_size_bytes();
  }
  if (planned.workers != nullptr) findings.ok(kWorkers, describe_shares(*planned.workers));
  findings.ok("fit", fmt::format("{} of {} available; {:.1f} requests of {} tokens at once",
                                 format_bytes(planned.plan.total_bytes()),
                                 format_bytes(plannable_bytes(device.get())), planned.plan.max_concurrency,
                                 planned.plan.max_model_len));
  return planned.layout->block_size_bytes();
}

}  // namespace

std::optional<std::int64_t> check_model(const RuntimeOptions& options, Findings& findings) {
  std::unique_ptr<Device> device;
  const bool are_options_right = check_known_options(options, findings);
  const bool has_device = find_device(options, device, findings);
  const std::string path = model_path({"model", "-m", options.model}, findings);
  RuntimeOptions fitting = options;
  // Where it is not there yet, what fits is told without it: a plan would fetch it.
  if (!options.draft_model.empty())
    fitting.draft_model = model_path({"draft model", "--draft-model", options.draft_model}, findings);
  if (path.empty()) return std::nullopt;
  const auto passes = [&](const char* what, auto&& check) {
    try {
      check();
      return true;
    } catch (const std::exception& error) {
      findings.fail(what, error.what(), fix_of(what, error));
      return false;
    }
  };
  std::optional<std::int64_t> block_size_bytes;
  passes("model", [&] {
    const ModelFiles files(path);
    const GgufFile& gguf = files.gguf();
    const ModelConfig config = read_model_config(gguf);
    const auto size_bytes = static_cast<std::int64_t>(files.size_bytes());
    findings.ok("model", fmt::format("{} ({}), {}", path, config.name, format_bytes(size_bytes)));
    const bool has_weights = passes("weights", [&] { check_tensors(gguf, findings); });
    passes("tokenizer", [&] { check_tokenizer(gguf, findings); });
    const bool has_template = passes("chat template", [&] { check_chat_template(gguf, options, findings); });
    if (!has_weights || !has_device || !are_options_right) return;
    // It fits with any template; but one of the file's own that is broken keeps the file from being read.
    if (!has_template && options.chat_template_file.empty()) return;
    if (!has_template) fitting.chat_template_file.clear();
    passes("fit", [&] { block_size_bytes = check_fit(fitting, device, findings); });
  });
  return block_size_bytes;
}

}  // namespace larder
