// Cached weights (octile_weight) on the host device: which passes quantise W, and what their copies
// hold after writes that are told, untold, trusted, captured and replayed.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/support/layer_case.h"

namespace octile::test {
namespace {

constexpr std::uint32_t kForward = OCTILE_LAYER_WITHOUT_BACKWARD;
constexpr std::uint32_t kTrain =
    kForward | OCTILE_LAYER_KEEP_X | OCTILE_LAYER_INPUT_GRADIENT | OCTILE_LAYER_WEIGHT_GRADIENT;
constexpr std::uint32_t kFirstLayer = kForward | OCTILE_LAYER_KEEP_X | OCTILE_LAYER_WEIGHT_GRADIENT;
constexpr std::uint32_t kBackward = OCTILE_LAYER_WITHOUT_FORWARD | OCTILE_LAYER_INPUT_GRADIENT;

struct WeightDelete {
  void operator()(octile_weight* weight) const {
    EXPECT_EQ(octile_weight_destroy(weight), OCTILE_OK);
  }
};
using WeightHandle = std::unique_ptr<octile_weight, WeightDelete>;

WeightHandle make_weight(octile_layer* layer) {
  octile_weight* weight = nullptr;
  EXPECT_EQ(octile_weight_create(layer, &weight), OCTILE_OK) << octile_last_error();
  return WeightHandle(weight);
}

// A W with the memory of its copies, and passes that do of a pass what W has to do with it.
class Cached {
 public:
  explicit Cached(const LayerCase& layer_case, std::uint64_t seed = 1)
      : case_(layer_case),
        layer(make_layer(library, case_)),
        weight(make_weight(layer.get())),
        rowwise(memory_of_copy(layer.get(), OCTILE_LAYER_W, false, 0)),
        transposed(memory_of_copy(layer.get(), OCTILE_LAYER_W, true, 0)),
        fingerprints(static_cast<std::size_t>(std::max<std::int64_t>(case_.experts, 1))),
        w(LayerTensors(case_, seed).w),
        random_(seed) {}

  octile_weight_call call(std::uint32_t uses) const {
    octile_weight_call call{};
    call.struct_size = sizeof call;
    call.uses = uses;
    call.trusted = trusted ? 1 : 0;
    call.stamp = stamp;
    call.epoch = epoch;
    call.capture = capture;
    call.words = has_words ? const_cast<std::uint32_t*>(words.data()) : nullptr;
    call.replayed = replayed ? 1 : 0;
    return call;
  }
  octile_layer_operand memory() {
    octile_layer_operand operand{};
    operand.struct_size = sizeof operand;
    operand.source = w.data();
    if (keeps_rowwise) operand.rowwise = rowwise.get();
    if (keeps_transposed) operand.transposed = transposed.get();
    if (has_fingerprint) operand.fingerprint = fingerprints.data();
    return operand;
  }

  // The work of a pass on W, as replays repeat it. Returns how many copies it made.
  int run(const octile_layer_operand& operand) {
    if (operand.state == OCTILE_LAYER_CURRENT) return 0;
    if (operand.rowwise.codes == nullptr && operand.transposed.codes == nullptr) return 0;
    std::size_t bytes = 0;
    const std::uint32_t uses = OCTILE_LAYER_KEEP_W | OCTILE_LAYER_INPUT_GRADIENT;
    EXPECT_EQ(octile_layer_workspace_size(layer.get(), 0, uses, nullptr, &bytes), OCTILE_OK);
    Guarded space(bytes);
    const std::uint32_t changes = changes_seen();
    const bool skipped = operand.skip != nullptr && *operand.skip != 0;
    octile_layer_quantize_args args{};
    args.struct_size = sizeof args;
    args.tensor = OCTILE_LAYER_W;
    args.operand = &operand;
    args.workspace = space.get();
    args.workspace_bytes = bytes;
    EXPECT_EQ(octile_layer_quantize(layer.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
    if (skipped || (operand.fingerprint != nullptr && changes_seen() == changes)) return 0;
    return (operand.rowwise.codes != nullptr ? 1 : 0) +
           (operand.transposed.codes != nullptr ? 1 : 0);
  }

  // Begins a pass, runs it and ends it.
  int pass(std::uint32_t uses) {
    const octile_weight_call now = call(uses);
    last = memory();
    octile_layer_operand asked = memory();
    std::int32_t current = -1;
    EXPECT_EQ(octile_weight_is_current(weight.get(), &now, &asked, &current), OCTILE_OK)
        << octile_last_error();
    EXPECT_EQ(octile_weight_begin(weight.get(), &now, &last, nullptr), OCTILE_OK)
        << octile_last_error();
    EXPECT_EQ(current, last.state == OCTILE_LAYER_CURRENT ? 1 : 0);
    if (current == 1) {
      EXPECT_EQ(asked.rowwise.codes, last.rowwise.codes);
      EXPECT_EQ(asked.transposed.codes, last.transposed.codes);
    }
    const int made = run(last);
    EXPECT_EQ(octile_weight_end(weight.get(), nullptr), OCTILE_OK) << octile_last_error();
    return made;
  }

  std::uint32_t changes_seen() const {
    std::uint32_t sum = 0;
    for (const octile_fingerprint& one : fingerprints) sum += one.changes;
    return sum;
  }

  void write() {
    std::uniform_int_distribution<std::size_t> element(0, w.size() / sizeof(float) - 1);
    const float value = std::normal_distribution<float>()(random_);
    std::memcpy(w.data() + element(random_) * sizeof(float), &value, sizeof value);
  }
  void write_and_tell() {
    write();
    ++stamp;
  }

  // Returns the codes of a copy of today's contents.
  std::vector<unsigned char> codes(bool of_transposed) {
    CopyMemory fresh = memory_of_copy(layer.get(), OCTILE_LAYER_W, of_transposed, 0);
    run(of_transposed ? operand(w.data(), {}, fresh.get()) : operand(w.data(), fresh.get()));
    return fresh.codes.bytes();
  }
  bool holds_today(bool of_transposed) {
    return (of_transposed ? transposed : rowwise).codes.bytes() == codes(of_transposed);
  }

 private:
  LayerCase case_;

 public:
  LibraryHandle library{""};
  LayerHandle layer;
  WeightHandle weight;
  CopyMemory rowwise, transposed;
  std::vector<octile_fingerprint> fingerprints;
  std::vector<unsigned char> w;
  std::array<std::uint32_t, 3> words{};
  std::uint64_t stamp = 7, epoch = 3, capture = 0;
  bool trusted = false, has_words = false, has_fingerprint = true, replayed = false;
  bool keeps_rowwise = true, keeps_transposed = true;
  octile_layer_operand last{};  // of the last pass

 private:
  std::mt19937_64 random_;
};

LayerCase small(std::int64_t experts = 0, const std::string& recipe = "blockwise") {
  LayerCase c;
  c.recipe = recipe;
  c.experts = experts;
  c.n = 48;
  c.k = 160;
  c.bias = c.accumulate = false;
  return c;
}

class CachedWeights : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(LinearAndExperts, CachedWeights, ::testing::Values(0, 3));

TEST_P(CachedWeights, AreQuantizedOnceForTheMicrobatchesOfAStep) {
  Cached w(small(GetParam()));
  for (int step = 0; step < 3; ++step) {
    for (int microbatch = 0; microbatch < 3; ++microbatch) {
      EXPECT_EQ(w.pass(kTrain), microbatch == 0 ? 2 : 0);
      EXPECT_TRUE(w.holds_today(false) && w.holds_today(true));
      EXPECT_EQ(w.pass(kBackward), 0);
      EXPECT_EQ(w.last.state, OCTILE_LAYER_CURRENT);
    }
    w.write_and_tell();
  }
}

TEST_P(CachedWeights, SeeWritesThatNobodyTellsOfInTheNextForwardPass) {
  Cached w(small(GetParam()));
  EXPECT_EQ(w.pass(kForward), 1);
  EXPECT_EQ(w.pass(kForward), 0);
  w.write();
  EXPECT_EQ(w.pass(kForward), 1);
  EXPECT_TRUE(w.holds_today(false));
  EXPECT_EQ(w.last.fingerprint, w.fingerprints.data());
}

TEST_P(CachedWeights, BackwardReadsWhatItsForwardPassMade) {
  Cached w(small(GetParam()));
  w.pass(kTrain);
  const auto made = w.codes(true);
  w.write();
  EXPECT_EQ(w.pass(kBackward), 0);
  EXPECT_EQ(w.transposed.codes.bytes(), made);
  w.write_and_tell();
  EXPECT_EQ(w.pass(kBackward), 1);
  EXPECT_TRUE(w.holds_today(true));
}

// A backward pass has made one copy of other contents, so that the comparison finds W changed even
// if its old contents are back.
TEST_P(CachedWeights, TheFingerprintIsForgottenWhereACopyWasMadeWithoutIt) {
  Cached w(small(GetParam()));
  w.pass(kTrain);
  const std::vector<unsigned char> before = w.w;
  w.write_and_tell();
  EXPECT_EQ(w.pass(kBackward), 1);
  w.w = before;
  EXPECT_EQ(w.pass(kTrain), 2);
  EXPECT_TRUE(w.holds_today(false) && w.holds_today(true));
}

TEST_P(CachedWeights, ContentsOfOneForwardPassAreNotCompared) {
  Cached w(small(GetParam()));
  for (int step = 0; step < 4; ++step) {
    EXPECT_EQ(w.pass(kTrain), 2);
    EXPECT_EQ(w.last.fingerprint != nullptr, step == 0) << step;
    w.write_and_tell();
  }
}

TEST_P(CachedWeights, ThatAreTrustedAreQuantizedByStampsAlone) {
  Cached w(small(GetParam()));
  w.trusted = true;
  EXPECT_EQ(w.pass(kForward), 1);
  const auto made = w.codes(false);
  w.write();
  EXPECT_EQ(w.pass(kForward), 0);
  EXPECT_EQ(w.rowwise.codes.bytes(), made);
  ++w.epoch;
  EXPECT_EQ(w.pass(kForward), 1);
  EXPECT_TRUE(w.holds_today(false));
  w.write_and_tell();
  EXPECT_EQ(w.pass(kFirstLayer), 1);
  EXPECT_EQ(w.pass(kTrain), 2);  // no pass makes W^T alone
  EXPECT_TRUE(w.holds_today(false) && w.holds_today(true));
  w.trusted = false;
  EXPECT_EQ(w.pass(kForward), 1);
}

TEST_P(CachedWeights, OfNoMemoryAreLeftToTheCall) {
  Cached w(small(GetParam()));
  w.keeps_rowwise = w.keeps_transposed = false;
  EXPECT_EQ(w.pass(kTrain), 0);
  EXPECT_EQ(w.last.state, OCTILE_LAYER_QUANTIZE);
  EXPECT_EQ(w.last.fingerprint, nullptr);
  EXPECT_EQ(w.last.source, w.w.data());
  w.keeps_rowwise = true;
  EXPECT_EQ(w.pass(kTrain), 1);
  EXPECT_EQ(w.pass(kBackward), 0);
  EXPECT_EQ(w.last.state, OCTILE_LAYER_QUANTIZE);
  // A copy in memory that was given back is not read again.
  w.keeps_rowwise = false;
  w.pass(kForward);
  w.keeps_rowwise = true;
  EXPECT_EQ(w.pass(kForward), 1);
}

TEST_P(CachedWeights, APassThatFailsLeavesNoCopy) {
  Cached w(small(GetParam()));
  for (const bool trusted : {true, false}) {
    w.trusted = trusted;
    w.pass(kTrain);
    w.write_and_tell();
    const octile_weight_call call = w.call(kTrain);
    octile_layer_operand operand = w.memory();
    ASSERT_EQ(octile_weight_begin(w.weight.get(), &call, &operand, nullptr), OCTILE_OK);
    EXPECT_EQ(operand.state, OCTILE_LAYER_QUANTIZE);  // and no end
    EXPECT_EQ(w.pass(kBackward), 1);
    EXPECT_TRUE(w.holds_today(true));
    EXPECT_EQ(w.pass(kTrain), trusted ? 1 : 2);
    EXPECT_TRUE(w.holds_today(false) && w.holds_today(true));
  }
}

TEST_P(CachedWeights, ReplaysWithoutGradientsCompare) {
  Cached w(small(GetParam()));
  w.pass(kForward);
  w.capture = 1;
  w.pass(kForward);
  const octile_layer_operand captured = w.last;
  w.capture = 0;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(w.run(captured), i == 0 ? 0 : 1);
    EXPECT_TRUE(w.holds_today(false));
    w.write();
    EXPECT_EQ(w.pass(kTrain), 1);
    EXPECT_TRUE(w.holds_today(false));
    EXPECT_EQ(w.pass(kBackward), 1);  // the captured comparison does not make W^T
    EXPECT_TRUE(w.holds_today(true));
    EXPECT_EQ(w.run(captured), 0);
    w.write();
  }
}

TEST_P(CachedWeights, ReplaysWithGradientsQuantize) {
  Cached w(small(GetParam()));
  w.pass(kTrain);
  w.capture = 1;
  w.pass(kTrain);
  EXPECT_EQ(w.last.fingerprint, nullptr);
  EXPECT_EQ(w.last.skip, nullptr);
  const octile_layer_operand captured = w.last;
  w.capture = 0;
  EXPECT_EQ(w.run(captured), 2);
  EXPECT_EQ(w.pass(kTrain), 2);  // the eager pass does not know what replays have made
}

TEST_P(CachedWeights, ReplaysOfATrustedWeightAskWords) {
  Cached w(small(GetParam()));
  w.trusted = w.has_words = true;
  w.pass(kForward);
  EXPECT_EQ(w.words, (std::array<std::uint32_t, 3>{1, 0, 0}));
  w.capture = 1;
  EXPECT_EQ(w.pass(kForward), 0);
  EXPECT_EQ(w.last.skip, &w.words[0]);
  const octile_layer_operand captured = w.last;
  w.capture = 0;
  EXPECT_EQ(w.run(captured), 0);
  w.write();
  ++w.epoch;
  w.words = {};
  EXPECT_EQ(w.run(captured), 1);
  EXPECT_TRUE(w.holds_today(false));
  w.pass(kTrain);
  EXPECT_EQ(w.words, (std::array<std::uint32_t, 3>{1, 1, 1}));
  // A captured step writes W and clears the words, which no stamp shows.
  w.write();
  w.words = {};
  w.replayed = true;
  EXPECT_EQ(w.pass(kForward), 1);
  EXPECT_TRUE(w.holds_today(false));
  EXPECT_EQ(w.pass(kForward), 0);
  // A write in place that the host sees clears no word.
  w.write_and_tell();
  EXPECT_EQ(w.pass(kForward), 1);
  EXPECT_TRUE(w.holds_today(false));
}

// The words are of contents that were trusted before.
TEST_P(CachedWeights, WordsAreNotAskedBehindAPauseOfTrust) {
  Cached w(small(GetParam()));
  w.trusted = w.has_words = true;
  w.capture = 1;
  w.pass(kForward);
  w.capture = 0;
  w.trusted = false;
  w.pass(kForward);
  w.write();
  w.trusted = true;
  w.capture = 2;
  EXPECT_EQ(w.pass(kForward), 1);
  EXPECT_EQ(w.last.skip, nullptr);
  EXPECT_TRUE(w.holds_today(false));
}

TEST(CachedWeight, IsOfAnyRecipe) {
  for (const char* recipe : {"blockwise", "tensorwise", "rowwise", "mxfp8", "delayed"}) {
    SCOPED_TRACE(recipe);
    LayerCase c = small(0, recipe);
    c.history = c.recipe == "delayed" ? 4 : 0;
    Cached w(c);
    EXPECT_EQ(w.pass(kTrain), 2);
    w.write();
    EXPECT_EQ(w.pass(kTrain), 2);
    EXPECT_TRUE(w.holds_today(false) && w.holds_today(true));
  }
}

// Random histories: what a pass reads is always of the contents that its rule says.
TEST_P(CachedWeights, HoldWhatTheRulesSayInRandomHistories) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto one_in = [&](unsigned n) { return random() % n == 0; };
    Cached w(small(GetParam()), seed);
    w.has_fingerprint = !one_in(4);
    std::array<std::vector<unsigned char>, 2> made;  // the codes of each copy
    std::array<bool, 2> told{};                      // of a write since
    for (int i = 0; i < 60; ++i) {
      if (one_in(3)) {
        w.write();
        if (w.trusted || one_in(2)) {
          one_in(2) ? ++w.stamp : ++w.epoch;
          told = {true, true};
        }
      }
      if (one_in(10)) {
        w.trusted = !w.trusted;
        ++w.stamp;
        told = {true, true};
      }
      if (one_in(8)) w.keeps_transposed = !w.keeps_transposed;
      const std::uint32_t uses = std::array{kForward, kTrain, kFirstLayer, kBackward}[random() % 4];
      w.pass(uses);
      for (const std::size_t copy : {std::size_t{0}, std::size_t{1}}) {
        if ((copy == 0 ? w.last.rowwise : w.last.transposed).codes == nullptr) continue;
        if (w.last.state == OCTILE_LAYER_QUANTIZE) {
          made.at(copy) = w.codes(copy == 1);
          told.at(copy) = false;
        }
        ASSERT_FALSE(told.at(copy)) << "pass " << i;
        const auto holds = (copy == 0 ? w.rowwise : w.transposed).codes.bytes();
        ASSERT_TRUE(holds == made.at(copy)) << "pass " << i;
        if (uses != kBackward && !w.trusted) {
          ASSERT_TRUE(holds == w.codes(copy == 1)) << "pass " << i;
        }
      }
    }
  }
}

TEST(CachedWeight, OutlivesItsLayerAndNotItsLibrary) {
  LibraryHandle library{""};
  LayerHandle layer = make_layer(library, small());
  WeightHandle weight = make_weight(layer.get());
  layer.reset();
  octile_library* const raw = library.get();
  EXPECT_EQ(octile_library_destroy(raw), OCTILE_INVALID_ARGUMENT);
  EXPECT_STREQ(octile_last_error(), "library has 1 weight; allowed: none, destroy them first");
  std::vector<float> w(48 * 160);
  octile_weight_call call{};
  call.struct_size = sizeof call;
  call.uses = kForward;
  octile_layer_operand of_w = operand(w.data());
  EXPECT_EQ(octile_weight_begin(weight.get(), &call, &of_w, nullptr), OCTILE_OK);
}

}  // namespace
}  // namespace octile::test
