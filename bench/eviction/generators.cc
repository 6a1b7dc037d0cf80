// Loads of other kinds than the recorded one.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "base/error.h"
#include "trace.h"

namespace larder {
namespace {

class Generator {
 public:
  explicit Generator(std::uint32_t seed) : random_(seed) {}

  double uniform() { return static_cast<double>(random_()) / 4294967296.0; }
  int between(int low, int high) {
    return low + static_cast<int>(uniform() * static_cast<double>(high - low + 1));
  }
  double exponential(double mean) { return -mean * std::log(1 - uniform()); }
  // [0, count), the k-th as often as 1 / (k + 1)^exponent says.
  int zipf(int count, double exponent) {
    std::vector<double>& sums = zipfs_[{count, exponent}];
    if (sums.empty()) {
      double sum = 0;
      for (int k = 1; k <= count; ++k) sums.push_back(sum += std::pow(k, -exponent));
    }
    const auto found = std::ranges::lower_bound(sums, uniform() * sums.back());
    return static_cast<int>(found - sums.begin());
  }
  // Content that is met once.
  int fresh() { return next_fresh_++; }
  void append_fresh(std::vector<int>& contents, int count) {
    for (int i = 0; i < count; ++i) contents.push_back(fresh());
  }
  // Block `part` of a document that many requests share.
  static int document(int index, int part) { return 1'000'000'000 + index * 1000 + part; }
  static void append_document(std::vector<int>& contents, int index, int count) {
    for (int part = 0; part < count; ++part) contents.push_back(document(index, part));
  }

  void request(const std::vector<int>& contents) {
    std::vector<std::int32_t> blocks;
    std::int32_t parent = -1;
    for (const int content : contents) {
      const auto next = static_cast<std::int32_t>(ids_.size());
      parent = ids_.try_emplace({parent, content}, next).first->second;
      blocks.push_back(parent);
    }
    trace.requests.push_back(std::move(blocks));
  }

  Trace trace;

 private:
  std::mt19937 random_;
  int next_fresh_ = 0;
  std::map<std::pair<int, double>, std::vector<double>> zipfs_;
  std::map<std::pair<std::int32_t, int>, std::int32_t> ids_;
};

// Sessions that act when their time has come, each with its next one.
class Timeline {
 public:
  void at(double time, std::function<void(double)> act) { acts_.emplace(time, std::move(act)); }
  void run(std::size_t num_requests, const Trace& trace) {
    while (!acts_.empty() && trace.requests.size() < num_requests) {
      const auto first = acts_.begin();
      const auto act = std::move(first->second);
      const double time = first->first;
      acts_.erase(first);
      act(time);
    }
  }

 private:
  std::multimap<double, std::function<void(double)>> acts_;
};

// The same prompts again and again, more than most pools hold.
void generate_loop(Generator& generator) {
  for (int round = 0; round < 12; ++round) {
    for (int prompt = 0; prompt < 1500; ++prompt) {
      std::vector<int> contents;
      Generator::append_document(contents, prompt, 8);
      generator.request(contents);
    }
  }
}

// A hot set beside long prompts that come once.
void generate_scan(Generator& generator) {
  for (int i = 0; i < 12000; ++i) {
    std::vector<int> contents;
    if (generator.uniform() < 0.5) {
      Generator::append_document(contents, generator.zipf(200, 0.6), 10);
      generator.append_fresh(contents, 1);
    } else {
      generator.append_fresh(contents, generator.between(10, 80));
    }
    generator.request(contents);
  }
}

void generate_zipf(Generator& generator) {
  for (int i = 0; i < 20000; ++i) {
    std::vector<int> contents;
    Generator::append_document(contents, generator.zipf(4000, 0.9), 8);
    generator.request(contents);
  }
}

// Agents with long system prompts and tools: quick steps that each add a little, pauses for a human
// now and then, and new agents all the time.
void generate_agent(Generator& generator) {
  Timeline timeline;
  struct Session {
    std::vector<int> contents;
    int num_left = 0;
  };
  std::function<void(double, Session)> step = [&](double time, Session session) {
    generator.request(session.contents);
    if (--session.num_left <= 0) return;
    generator.append_fresh(session.contents, generator.between(1, 3));
    const bool is_human = generator.uniform() < 0.1;
    const double wait = is_human ? 60 + generator.exponential(240) : 2 + generator.exponential(10);
    timeline.at(time + wait, [&step, session](double now) { step(now, session); });
  };
  std::function<void(double)> arrive = [&](double time) {
    Session session;
    Generator::append_document(session.contents, generator.zipf(30, 1.0), 12);
    generator.append_fresh(session.contents, generator.between(1, 12));
    session.num_left = 1 + static_cast<int>(generator.exponential(15));
    step(time, session);
    timeline.at(time + generator.exponential(4), arrive);
  };
  timeline.at(0, arrive);
  timeline.run(15000, generator.trace);
}

// Questions over documents: an instruction, the three documents found, the question. One in four has
// a second question.
void generate_rag(Generator& generator) {
  Timeline timeline;
  std::function<void(double)> arrive = [&](double time) {
    std::vector<int> contents;
    Generator::append_document(contents, 100'000 + generator.zipf(5, 1.0), 2);
    std::array<int, 3> found;
    for (int& one : found) one = generator.zipf(3000, 0.8);
    std::ranges::sort(found);
    // The same document in as many blocks, always.
    for (const int one : found) Generator::append_document(contents, one, 4 + one % 3);
    generator.append_fresh(contents, 1);
    generator.request(contents);
    if (generator.uniform() < 0.25) {
      generator.append_fresh(contents, 2);
      timeline.at(time + 20 + generator.exponential(60),
                  [&generator, contents](double) { generator.request(contents); });
    }
    timeline.at(time + generator.exponential(0.5), arrive);
  };
  timeline.at(0, arrive);
  timeline.run(15000, generator.trace);
}

// Editors: long contexts that grow fast while someone works, change in the middle when a file does,
// and are left for good or until after a break.
void generate_coding(Generator& generator) {
  Timeline timeline;
  struct Session {
    std::vector<int> contents;
    int num_left = 0;
  };
  std::function<void(double, Session)> turn = [&](double time, Session session) {
    generator.request(session.contents);
    if (--session.num_left <= 0) return;
    const double dice = generator.uniform();
    if (dice < 0.1) {
      session.contents.resize(static_cast<std::size_t>(
          generator.between(6, static_cast<int>(session.contents.size()))));
    }
    generator.append_fresh(session.contents, generator.between(1, 6));
    const double wait =
        dice > 0.95 ? 600 + generator.exponential(1200) : 5 + generator.exponential(40);
    timeline.at(time + wait, [&turn, session](double now) { turn(now, session); });
  };
  std::function<void(double)> arrive = [&](double time) {
    Session session;
    Generator::append_document(session.contents, generator.zipf(4, 1.0), 6);
    generator.append_fresh(session.contents, generator.between(5, 100));
    session.num_left = 1 + static_cast<int>(generator.exponential(12));
    turn(time, session);
    timeline.at(time + generator.exponential(12), arrive);
  };
  timeline.at(0, arrive);
  timeline.run(12000, generator.trace);
}

constexpr std::array<std::string_view, 6> kNames = {"loop", "scan", "zipf",
                                                    "agent", "rag", "coding"};

}  // namespace

std::span<const std::string_view> trace_generators() { return kNames; }

Trace generate_trace(std::string_view name) {
  using Generate = void (*)(Generator&);
  constexpr std::array<Generate, kNames.size()> kGenerate = {generate_loop,  generate_scan,
                                                             generate_zipf,  generate_agent,
                                                             generate_rag,   generate_coding};
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end())
    throw Error(ErrorKind::kInvalidArgument, fmt::format("{}: no such generator", name));
  Generator generator(17);
  generator.trace.name = name;
  kGenerate[static_cast<std::size_t>(found - kNames.begin())](generator);
  return std::move(generator.trace);
}

}  // namespace larder
