// What a request must be to run at all.
#pragma once

#include "engine/request.h"
#include "kv/cache/block_table.h"

namespace larder {

struct RequestLimits {
  int vocab_size = 0;
  int max_model_len = 0;
  int max_choices = 0;
  int max_batch_tokens = 0;
};

// What errors call the two parts of a span.
struct SpanNames {
  const char* window = "attention_window";
  const char* sinks = "attention_sinks";
};

// Throws Error{kInvalidArgument} with the field's name where no request of that span could run.
void check_span(const AttentionSpan& span, const RequestLimits& limits, const SpanNames& names = {});

// Throws Error{kInvalidArgument} with the field's name. Cuts max_tokens to what max_model_len
// leaves and logprob counts to the vocabulary.
void check_request(Request& request, const RequestLimits& limits);

}  // namespace larder
