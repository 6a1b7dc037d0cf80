// Products with 8-bit activations: exact integers over a group of columns, in tensor cores, then
// FP32.
#include "kernels/cuda/int8_unit.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

struct Product {
  PackedMatrix w;
  QuantizedRows x;
  Outputs outputs;
  int panel_begin;
  int panel_end;

  LARDER_MEMBER int num_units() const { return x.num_cols / kUnitCols; }
  // Those past the ends are the last: what comes of them is put nowhere.
  LARDER_MEMBER int row(int r) const { return min_of(r, outputs.num_rows - 1); }
  LARDER_MEMBER const std::byte* panel(int index) const {
    return w.data + min_of(index, panel_end - 1) * w.panel_stride_bytes;
  }
};

// Few rows: a warp takes a segment of kTiles times 8 rows, or of a single one, and of two panels;
// codes go from there to registers, 16 bytes a load.
template <int kTiles, int kRows>
using FewRowsOf =
    FewRows<kRows == 1 ? 1 : kTiles * kMmaRows, kWarpPanels, kTiles == 1 ? 16 : 8, 32>;

// Calls function(i) for a segment's units. A whole one's without conditions in between, so that all
// that they load can be loaded first. With two levels, all are whole: a chunk is 256 columns.
template <class Format, class Function>
LARDER_DEVICE void for_units(int segment, int num_units, const Function& function) {
  const int num_left = num_units - segment * kSegmentUnits;
  if (Format::kShape.two_level || num_left >= kSegmentUnits) {
    LARDER_UNROLL
    for (int i = 0; i < kSegmentUnits; ++i) function(i);
  } else {
    LARDER_UNROLL
    for (int i = 0; i < kSegmentUnits - 1; ++i)
      if (i < num_left) function(i);
  }
}

// A lane's weights of a segment as they lie in memory, all loaded before any is used.
template <class Format, int kOutputs>
struct SegmentWeights {
  LaneWords<Format> words[kSegmentUnits];
  typename Format::template Scales<kOutputs> scales[kSegmentUnits][kUnitGroups<Format>];

  LARDER_MEMBER void load(const std::byte* panel, int segment, int num_units, MmaLane lane) {
    const int first_group = segment * kSegmentUnits * kUnitGroups<Format>;
    const auto* chunk = reinterpret_cast<const std::byte*>(Format::chunk(panel, first_group));
    const int output = lane_output(lane) + (kOutputs == 1 ? lane.member : 0);
    for_units<Format>(segment, num_units, [&](int i) {
      const int first = Format::group_in_chunk(first_group) + i * kUnitGroups<Format>;
      words[i].load(Format::pieces(chunk, first), lane, [](int piece) { return piece; });
      LARDER_UNROLL
      for (int g = 0; g < kUnitGroups<Format>; ++g) scales[i][g].load(chunk, first + g, output);
    });
  }
  LARDER_MEMBER UnitScales<Format, kOutputs> scales_of(int i) const {
    UnitScales<Format, kOutputs> values;
    LARDER_UNROLL
    for (int g = 0; g < kUnitGroups<Format>; ++g)
      LARDER_UNROLL
      for (int output = 0; output < kOutputs; ++output) {
        values.scale[g][output] = scales[i][g].scale(output);
        values.minimum[g][output] = scales[i][g].minimum(output);
      }
    return values;
  }
};

template <class Format, int kTiles, int kRows>
struct SegmentSums {
  static constexpr int kOutputs = kTakenOutputs<kRows>;
  float sums[kTiles][kOutputs][kRows] = {};

  // Unit i of the segment that begins at first_unit.
  LARDER_MEMBER void add(const Product& product, const SegmentWeights<Format, kOutputs>& weights,
                         int i, int first_row, int first_unit, MmaLane lane) {
    std::uint32_t codes[2][4];
    weights.words[i].unpack(lane, codes);
    const auto scales = weights.scales_of(i);
    const int unit = first_unit + i;
    LARDER_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const int row = first_row + tile * kMmaRows;
      const std::int8_t* x = row_unit(product.x, product.row(row + lane.group), unit);
      RowUnit<Format> rows[kRows];
      LARDER_UNROLL
      for (int r = 0; r < kRows; ++r)
        rows[r].load(product.x, product.row(row + lane.member * kLaneRows + r), unit);
      add_unit<Format>(codes, scales, lane_columns(x, lane), rows, lane, sums[tile]);
    }
  }

  LARDER_MEMBER void put(float* to, MmaLane lane) const {
    if constexpr (kRows == 1)
      to[lane.group * kLaneOutputs + lane.member] = sums[0][0][0];
    else
      put_sums<kTiles * kMmaRows>(sums, to, lane);
  }
};

template <class Format, int kTiles, int kRows>
LARDER_KERNEL_OF((FewRowsOf<kTiles, kRows>::kThreads)) few_rows_kernel(LARDER_PARAM ProductGroup<Product> group) {
  using Shape = FewRowsOf<kTiles, kRows>;
  const Product& product = group.product();
  const MmaLane lane = mma_lane();
  const int first_panel = group.first_panel(kWarpPanels);
  const int first_row = static_cast<int>(blockIdx.y) * Shape::kRows;
  if (first_row >= product.outputs.num_rows) return wait_for_kernels_before();
  const std::byte* panel = product.panel(first_panel + lane_panel(lane));
  const int num_units = product.num_units();
  const int num_segments = (num_units + kSegmentUnits - 1) / kSegmentUnits;
  const int num_warps = num_block_threads() / 32;
  SegmentWeights<Format, kTakenOutputs<kRows>> weights;
  weights.load(panel, thread_index() / 32, num_units, lane);
  wait_for_kernels_before();  // weights are nobody's result
  const auto segment_sums = [&](int segment, int, float* partial) {
    SegmentSums<Format, kTiles, kRows> sums;
    for_units<Format>(segment, num_units, [&](int i) {
      sums.add(product, weights, i, first_row, segment * kSegmentUnits, lane);
    });
    sums.put(partial, lane);
    // The next ones come while the block adds up.
    if (segment + num_warps < num_segments)
      weights.load(panel, segment + num_warps, num_units, lane);
  };
  few_rows<Shape>(product.outputs, num_segments, first_row, first_panel * kPanelRows,
                  segment_sums);
}

// Many rows.
constexpr int kStepUnits = 2;
static_assert(kStepUnits * kTileRows == kTileThreads && kTileRows == kTileOutputs);

template <class Format>
struct Step {
  static constexpr int kGroups = kUnitGroups<Format>;
  static constexpr int kPieces = kUnitPieces<Format>;
  static constexpr int kMinGroups = Format::kHasMin ? kGroups : 1;

  Words4 codes[kTilePanels][kStepUnits][kPieces];
  Words4 x[kTileRows][kStepUnits * 2 + 2];  // two more, so that four rows lie in different banks
  float scale[kStepUnits][kGroups][kTileOutputs];
  float minimum[kStepUnits][kMinGroups][kTileOutputs];
  RowUnit<Format> rows[kStepUnits][kTileRows];

  // Where piece i of a unit's codes lies. The eight lanes that load 16 bytes at once are at two
  // neighbours in each of four rows: this puts them in different banks.
  static LARDER_MEMBER int place(int i) {
    if constexpr (Format::kBits == 8)
      return place_of_every_other(i);
    else if constexpr (kGroups == 2)
      return i ^ (i >= kPieces / 2 ? 2 : 0);
    else
      return i ^ (i >> 2 & 2);
  }
};

// What a thread brings to the steps of a tile: as copies 16 bytes here and there of a panel's codes
// and of two rows; through its registers the scales of one output and a row's, of one unit.
template <class Format>
class Supply {
 public:
  LARDER_MEMBER Supply(const Product& product, int first_panel, int first_row)
      : x_(product.x),
        num_units_(product.num_units()),
        codes_(product.panel(first_panel + thread_index() / 32)),
        outputs_(product.panel(first_panel + index() / kPanelRows)),
        row_(product.row(first_row + index())) {
    LARDER_UNROLL
    for (int i = 0; i < 2; ++i)
      rows_[i] = reinterpret_cast<const Words4*>(
                     row_unit(x_, product.row(first_row + x_row() + 32 * i), 0)) + x_piece();
  }

  LARDER_MEMBER void copy(int step, Step<Format>& to) const {
    constexpr int kPieces = kUnitPieces<Format>;
    const int warp = thread_index() / 32;
    const Words4* pieces = Format::pieces(codes_, step * kStepUnits * kUnitGroups<Format>);
    LARDER_UNROLL
    for (int first = 0; first < kStepUnits * kPieces; first += 32) {
      const int i = first + thread_index() % 32;
      if (i < kStepUnits * kPieces)
        copy_later(&to.codes[warp][i / kPieces][Step<Format>::place(i % kPieces)], pieces + i);
    }
    if (step * kStepUnits + x_piece() / 2 >= num_units_) return;
    LARDER_UNROLL
    for (int i = 0; i < 2; ++i)
      copy_later(&to.x[x_row() + 32 * i][x_piece()], rows_[i] + step * kStepUnits * 2);
  }

  LARDER_MEMBER void load(int step) {
    const int unit = min_of(step * kStepUnits + unit_in_step(), num_units_ - 1);
    LARDER_UNROLL
    for (int i = 0; i < kUnitGroups<Format>; ++i)
      scales_[i].load(outputs_, unit * kUnitGroups<Format> + i, index() % kPanelRows);
    row_unit_.load(x_, row_, unit);
  }
  LARDER_MEMBER void put(Step<Format>& to) const {
    LARDER_UNROLL
    for (int i = 0; i < kUnitGroups<Format>; ++i) {
      to.scale[unit_in_step()][i][index()] = scales_[i].scale(0);
      if constexpr (Format::kHasMin)
        to.minimum[unit_in_step()][i][index()] = scales_[i].minimum(0);
    }
    to.rows[unit_in_step()][index()] = row_unit_;
  }

 private:
  static LARDER_MEMBER int unit_in_step() { return thread_index() / kTileRows; }
  static LARDER_MEMBER int index() { return thread_index() % kTileRows; }
  static LARDER_MEMBER int x_row() { return thread_index() / 4; }
  static LARDER_MEMBER int x_piece() { return thread_index() % 4; }

  QuantizedRows x_;
  int num_units_;
  const std::byte* codes_;
  const std::byte* outputs_;
  int row_;
  const Words4* rows_[2];
  typename Format::template Scales<1> scales_[kUnitGroups<Format>];
  RowUnit<Format> row_unit_;
};

// A unit's products, of a lane.
template <class Format>
LARDER_DEVICE void add_staged(const Step<Format>& step, int unit, MmaLane lane, TileSums& sums) {
  const int panel = TileSums::first_output() / kPanelRows + lane_panel(lane);
  LaneWords<Format> words;
  words.load(step.codes[panel][unit], lane, [](int i) { return Step<Format>::place(i); });
  std::uint32_t codes[2][4];
  words.unpack(lane, codes);
  UnitScales<Format, kLaneOutputs> scales;
  const int output = TileSums::first_output() + lane.group * kLaneOutputs;
  LARDER_UNROLL
  for (int i = 0; i < kUnitGroups<Format>; ++i) {
    Several<float, kLaneOutputs> scale, minimum;
    load_several(scale, step.scale[unit][i], output);
    if constexpr (Format::kHasMin) load_several(minimum, step.minimum[unit][i], output);
    LARDER_UNROLL
    for (int j = 0; j < kLaneOutputs; ++j) {
      scales.scale[i][j] = scale.value[j];
      if constexpr (Format::kHasMin) scales.minimum[i][j] = minimum.value[j];
    }
  }
  LARDER_UNROLL
  for (int tile = 0; tile < TileSums::kTiles; ++tile) {
    const int row = TileSums::first_row() + tile * kMmaRows;
    const auto* x = reinterpret_cast<const std::int8_t*>(step.x[row + lane.group] + unit * 2);
    const int first = row + lane.member * kLaneRows;
    const RowUnit<Format> rows[kLaneRows] = {step.rows[unit][first], step.rows[unit][first + 1]};
    add_unit<Format>(codes, scales, lane_columns(x, lane), rows, lane, sums.segment[tile]);
  }
}

template <class Format>
LARDER_KERNEL_OF(kTileThreads) many_rows_kernel(LARDER_PARAM ProductGroup<Product> group) {
  LARDER_SHARED Step<Format> steps[kBuffers];
  wait_for_kernels_before();
  const Product& product = group.product();
  const MmaLane lane = mma_lane();
  const int panel = group.first_panel(kTilePanels);
  const int row = static_cast<int>(blockIdx.y) * kTileRows;
  if (row >= product.outputs.num_rows) return;
  const int num_units = product.num_units();
  const int num_steps = (num_units + kStepUnits - 1) / kStepUnits;
  Supply<Format> supply(product, panel, row);
  TileSums sums;
  walk_steps(steps, num_steps, supply, [&](int step, const Step<Format>& operands) {
    LARDER_UNROLL
    for (int unit = 0; unit < kStepUnits; ++unit)
      if (step * kStepUnits + unit < num_units) add_staged(operands, unit, lane, sums);
    constexpr int kSegmentSteps = kSegmentUnits / kStepUnits;
    if (step % kSegmentSteps == kSegmentSteps - 1 || step + 1 == num_steps) sums.end_segment();
  });
  sums.put(product.outputs, row, panel * kPanelRows, lane);
}

// Whether tiles would leave most of the device idle, so that weights are better read twice: by more blocks.
bool has_few_tiles(const ProductGroup<Product>& group) {
  return group.of[0].outputs.num_rows <= 2 * kMostFewRows &&
         GroupGrid(group, kTilePanels, kTileRows).columns <= static_cast<unsigned>(num_multiprocessors());
}

template <class Format>
void launch_rows(const ProductGroup<Product>& group) {
  const auto count = row_count(group.of[0].outputs.num_rows);
  switch (count == RowCount::kMany && has_few_tiles(group) ? RowCount::kUpTo16 : count) {
    case RowCount::kOne:
      return launch_few_rows<FewRowsOf<1, 1>>(few_rows_kernel<Format, 1, 1>, group);
    case RowCount::kUpTo8:
      return launch_few_rows<FewRowsOf<1, 2>>(few_rows_kernel<Format, 1, 2>, group);
    case RowCount::kUpTo16:
      return launch_few_rows<FewRowsOf<2, 2>>(few_rows_kernel<Format, 2, 2>, group);
    case RowCount::kMany:
      return launch_tiles(many_rows_kernel<Format>, kTileThreads, group);
  }
}

}  // namespace

void matmul_int8(const ProductList& products) {
  const auto group = group_of(products, [](const MatmulArgs& args, int begin, int end) {
    return Product{*args.w, *args.xq, outputs_of(args, end), begin, end};
  });
  with_code_format<CodeFormat, false>(*products.of[0]->w,
                                      [&]<class Format>() { launch_rows<Format>(group); });
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
