// When, if ever, an idle block will be used again: learned while serving.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace larder {

// Blocks fall into classes by what is known of them: how often they were used, how far apart, and
// whether a sequence ended in them. Ages, in blocks given back since the block itself was, fall into
// buckets that end at a quarter, a half and one pool, and then at steps of the square root of two,
// up to 128 pools. The model is the chance that a block that reaches a bucket is used again in it,
// as discrete-time survival analysis has it:
//     logit(chance) = base[bucket] + shift[gap][bucket] + uses[level] + end[is_end].
// Its terms start from what is true of most loads (chances even over logarithmic age, so that the
// older goes first, and odds in proportion to the number of uses), and follow what is observed, by
// steps of Newton's method on the diagonal; each weighs against what was seen before, at most 32
// pools of it, so that old habits fade. It has no constants in seconds or tokens.
//
// What decides is a block's density: the hits to be expected per unit of time that it stays, if it
// goes at the best moment from now (Gittins' index). After LHD (Beckmann, Chen, Cidon, NSDI 2018).
class ReuseModel {
 public:
  static constexpr int kNumBuckets = 18;
  static constexpr int kNumUses = 10;  // levels
  static constexpr int kNumGaps = 9;   // levels; 0 = not known
  static constexpr float kNoGap = -1;
  static constexpr int kNumClasses = kNumUses * kNumGaps * 2;

  explicit ReuseModel(int num_blocks);

  // mean_gap_log2: of the times between uses, kNoGap where they are not known.
  int class_of(int num_uses, float mean_gap_log2, bool is_end) const;
  // Age at which the bucket ends; the last has no end.
  std::int64_t end_of(int bucket) const { return ends_[static_cast<std::size_t>(bucket)]; }

  // A block left the bucket: because it was used, or because it grew older.
  void observe(int block_class, int bucket, bool is_used);
  // Learns from what was observed since the last time, and computes densities anew.
  void learn();
  double density(int block_class, int bucket) const {
    return densities_[static_cast<std::size_t>(block_class * kNumBuckets + bucket)];
  }

 private:
  struct Count {
    std::uint32_t num_left = 0;
    std::uint32_t num_used = 0;
  };
  struct Term {
    double value = 0;
    double weight = 0;  // observations behind it
    double slope = 0;   // of the step to come
    double curvature = 0;
  };
  struct Terms {
    std::array<Term, kNumBuckets> base;
    std::array<std::array<Term, kNumBuckets>, kNumGaps> shift;
    std::array<Term, kNumUses> uses;
    std::array<Term, 2> end;
  };
  // The four terms of a class in a bucket.
  std::array<Term*, 4> terms_of(int block_class, int bucket);
  double chance(int block_class, int bucket);
  void step(Term& term) const;
  void update_densities(int block_class);

  const double num_blocks_;
  std::array<std::int64_t, kNumBuckets> ends_{};
  std::array<double, kNumBuckets> widths_{};
  Terms terms_;
  std::vector<Count> counts_;      // [kNumClasses, kNumBuckets]
  std::vector<double> densities_;  // [kNumClasses, kNumBuckets]
};

}  // namespace larder
