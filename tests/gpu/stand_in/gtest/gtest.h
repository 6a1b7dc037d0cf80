// As much of GoogleTest as the CUDA tests need, for a machine that has not got it. For
// tests/gpu/run alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace testing {

class Test {
 public:
  virtual ~Test() = default;
  virtual void TestBody() = 0;
};

template <class T>
class TestWithParam : public Test {
 public:
  static T& current() {
    static T it{};
    return it;
  }
  static T GetParam() { return current(); }
};

namespace internal {

struct State {
  struct Entry {
    std::string suite, name;
    std::function<void()> run;  // of one parameter, set beforehand
    std::function<void(const char*)> set_param;  // null without parameters
  };
  std::vector<Entry> entries;
  std::map<std::string, std::vector<const char*>> params;  // of a suite
  std::vector<std::string> traces;
  int num_failures = 0;  // of the running test
};
inline State& state() {
  static State it;
  return it;
}

// One failure's message; prints when it ends.
class Failure {
 public:
  Failure(const char* file, int line, const char* text) {
    out_ << file << ":" << line << ": " << text << " ";
  }
  template <class T>
  Failure& operator<<(const T& value) {
    out_ << value;
    return *this;
  }
  std::string text() const { return out_.str(); }

 private:
  std::ostringstream out_;
};
struct Report {
  void operator=(const Failure& failure) const {
    constexpr int kMostShown = 5;
    if (++state().num_failures > kMostShown) return;
    std::cout << "  " << failure.text();
    for (const std::string& trace : state().traces) std::cout << " [" << trace << "]";
    std::cout << std::endl;
  }
};

struct Trace {
  template <class T>
  explicit Trace(const T& value) {
    std::ostringstream out;
    out << value;
    state().traces.push_back(out.str());
  }
  ~Trace() { state().traces.pop_back(); }
};

inline int add_test(State::Entry entry) {
  state().entries.push_back(std::move(entry));
  return 0;
}
inline int add_params(const char* suite, std::vector<const char*> params) {
  state().params[suite] = std::move(params);
  return 0;
}

// Whether it passed.
inline bool run_one(const State::Entry& entry, const std::string& param) {
  state().num_failures = 0;
  std::cout << entry.suite << "." << entry.name << param << " ..." << std::endl;
  try {
    entry.run();
  } catch (const std::exception& error) {
    ++state().num_failures;
    std::cout << "  threw: " << error.what() << std::endl;
  }
  std::cout << (state().num_failures == 0 ? "  ok" : "  FAILED") << std::endl;
  return state().num_failures == 0;
}

}  // namespace internal

template <class... Names>
std::vector<const char*> Values(Names... names) {
  return {names...};
}

inline std::vector<std::string> suites() {
  std::vector<std::string> names;
  for (const internal::State::Entry& entry : internal::state().entries)
    if (std::find(names.begin(), names.end(), entry.suite) == names.end())
      names.push_back(entry.suite);
  return names;
}

struct Count {
  int tests = 0;
  int failed = 0;
};
// Runs those whose names, SUITE.TEST, begin so.
inline Count run_tests(const std::string& begin) {
  Count count;
  const auto run = [&](const internal::State::Entry& entry, const std::string& param) {
    ++count.tests;
    count.failed += internal::run_one(entry, param) ? 0 : 1;
  };
  for (const internal::State::Entry& entry : internal::state().entries) {
    if (!(entry.suite + "." + entry.name).starts_with(begin)) continue;
    if (!entry.set_param) run(entry, "");
    for (const char* param : internal::state().params[entry.suite]) {
      entry.set_param(param);
      run(entry, std::string("/") + param);
    }
  }
  return count;
}

}  // namespace testing

#define LARDER_TEST_(suite, name, base, set)                                              \
  class suite##_##name : public base {                                                    \
   public:                                                                                \
    void TestBody() override;                                                             \
  };                                                                                      \
  static const int suite##_##name##_added = ::testing::internal::add_test(                \
      {#suite, #name, [] { suite##_##name().TestBody(); }, set});                         \
  void suite##_##name::TestBody()
#define TEST(suite, name) LARDER_TEST_(suite, name, ::testing::Test, nullptr)
#define TEST_F(suite, name) LARDER_TEST_(suite, name, suite, nullptr)
#define TEST_P(suite, name) \
  LARDER_TEST_(suite, name, suite, [](const char* param) { suite::current() = param; })
#define INSTANTIATE_TEST_SUITE_P(prefix, suite, ...) \
  static const int suite##_params_added = ::testing::internal::add_params(#suite, __VA_ARGS__)

#define LARDER_EXPECT_(ok, text, leave) \
  if (ok) {                             \
  } else                                \
    leave ::testing::internal::Report() = ::testing::internal::Failure(__FILE__, __LINE__, text)
#define EXPECT_TRUE(a) LARDER_EXPECT_((a), #a, )
#define ASSERT_TRUE(a) LARDER_EXPECT_((a), #a, return)
#define EXPECT_EQ(a, b) LARDER_EXPECT_((a) == (b), #a " == " #b, )
#define ASSERT_EQ(a, b) LARDER_EXPECT_((a) == (b), #a " == " #b, return)
#define EXPECT_LE(a, b) LARDER_EXPECT_((a) <= (b), #a " <= " #b, ) << (a) << " "
#define LARDER_NEAR_(a, b, distance, leave)                                              \
  LARDER_EXPECT_(std::abs((a) - (b)) <= (distance), #a " near " #b, leave) << (a) << " " \
                                                                           << (b) << " "
#define EXPECT_NEAR(a, b, distance) LARDER_NEAR_(a, b, distance, )
#define ASSERT_NEAR(a, b, distance) LARDER_NEAR_(a, b, distance, return)
#define SCOPED_TRACE(value) const ::testing::internal::Trace larder_trace(value)
