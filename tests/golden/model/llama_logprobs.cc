// Prints the log-probability that llama.cpp gives each token but the first of a sequence of token
// ids on standard input. For make_real.py; not part of the build: compile it against llama.cpp's
// own.
//
// llama_logprobs MODEL.gguf < IDS
#include <llama.h>

#include <cmath>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::vector<llama_token> tokens{std::istream_iterator<llama_token>(std::cin), {}};
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(tokens.size()) + 64;
  params.n_batch = params.n_ctx;
  params.n_threads = params.n_threads_batch = 2;
  llama_context* context = model ? llama_init_from_model(model, params) : nullptr;
  if (!context) return 1;

  const auto count = static_cast<std::int32_t>(tokens.size());
  llama_batch batch = llama_batch_init(count, 0, 1);
  batch.n_tokens = count;
  for (std::int32_t i = 0; i < count; ++i) {
    batch.token[i] = tokens[static_cast<std::size_t>(i)];
    batch.pos[i] = i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  if (llama_decode(context, batch) != 0) return 1;
  const int vocab_size = llama_vocab_n_tokens(llama_model_get_vocab(model));
  for (std::int32_t i = 0; i + 1 < count; ++i) {
    const float* logits = llama_get_logits_ith(context, i);
    double sum = 0;
    for (int token = 0; token < vocab_size; ++token) sum += std::exp(double{logits[token]});
    std::printf("%.6f\n", logits[batch.token[i + 1]] - std::log(sum));
  }
}
