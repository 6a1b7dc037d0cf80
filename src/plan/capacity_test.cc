#include "plan/capacity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kv/cache/kv_cache.h"
#include "plan/levers.h"
#include "plan/plan.h"
#include "plan/published_models.h"

namespace larder {
namespace {

Deployment deploy(const char* model, const char* machine, int num_devices = 1) {
  return {.shape = *find_published_model(model),
          .weights = published_weight_format(model),
          .machine = find_machine(machine),
          .num_devices = num_devices};
}

TEST(Capacity, Llama8bServes128RequestsOf4096TokensBeside16GiB) {
  Deployment deployment = deploy("Llama 3 8B", "H100");
  const Capacity capacity =
      plan_capacity(deployment, roofline(deployment), {.prompt_len = 3840, .output_len = 256},
                    static_cast<double>(std::int64_t{80 - 16} << 30));
  EXPECT_DOUBLE_EQ(capacity.request_kv_bytes, 512.0 * (1 << 20));
  EXPECT_DOUBLE_EQ(capacity.memory_requests, 128);
  // The same from the model's own weights, 15 GiB.
  EXPECT_NEAR(plan_capacity(deployment, roofline(deployment), {.prompt_len = 3840})
                  .memory_requests, 130, 0.5);
}

TEST(Capacity, AHundredUsersOfThe70bTake134GB) {
  const Deployment deployment = deploy("Llama 3 70B", "H100", 1);
  const double kv = 100 * static_cast<double>(kv_bytes_for(deployment.device_layout(), 4096, 512));
  EXPECT_NEAR(kv, 134e9, 0.5e9);
  EXPECT_NEAR(kv + 140e9, 274e9, 0.5e9);
}

TEST(Capacity, ABudgetOf320GBHolds10986TokensOf50Users) {
  const double bytes_per_token = 80 * 2 * 8 * 128 * 2;
  EXPECT_EQ(max_context_for_budget(320e9, 140e9, bytes_per_token, 50), 10986);
  EXPECT_EQ(max_context_for_budget(100e9, 140e9, bytes_per_token, 50), 0);
  Deployment deployment = deploy("Llama 3.1 70B", "H100");
  // In whole blocks.
  EXPECT_EQ(max_context_for_budget(deployment, 180e9, 50), 686 * 16);
}

TEST(Capacity, WindowsStretchABudget) {
  Deployment deployment = deploy("Gemma 3 27B", "H100");
  const double budget = 8e9;
  const std::int64_t mixed = max_context_for_budget(deployment, budget, 1);
  for (KvLayerShape& layer : deployment.shape.kv_layers) layer.window = 0;
  const std::int64_t full = max_context_for_budget(deployment, budget, 1);
  EXPECT_GT(mixed, 4 * full);
  deployment.shape.context_len = 100;
  EXPECT_EQ(max_context_for_budget(deployment, budget, 1), 100);
}

TEST(Roofline, The70bDecodes24TokensASecondOnOneH100) {
  // 3.35 TB/s through 140 GB.
  Deployment deployment = deploy("Llama 3 70B", "H100");
  StepSpeed speed = roofline(deployment);
  EXPECT_NEAR(1 / decode_step_seconds(speed, deployment, 1, 0), 23.9, 0.25);
  // Two devices read at once, and tokens behind it cost.
  deployment.num_devices = 2;
  speed = roofline(deployment);
  EXPECT_NEAR(1 / decode_step_seconds(speed, deployment, 1, 0), 2 * 23.9, 0.5);
  EXPECT_LT(1 / decode_step_seconds(speed, deployment, 1, 100000), 45);
}

TEST(Roofline, ABatchIsFreeUntilProductsTakeLongerThanReading) {
  const Deployment deployment = deploy("Llama 3 8B", "H100");
  const StepSpeed speed = roofline(deployment);
  EXPECT_DOUBLE_EQ(speed.decode.seconds(64), speed.decode.seconds(1));
  EXPECT_DOUBLE_EQ(speed.prefill.seconds(64), speed.prefill.seconds(1));
  EXPECT_NEAR(speed.prefill.seconds(4096) / speed.prefill.seconds(2048), 2, 0.01);
  // 989 TFLOP/s through 2 * 7.5 G operations a token.
  EXPECT_NEAR(prefill_seconds(speed, deployment, 8192, 0), 8192 * 2 * 7.0e9 / 989e12, 0.02);
  EXPECT_LT(prefill_seconds(speed, deployment, 8192, 8176), 0.01);
}

TEST(Roofline, MoreSequencesThanDecodeInAStepTakeTurns) {
  Deployment deployment = deploy("Llama 3 8B", "H100");
  const StepCurve decode = roofline(deployment).decode;
  EXPECT_EQ(decode.samples.back().num_rows, 64);
  EXPECT_DOUBLE_EQ(decode.seconds(128), 2 * decode.seconds(64));
  EXPECT_DOUBLE_EQ(decode.seconds(96), 1.5 * decode.seconds(64));
  deployment.max_batch_tokens = 20;  // a step keeps one of them for prompts
  EXPECT_EQ(roofline(deployment).decode.samples.back().num_rows, 19);
  deployment.max_batch_tokens = 1;
  EXPECT_EQ(roofline(deployment).decode.samples.size(), 1U);
}

TEST(Capacity, RequestsBeyondThoseOfAStepBringNothingButFewerDo) {
  const Deployment deployment = deploy("Llama 3 8B", "H100");
  const StepSpeed speed = roofline(deployment);
  Workload workload{.prompt_len = 500, .output_len = 200, .max_sequences = 64};
  const Capacity full = plan_capacity(deployment, speed, workload);
  EXPECT_LE(full.decode_rate_full, 64 / speed.decode.seconds(64));
  workload.max_sequences = 200;
  ASSERT_GT(plan_capacity(deployment, speed, workload).memory_requests, 200);
  EXPECT_NEAR(plan_capacity(deployment, speed, workload).decode_rate_full, full.decode_rate_full, 1e-6);
  EXPECT_NEAR(plan_capacity(deployment, speed, workload).max_rate, full.max_rate, 1e-6);
  workload.max_sequences = 16;
  EXPECT_LT(plan_capacity(deployment, speed, workload).decode_rate_full, 0.4 * full.decode_rate_full);
}

TEST(Roofline, MoreDevicesThanHeadsKeepTheSameHeads) {
  EXPECT_EQ(deploy("Llama 3 70B", "H100", 8).device_layout().bytes_per_token(), 320 * 1024 / 8);
  EXPECT_EQ(deploy("Llama 3 70B", "H100", 16).device_layout().bytes_per_token(), 320 * 1024 / 8);
  EXPECT_EQ(deploy("DeepSeek V3", "H200", 8).device_layout().bytes_per_token(), 61 * 576 * 2);
}

TEST(Capacity, LittlesLaw) {
  const Deployment deployment = deploy("Llama 3 8B", "H100");
  const StepSpeed speed = roofline(deployment);
  Workload workload{.prompt_len = 1000, .output_len = 200, .rate = 1};
  const double alone = prefill_seconds(speed, deployment, 1000, 0) +
                       200 * decode_step_seconds(speed, deployment, 1, 1100);
  // Few requests: nobody waits, and each is there for as long as it takes alone.
  EXPECT_NEAR(requests_present(speed, deployment, workload), alone, 0.05 * alone);
  workload.rate = 10;
  EXPECT_GT(requests_present(speed, deployment, workload), 10 * alone);
  workload.rate = 1 / prefill_seconds(speed, deployment, 1000, 0) + 1;
  EXPECT_TRUE(std::isinf(requests_present(speed, deployment, workload)));
}

TEST(Capacity, TheLongestPromptOfATargetJustMeetsIt) {
  const Deployment deployment = deploy("Llama 3.1 8B", "L4");
  const StepSpeed speed = roofline(deployment);
  for (const LatencyTarget& target : kLatencyTargets) {
    const int length = longest_prompt_within(speed, deployment, target.seconds, 0);
    ASSERT_GT(length, 0) << target.name;
    EXPECT_LE(prefill_seconds(speed, deployment, length, 0), target.seconds);
    EXPECT_GT(prefill_seconds(speed, deployment, length + 1, 0), target.seconds);
    EXPECT_GT(longest_prompt_within(speed, deployment, target.seconds, 0.9), 4 * length);
  }
}

TEST(Capacity, ShortageSaysWhatIsMissingAndWhatHelps) {
  const Deployment deployment = deploy("Llama 3 70B", "H100");
  const std::string text = shortage(deployment, {});
  EXPECT_EQ(text.find("does not fit: needs 132.1"), 0U) << text;
  EXPECT_NE(text.find("has 80.00 GiB"), std::string::npos) << text;
  EXPECT_NE(text.find("use --weights fp8 or --tp 2"), std::string::npos) << text;
  EXPECT_EQ(shortage(deploy("Llama 3 70B", "H100", 2), {}), "");
  EXPECT_FALSE(plan_capacity(deployment, roofline(deployment), {}).fits());
}

TEST(Capacity, ABudgetHasToBeThereAndToHoldARequest) {
  const Deployment deployment = deploy("Llama 3 8B", "H100");
  const StepSpeed speed = roofline(deployment);
  const auto gib = [](int count) { return static_cast<double>(std::int64_t{count} << 30); };
  EXPECT_EQ(shortage(deployment, {}, gib(64)), "");
  EXPECT_NE(shortage(deployment, {}, gib(66)).find("has 80.00 GiB; use --kv-size 288MiB"),
            std::string::npos)
      << shortage(deployment, {}, gib(66));
  EXPECT_FALSE(plan_capacity(deployment, speed, {}, gib(66)).fits());
  EXPECT_NE(shortage(deployment, {}, 1e6).find("use --kv-size 288MiB"), std::string::npos);
  const double all = static_cast<double>(deployment.machine.memory_bytes);
  EXPECT_NE(shortage(deployment, {}, all), "");
  for (const Lever& lever : list_levers(deployment, speed, {}, all))
    EXPECT_EQ(lever.name, "") << "no lever makes room for a budget of the whole memory";
}

// The options that a shortage advises.
std::vector<std::string> advised(const std::string& shortage) {
  constexpr std::string_view kUse = "; use ", kOr = " or ";
  std::vector<std::string> ways;
  for (std::size_t begin = shortage.rfind(kUse) + kUse.size(); begin < shortage.size();) {
    const std::size_t end = std::min(shortage.find(kOr, begin), shortage.size());
    ways.push_back(shortage.substr(begin, end - begin));
    begin = end + kOr.size();
  }
  return ways;
}

TEST(Capacity, EachAdvisedOptionMakesItFit) {
  constexpr double kMib = 1 << 20;
  const Workload workload{.prompt_len = 8000, .output_len = 100};
  EXPECT_EQ(advised(shortage(deploy("Llama 3 8B", "H100"), workload, 100 * kMib)),
            std::vector<std::string>{"--kv-size 1014MiB"});
  for (const char* model : {"Llama 3 8B", "Llama 3 70B"}) {
    for (const double budget : {0.0, 100 * kMib, 200 * kMib, 2048 * kMib, 70 * 1024 * kMib}) {
      const Deployment deployment = deploy(model, "H100");
      const std::string text = shortage(deployment, workload, budget);
      if (text.empty()) continue;
      for (const std::string& way : advised(text)) {
        Deployment changed = deployment;
        double size = budget;
        const std::string value = way.substr(way.rfind(' ') + 1);
        if (way.starts_with("--kv-size ")) size = static_cast<double>(parse_bytes("x", value));
        if (way.starts_with("--weights ")) changed.weights = parse_weight_format(value);
        if (way.starts_with("--tp ")) changed.num_devices = std::stoi(value);
        EXPECT_EQ(way.starts_with("--") ? shortage(changed, workload, size) : "", "")
            << text << "\nand with " << way;
      }
    }
  }
}

TEST(Capacity, WhatFitsIsWhatAServerTakes) {
  const Deployment deployment = deploy("SmolLM2 135M", "H100");
  const KvLayout layout = deployment.device_layout();
  const Workload workload{.prompt_len = 80, .output_len = 1};
  const Footprint footprint{.context_length = 8192, .max_batch_tokens = 512};
  for (std::int64_t size = 5 * layout.block_size_bytes(); size < 9 * layout.block_size_bytes();
       size += 100'000) {
    const auto budget = static_cast<double>(size);
    const auto serve = [&] {
      return make_plan(layout, footprint, {.kv_bytes = size, .max_model_len = 81}, size);
    };
    if (shortage(deployment, workload, budget).empty())
      EXPECT_GE(serve().max_concurrency, 1) << size;
    else
      EXPECT_THROW(serve(), Error) << size;
  }
}

TEST(Levers, LeaveABudgetThatWasGivenAsItIs) {
  const Deployment deployment = deploy("Llama 3 8B", "H100");
  const double budget = 4e9;
  const Capacity now = plan_capacity(deployment, roofline(deployment), {}, budget);
  const std::vector<Lever> levers = list_levers(deployment, roofline(deployment), {}, budget);
  const auto q4 = std::ranges::find(levers, std::string("--weights q4_0"), &Lever::option);
  ASSERT_NE(q4, levers.end());
  EXPECT_DOUBLE_EQ(q4->after.memory_requests, now.memory_requests);
}

TEST(Capacity, ARateAboveTheHighestMakesALineWhateverLimitsIt) {
  const Deployment deployment = deploy("Llama 3 8B", "H100");
  const StepSpeed speed = roofline(deployment);
  Workload workload{.prompt_len = 1000, .output_len = 200, .max_sequences = 2};
  const double most = plan_capacity(deployment, speed, workload).max_rate;
  workload.rate = 0.9 * most;
  EXPECT_GT(plan_capacity(deployment, speed, workload).requests_present, 0);
  EXPECT_LE(plan_capacity(deployment, speed, workload).requests_present, 3);
  workload.rate = 1.1 * most;
  EXPECT_TRUE(std::isinf(plan_capacity(deployment, speed, workload).requests_present));
  // Where memory is what limits it, too.
  workload.max_sequences = 256;
  const double two_requests = 2.5 * plan_capacity(deployment, speed, workload).request_kv_bytes;
  EXPECT_TRUE(std::isinf(plan_capacity(deployment, speed, workload, two_requests).requests_present));
}

TEST(Capacity, AnEndlessRequestHoldsTwiceItsWindow) {
  Deployment deployment = deploy("Llama 3 8B", "H100");
  deployment.attention.window = 4096;
  const auto bytes = [&](const Workload& workload) {
    return plan_capacity(deployment, roofline(deployment), workload).request_kv_bytes;
  };
  Workload workload{.prompt_len = 6000, .output_len = 1000};
  EXPECT_DOUBLE_EQ(bytes(workload), 7008.0 * 131072);
  workload.prompt_len = 100'000;
  EXPECT_DOUBLE_EQ(bytes(workload), (2 * 4096 + 512 + 16) * 131072.0);
  deployment.attention.num_sinks = 64;
  EXPECT_DOUBLE_EQ(bytes(workload), (2 * 4096 + 64 + 512 + 16) * 131072.0);
}

Deployment with_window(Deployment deployment) {
  deployment.attention = {.window = 1024, .num_sinks = 16};
  deployment.max_endless_tokens = 1 << 24;
  return deployment;
}

TEST(Capacity, AWindowsRequestsGoOnForEverWhereTheirTokensFit) {
  const Deployment deployment = with_window(deploy("Llama 3.1 8B", "H100"));
  const std::int64_t held = KvCache::num_endless_tokens(deployment.attention, 512);
  const auto budget = static_cast<double>(100 * held * 131072);
  EXPECT_EQ(max_context_for_budget(deployment, budget, 100), 1 << 24);
  EXPECT_EQ(max_context_for_budget(deployment, budget, 101), held * 100 / 101 / 16 * 16);
  EXPECT_EQ(max_context_for_budget(deployment, budget, 200), held / 2 / 16 * 16);
  EXPECT_EQ(max_context_for_budget(deployment, 0, 1), 0);
  EXPECT_DOUBLE_EQ(budget / deployment.request_bytes(131072), 100);
  EXPECT_DOUBLE_EQ(deployment.request_bytes(128), 128.0 * 131072);
  EXPECT_EQ(plan_capacity(deployment, roofline(deployment), {}).longest_request, 1 << 24);
}

TEST(Roofline, NoTokenSeesMoreThanTheWindowAndItsSinks) {
  const Deployment all = deploy("Llama 3.1 8B", "H100");
  const Deployment bounded = with_window(all);
  const StepSpeed speed = roofline(bounded);
  const auto decode = [&](const Deployment& deployment, int num_tokens) {
    return decode_step_seconds(speed, deployment, 8, num_tokens);
  };
  EXPECT_DOUBLE_EQ(decode(bounded, 1000), decode(all, 1000));
  EXPECT_DOUBLE_EQ(decode(bounded, 100'000), decode(all, 1040));
  // Each further chunk of a prompt takes as long as the one before it.
  const auto prompt = [&](int num_tokens) { return prefill_seconds(speed, bounded, num_tokens, 0); };
  EXPECT_DOUBLE_EQ(prompt(512), prefill_seconds(speed, all, 512, 0));
  EXPECT_LT(prompt(131072), 0.5 * prefill_seconds(speed, all, 131072, 0));
  EXPECT_NEAR(prompt(131072) - prompt(65536), prompt(65536) - prompt(0), 1e-3);
  EXPECT_DOUBLE_EQ(plan_capacity(bounded, speed, {.prompt_len = 8192}).ttft_seconds, prompt(8192));
}

TEST(Capacity, AWindowFindsNoMoreOfAPromptThanIsShared) {
  const Deployment all = deploy("Llama 3.1 8B", "H100");
  const Deployment bounded = with_window(all);
  EXPECT_EQ(all.num_cached(8192, 0.9), 7360);
  EXPECT_EQ(all.num_cached(8192, 1), 8191);
  EXPECT_EQ(bounded.num_cached(8192, 0.9), 1024);
  EXPECT_EQ(bounded.num_cached(100, 0.9), 80);
  EXPECT_EQ(bounded.num_cached(1, 1), 0);
}

TEST(Capacity, AWindowsPromptsMayBeLongerThanTheContext) {
  Deployment deployment = deploy("Llama 3 8B", "H100");
  const StepSpeed speed = roofline(deployment);
  EXPECT_EQ(longest_prompt_within(speed, deployment, 2, 0), 8192);
  deployment = with_window(deployment);
  const int length = longest_prompt_within(speed, deployment, 2, 0);
  EXPECT_GT(length, 100'000);
  EXPECT_LE(prefill_seconds(speed, deployment, length, 0), 2);
  EXPECT_GT(prefill_seconds(speed, deployment, length + 1, 0), 2);
  deployment.max_endless_tokens = 50'000;
  EXPECT_EQ(longest_prompt_within(speed, deployment, 2, 0), 50'000);
}

TEST(Levers, ComeInOrderAndWithTheirFigures) {
  const Deployment deployment = deploy("Llama 3.1 8B", "L4");
  const StepSpeed speed = roofline(deployment);
  const Workload workload{.prompt_len = 4000, .output_len = 400};
  const Capacity now = plan_capacity(deployment, speed, workload);
  const std::vector<Lever> levers = list_levers(deployment, speed, workload, 0);
  ASSERT_GE(levers.size(), 4U);
  for (std::size_t i = 0; i < levers.size(); ++i) {
    if (i > 0) {
      EXPECT_LE(levers[i].after.max_rate, levers[i - 1].after.max_rate);
    }
    EXPECT_TRUE(levers[i].after.max_rate > now.max_rate ||
                levers[i].after.ttft_seconds < now.ttft_seconds)
        << levers[i].name;
  }
  const auto kv = std::find_if(levers.begin(), levers.end(),
                               [](const Lever& l) { return l.option == "--kv-type int8"; });
  ASSERT_NE(kv, levers.end());
  EXPECT_GT(kv->after.memory_requests, 1.8 * now.memory_requests);
}

TEST(Levers, AWindowShortensTheFirstTokenToo) {
  const Deployment deployment = deploy("Llama 3.1 8B", "H100");
  const StepSpeed speed = roofline(deployment);
  const Workload workload{.prompt_len = 100'000};
  const std::vector<Lever> levers = list_levers(deployment, speed, workload, 0);
  const auto window = std::ranges::find(
      levers, std::string("--attention-window 1024 --attention-sinks 16"), &Lever::option);
  ASSERT_NE(window, levers.end());
  const Capacity asked = plan_capacity(with_window(deployment), speed, workload);
  EXPECT_DOUBLE_EQ(window->after.ttft_seconds, asked.ttft_seconds);
  EXPECT_DOUBLE_EQ(window->after.max_rate, asked.max_rate);
  EXPECT_LT(asked.ttft_seconds, 0.5 * plan_capacity(deployment, speed, workload).ttft_seconds);
}

TEST(Levers, AWindowIsOneThatAServerTakes) {
  const auto window_of = [](int context_len) {
    Deployment deployment = deploy("Llama 3.1 8B", "H100");
    deployment.shape.context_len = context_len;
    const Workload workload{.prompt_len = context_len - 300};
    for (const Lever& lever : list_levers(deployment, roofline(deployment), workload, 0))
      if (lever.option.starts_with("--attention-window ")) return lever.option;
    return std::string();
  };
  // Two windows, 16 sinks, a step's 512 tokens and a block.
  EXPECT_EQ(window_of(2592), "--attention-window 1024 --attention-sinks 16");
  EXPECT_EQ(window_of(2591), "--attention-window 512 --attention-sinks 16");
  EXPECT_EQ(window_of(1056), "--attention-window 256 --attention-sinks 16");
  EXPECT_EQ(window_of(1055), "");
}

TEST(Levers, OfAModelThatDoesNotFitAreThoseThatMakeItFit) {
  const Deployment deployment = deploy("Llama 3 70B", "H100");
  const std::vector<Lever> levers = list_levers(deployment, roofline(deployment), {}, 0);
  ASSERT_FALSE(levers.empty());
  EXPECT_TRUE(levers.front().after.fits());
}

TEST(Levers, AdviseNoMoreDevicesThanThereMayBe) {
  const auto advises_devices = [](int num_devices) {
    const Deployment deployment = deploy("Llama 3 70B", "H100", num_devices);
    return std::ranges::any_of(list_levers(deployment, roofline(deployment), {}, 0),
                               [](const Lever& l) { return l.option.starts_with("--tp "); });
  };
  EXPECT_TRUE(advises_devices(kMaxDevices / 2));
  EXPECT_FALSE(advises_devices(kMaxDevices / 2 + 1));
}

TEST(Machines, AreFoundByTheirUsualNames) {
  EXPECT_EQ(find_machine("h100").name, "H100 SXM");
  EXPECT_EQ(find_machine("rtx-4090").name, "RTX 4090");
  EXPECT_EQ(find_machine("4090").name, "RTX 4090");
  EXPECT_EQ(find_machine("a100").name, "A100 80G");
  EXPECT_THROW((void)find_machine("h"), Error);
  EXPECT_THROW((void)find_machine("tpu"), Error);
}

TEST(Machines, ThisOneHasPeaks) {
  ThreadPool pool(1);
  const Machine machine = measure_machine(select_kernels(), pool, ActivationType::kInt8);
  EXPECT_GT(machine.read_bytes_per_s, 1e8);
  for (const double peak : machine.ops_per_s) EXPECT_GT(peak, 1e8);
}

// Products as they were asked for, by format: whether activations were codes and might be rounded to BF16.
std::map<PackedFormat, std::pair<bool, bool>> asked_products;

TEST(Machines, ThisOneIsMeasuredAsModelsMultiply) {
  ThreadPool pool(1);
  KernelTable kernels = select_kernels();
  kernels.matmul = [](const MatmulArgs& args, int begin, int end) {
    asked_products[args.w->format] = {args.xq != nullptr, args.rounds_to_bf16};
    select_kernels().matmul(args, begin, end);
  };
  for (const ActivationType activations : {ActivationType::kInt8, ActivationType::kF32}) {
    asked_products.clear();
    (void)measure_machine(kernels, pool, activations);
    const bool is_fast = activations == ActivationType::kInt8;
    EXPECT_EQ(asked_products.at(PackedFormat::kBF16), std::pair(false, is_fast));
    EXPECT_EQ(asked_products.at(PackedFormat::kF16), std::pair(false, is_fast));
    EXPECT_EQ(asked_products.at(PackedFormat::kW8), std::pair(is_fast && !kernels.rounds_w8, is_fast));
    EXPECT_EQ(asked_products.at(PackedFormat::kW4), std::pair(is_fast, is_fast));
  }
}

}  // namespace
}  // namespace larder
