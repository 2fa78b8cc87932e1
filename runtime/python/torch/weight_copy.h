// One FP8 copy of a weight: what it is of, how it is made, and which streams have used it.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_WEIGHT_COPY_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_WEIGHT_COPY_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "plans.h"
#include "recipes.h"
#include "scaling.h"
#include "streams.h"
#include "tensors.h"

namespace octile::binding {

// A weight as a quantiser reads it: contiguous [n, k], or [experts, n, k], whose copies lie one
// behind the other.
struct WeightSource {
  std::int64_t experts = 1, n = 0, k = 0;
  octile_dtype type{};
  RecipeCode recipe = 0;

  friend bool operator==(const WeightSource&, const WeightSource&) = default;
};
WeightSource source_of(const Tensor& weight, RecipeCode recipe);

// A copy's memory belongs to the stream that allocated it, as PyTorch's allocator sees it. Other
// streams wait until it is made, and the memory is given back when they have used it. A copy may be
// made again in the same memory, by work that runs behind the last use as a write of the weight
// does.
class WeightCopy {
 public:
  // Allocates on the stream of `place`.
  WeightCopy(const WeightSource& source, const Place& place, bool transposed);
  ~WeightCopy();
  WeightCopy(const WeightCopy&) = delete;
  WeightCopy& operator=(const WeightCopy&) = delete;

  const Quantized& quantized() const { return quantized_; }

  // In the child of a fork, where no other thread is: returns whether none was in a call of this.
  bool is_whole();

  // The copy is made where the stream of `place` has come to `point`.
  void made_at(const Place& place, std::shared_ptr<const StreamPoint> point);
  // Lets the stream of `place` wait until other streams have used the copy, to make it again.
  void before_write(const Place& place);
  // Lets the stream of `place` wait until the copy is made.
  void before(const Place& place);
  // The stream of `place` has enqueued its last use for now.
  void used_on(const Place& place);

 private:
  Place owner_;
  Quantized quantized_;
  std::mutex mutex_;
  std::shared_ptr<const StreamPoint> made_;
  void* made_stream_ = nullptr;
  std::unordered_map<void*, StreamPoint> uses_;  // the last of each other stream
};

// Quantises a weight into those of the two copies that are not null, from one read. Nothing is
// written by work that finds *skip other than 0 when it begins; null: never. `scaling` has an
// element for each expert.
void make_copies(const Tensor& weight, const WeightSource& source, const Place& place,
                 WeightCopy* rowwise, WeightCopy* transposed, const Scaling& scaling,
                 const std::uint32_t* skip);

// Returns how many times a weight was quantised in this process, and how many copies that made.
std::int64_t weight_quantizations();
std::int64_t weight_copies_made();

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_WEIGHT_COPY_H_
