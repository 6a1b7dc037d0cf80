// /metrics, as a server shows it after requests.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "server/report/metrics.h"
#include "server/server_test_support.h"

namespace larder {
namespace {

TEST(Metrics, MetricsUnderTheNamesOfVllm) {
  TestServer server;
  server.post("/v1/completions", R"({"prompt":"abc","max_tokens":4,"ignore_eos":true})");
  const std::string page = server.get("/metrics").body;
  const std::string labels = "{model_name=\"tiny\",engine=\"0\"";
  const auto expect_family = [&](const char* name, const char* type, const char* suffix = "",
                                 const std::string& more = "") {
    EXPECT_NE(page.find(fmt::format("\n# TYPE vllm:{} {}\n", name, type)), std::string::npos) << name;
    const std::string line = fmt::format("\nvllm:{}{}{}{}", name, suffix, labels, more);
    EXPECT_NE(page.find(line), std::string::npos) << line;
  };
  for (const char* name : {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"}) {
    expect_family(name, "gauge", "", "} ");
  }
  expect_family("num_requests_waiting_by_reason", "gauge", "", ",reason=\"capacity\"} ");
  for (const char* name :
       {"prefix_cache_queries_total", "prefix_cache_hits_total",
        "external_prefix_cache_queries_total", "external_prefix_cache_hits_total",
        "num_preemptions_total", "prompt_tokens_total", "prompt_tokens_cached_total",
        "generation_tokens_total"}) {
    expect_family(name, "counter", "", "} ");
  }
  for (const char* source : {"local_compute", "local_cache_hit", "external_kv_transfer"}) {
    expect_family("prompt_tokens_by_source_total", "counter", "",
                  fmt::format(",source=\"{}\"}} ", source));
  }
  expect_family("prompt_tokens_cached_by_source_total", "counter", "", ",source=\"device\"} ");
  expect_family("request_success_total", "counter", "", ",finished_reason=\"stop\"} ");
  expect_family("admission_rejections_total", "counter", "", ",reason=\"queue_full\"} ");
  for (const char* name :
       {"time_to_first_token_seconds", "inter_token_latency_seconds",
        "request_time_per_output_token_seconds", "e2e_request_latency_seconds",
        "request_queue_time_seconds", "request_prefill_time_seconds",
        "request_decode_time_seconds", "request_inference_time_seconds", "request_prompt_tokens",
        "request_generation_tokens", "iteration_tokens_total", "kv_block_lifetime_seconds",
        "kv_block_idle_before_evict_seconds", "kv_block_reuse_gap_seconds"}) {
    for (const char* part : {"_bucket", "_sum", "_count"}) expect_family(name, "histogram", part);
  }
  const auto expect_line = [&](const std::string& line) {
    EXPECT_NE(page.find(fmt::format("\n{}\n", line)), std::string::npos) << line;
  };
  expect_line("vllm:generation_tokens_total" + labels + "} 4");
  expect_line("vllm:prompt_tokens_total" + labels + "} 3");
  expect_line("vllm:request_success_total" + labels + ",finished_reason=\"length\"} 1");
  expect_line("vllm:request_generation_tokens_bucket" + labels + ",le=\"5\"} 1");
  expect_line("vllm:request_generation_tokens_bucket" + labels + ",le=\"2\"} 0");
  for (const char* bound : {"0.002", "0.5", "120", "1800"}) {
    const std::string line = labels + fmt::format(",le=\"{}\"}}", bound);
    EXPECT_NE(page.find("vllm:kv_block_lifetime_seconds_bucket" + line), std::string::npos) << line;
  }
  EXPECT_EQ(page.find("vllm:kv_block_lifetime_seconds_bucket" + labels + ",le=\"3600\"}"),
            std::string::npos);
  EXPECT_NE(page.find("vllm:cache_config_info" + labels + ",block_size=\"16\""), std::string::npos);
  EXPECT_NE(page.find("cache_dtype=\"f16\"} 1\n"), std::string::npos);
  EXPECT_NE(page.find("larder:kv_waste_perc"), std::string::npos);
}

// It is generated as the others are, though it is not text.
TEST(Metrics, AStopTokenIsCountedAsGenerated) {
  TestServer server;
  const Json reply = server.post("/v1/completions", R"({"prompt":"abc","max_tokens":9,"min_tokens":3,
      "temperature":0,"stop_token_ids":[5],"logit_bias":{"5":100},"return_token_ids":true})").json();
  EXPECT_EQ(reply["usage"]["completion_tokens"], 4);
  EXPECT_EQ(reply["timings"]["predicted_n"], 4);
  ASSERT_EQ(reply["choices"][0]["token_ids"].size(), 4u);
  EXPECT_EQ(reply["choices"][0]["token_ids"][3], 5);
  const std::string page = server.get("/metrics").body;
  const auto value = [&](const std::string& name) {
    const std::string start = fmt::format("\nvllm:{}{{model_name=\"tiny\",engine=\"0\"}} ", name);
    const std::size_t place = page.find(start);
    return place == std::string::npos ? -1 : std::stod(page.substr(place + start.size(), 30));
  };
  EXPECT_EQ(value("generation_tokens_total"), 4);
  EXPECT_EQ(value("request_generation_tokens_sum"), 4);
  const double decode = value("request_decode_time_seconds_sum");
  EXPECT_GT(decode, 0);
  EXPECT_NEAR(value("request_time_per_output_token_seconds_sum"), decode / 3, decode * 1e-3);
  EXPECT_EQ(value("inter_token_latency_seconds_count"), 3);
  EXPECT_NEAR(value("inter_token_latency_seconds_sum"), decode, decode * 1e-3);
}

double value_of(const std::string& page, const std::string& name) {
  const std::string start = fmt::format("\nvllm:{}{{model_name=\"tiny\",engine=\"0\"}} ", name);
  const std::size_t place = page.find(start);
  return place == std::string::npos ? -1 : std::stod(page.substr(place + start.size(), 30));
}

TEST(Metrics, APromptWithoutAnAnswerTakesItsTime) {
  TestServer server;
  const Json reply = server.post("/v1/completions",
                                 R"({"prompt":"abc","max_tokens":0,"echo":true,"logprobs":1})").json();
  EXPECT_EQ(reply["usage"]["completion_tokens"], 0);
  EXPECT_GT(reply["timings"]["prompt_ms"].get<double>(), 0);
  EXPECT_EQ(reply["timings"]["predicted_ms"].get<double>(), 0);
  const std::string page = server.get("/metrics").body;
  for (const char* name : {"e2e_request_latency_seconds_sum", "request_prefill_time_seconds_sum",
                           "request_inference_time_seconds_sum"}) {
    EXPECT_GT(value_of(page, name), 0) << name;
  }
  EXPECT_EQ(value_of(page, "request_decode_time_seconds_count"), 0);
  EXPECT_EQ(value_of(page, "time_to_first_token_seconds_count"), 0);
}

TEST(Metrics, AStopTokenCanBeTheFirst) {
  TestServer server;
  const Json reply = server.post("/v1/completions", R"({"prompt":"abc","max_tokens":9,
      "temperature":0,"stop_token_ids":[5],"logit_bias":{"5":100}})").json();
  EXPECT_EQ(reply["usage"]["completion_tokens"], 1);
  EXPECT_EQ(reply["choices"][0]["text"], "");
  const std::string page = server.get("/metrics").body;
  EXPECT_EQ(value_of(page, "time_to_first_token_seconds_count"), 1);
  EXPECT_GT(value_of(page, "time_to_first_token_seconds_sum"), 0);
}

TEST(Metrics, TheTypesOfKeysAndValuesAreTold) {
  ServerState state;
  state.kv_types = {.k = KvType::kInt8, .v = KvType::kInt4};
  const std::string page = ServerMetrics("tiny", 240).serialize({}, {}, state);
  EXPECT_NE(page.find("cache_dtype=\"k=int8,v=int4\"} 1\n"), std::string::npos);
}

TEST(Metrics, WhoWaitsForATierIsNotRunning) {
  EngineStats stats;
  stats.num_running = 3;
  stats.num_loading = 2;
  stats.num_waiting = 4;
  const std::string page = ServerMetrics("tiny", 240).serialize(stats, {}, {});
  EXPECT_EQ(value_of(page, "num_requests_running"), 3);
  EXPECT_EQ(value_of(page, "num_requests_waiting"), 6);
  EXPECT_NE(page.find("reason=\"capacity\"} 4\n"), std::string::npos);
  EXPECT_NE(page.find("reason=\"deferred\"} 2\n"), std::string::npos);
}

TEST(Metrics, NIsCountedOnceAPrompt) {
  TestServer server;
  for (const char* stream : {"false", "true"}) {
    server.post("/v1/completions",
                fmt::format(R"({{"prompt":["abc","d"],"max_tokens":2,"n":3,"stream":{}}})", stream));
  }
  const std::string page = server.get("/metrics").body;
  EXPECT_EQ(value_of(page, "request_params_n_count"), 4);
  EXPECT_EQ(value_of(page, "request_params_n_sum"), 12);
  EXPECT_EQ(value_of(page, "request_generation_tokens_count"), 12);
}

TEST(Metrics, MaxTokensAreCountedAsTheyApply) {
  TestServer server;
  const Json reply =
      server.post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}]})").json();
  const int room = TestServer::kMaxModelLen - reply["usage"]["prompt_tokens"].get<int>();
  const std::string page = server.get("/metrics").body;
  const std::string line = fmt::format(
      "\nvllm:request_params_max_tokens_sum{{model_name=\"tiny\",engine=\"0\"}} {}\n", room);
  EXPECT_NE(page.find(line), std::string::npos) << line;
}

}  // namespace
}  // namespace larder
