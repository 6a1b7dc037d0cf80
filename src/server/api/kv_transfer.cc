#include "server/api/kv_transfer.h"

#include <algorithm>

#include "server/api/reply_writer.h"
#include "server/json_fields.h"

namespace larder {

bool read_kv_transfer(const Fields& fields, bool may_share) {
  const Json* value = fields.find("kv_transfer_params");
  if (value == nullptr) return false;
  const Fields inner(*value, "kv_transfer_params");
  const bool hands_over = inner.boolean("do_remote_decode", false);
  const bool takes_over = inner.boolean("do_remote_prefill", false);
  if (hands_over && takes_over) inner.fail("do_remote_decode", "excludes do_remote_prefill; send one of them as true");
  if (hands_over && !may_share) {
    inner.fail("do_remote_decode",
               "needs a tier that both servers share; start them with --kv-remote redis://HOST:PORT");
  }
  return hands_over;
}

// Whole blocks are shared; the other server computes the rest.
Json kv_transfer_json(const std::string& engine_id, std::span<const Choice> choices) {
  int num_tokens = 0;
  for (const Choice& choice : choices)
    num_tokens = std::max(num_tokens, choice.usage.num_prompt_tokens / kBlockSize * kBlockSize);
  return {{"do_remote_prefill", true},
          {"do_remote_decode", false},
          {"remote_engine_id", engine_id},
          {"remote_block_ids", Json::array()},
          {"remote_host", nullptr},
          {"remote_port", nullptr},
          {"num_tokens", num_tokens}};
}

}  // namespace larder
