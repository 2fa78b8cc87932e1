#include "weight_copy.h"

#include <atomic>
#include <utility>

namespace octile::binding {
namespace {

std::atomic<std::int64_t> quantizations{0}, copies{0};

octile_plan* plan_for(const WeightSource& source, const Place& place, Output output) {
  return quantizer(source.recipe, Role::kWeight, output, source.type, source.k, false, false,
                   place);
}

Quantized allocate_copy(const WeightSource& source, const Place& place, bool transposed) {
  octile_plan* plan = plan_for(source, place, transposed ? Output::kTransposed : Output::kRowwise);
  Quantized one =
      allocate(plan, place, source.n, 0, transposed, tensor_type(source.recipe, Role::kWeight));
  if (source.experts == 1) return one;
  return {.codes = empty(place, {source.experts * one.codes.size(0), one.codes.size(1)},
                         type_of(one.codes)),
          .scales = empty(place, {source.experts * one.scales.size(0)}, type_of(one.scales))};
}

// Where expert `index` of `experts` has its part of a copy.
Target part_of(const WeightCopy* copy, std::int64_t index, std::int64_t experts) {
  if (copy == nullptr) return {};
  const Quantized& all = copy->quantized();
  Target target = target_of(all);
  const auto step = [&](const Tensor& tensor) {
    return index * (tensor.numel() / experts) * static_cast<std::int64_t>(tensor.element_size());
  };
  target.codes = static_cast<char*>(target.codes) + step(all.codes);
  target.scales = static_cast<char*>(target.scales) + step(all.scales);
  return target;
}

}  // namespace

WeightSource source_of(const Tensor& weight, RecipeCode recipe) {
  const std::int64_t rank = weight.dim();
  return {.experts = rank == 3 ? weight.size(0) : 1,
          .n = weight.size(rank - 2),
          .k = weight.size(rank - 1),
          .type = float_type(weight, "weight"),
          .recipe = recipe};
}

WeightCopy::WeightCopy(const WeightSource& source, const Place& place, bool transposed)
    : owner_(place), quantized_(allocate_copy(source, place, transposed)) {}

WeightCopy::~WeightCopy() {
  if (uses_.empty()) return;
  try {
    const OnDevice device(owner_);
    for (const auto& [stream, use] : uses_) use.before(owner_);
  } catch (...) {  // A driver that refuses to wait has failed, and nothing that it runs counts.
  }
}

bool WeightCopy::is_whole() { return std::unique_lock(mutex_, std::try_to_lock).owns_lock(); }

void WeightCopy::made_at(const Place& place, std::shared_ptr<const StreamPoint> point) {
  const std::lock_guard lock(mutex_);
  made_ = std::move(point);
  made_stream_ = place.stream;
}

void WeightCopy::before_write(const Place& place) {
  const std::lock_guard lock(mutex_);
  if (made_ && made_stream_ != place.stream) made_->before(place);
  for (const auto& [stream, use] : uses_) {
    if (stream != place.stream) use.before(place);
  }
}

void WeightCopy::before(const Place& place) {
  const std::lock_guard lock(mutex_);
  if (made_ && made_stream_ != place.stream) made_->before(place);
}

void WeightCopy::used_on(const Place& place) {
  if (place.host || place.stream == owner_.stream || capture_of(place) != 0) return;
  const std::lock_guard lock(mutex_);
  uses_.insert_or_assign(place.stream, StreamPoint(place));
}

void make_copies(const Tensor& weight, const WeightSource& source, const Place& place,
                 WeightCopy* rowwise, WeightCopy* transposed, const Scaling& scaling,
                 const std::uint32_t* skip) {
  const Output output = rowwise == nullptr      ? Output::kTransposed
                        : transposed == nullptr ? Output::kRowwise
                                                : Output::kBoth;
  octile_plan* plan = plan_for(source, place, output);
  for (WeightCopy* copy : {rowwise, transposed}) {
    if (copy != nullptr) copy->before_write(place);
  }
  const auto* x = static_cast<const char*>(weight.data_ptr());
  const std::int64_t bytes = source.n * source.k * static_cast<std::int64_t>(weight.element_size());
  for (std::int64_t i = 0; i < source.experts; ++i) {
    const Scaling own = scaling.of_expert(i);
    quantize(plan, place,
             {.rows = source.n,
              .x = x + i * bytes,
              .skip = skip,
              .encode_scale = own.encode,
              .amax = own.amax},
             {.rowwise = part_of(rowwise, i, source.experts),
              .transposed = part_of(transposed, i, source.experts)});
  }
  ++quantizations;
  copies += output == Output::kBoth ? 2 : 1;
  if (place.host) return;
  const auto point = std::make_shared<const StreamPoint>(place);
  for (WeightCopy* copy : {rowwise, transposed}) {
    if (copy != nullptr) copy->made_at(place, point);
  }
}

std::int64_t weight_quantizations() { return quantizations.load(); }
std::int64_t weight_copies_made() { return copies.load(); }

}  // namespace octile::binding
