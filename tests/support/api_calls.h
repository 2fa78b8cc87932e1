// Valid calls of the C API. Tests change their parameters and fields by name: the rows of
// tests/cells/refusals.txt.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "octile/layers.h"
#include "octile/pieces.h"
#include "tests/support/api_handles.h"
#include "tests/support/fake_device.h"
#include "tests/support/layer_case.h"
#include "tests/support/refusal_table.h"

namespace octile::test {

// Memory that calls get, in parts that are aligned to 256 bytes and hold a pattern.
class CallMemory {
 public:
  template <typename T = void>
  T* take(std::size_t bytes = std::size_t{1} << 17) {
    EXPECT_LE(used_ + bytes, kBytes);
    T* const part = bytes_.at<T>(used_);
    std::memset(static_cast<void*>(part), 0x5a, bytes);
    used_ += (bytes + 255) / 256 * 256;
    return part;
  }
  std::vector<unsigned char> contents() {
    return {bytes_.at<unsigned char>(), bytes_.at<unsigned char>() + used_};
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{1} << 23;
  Bytes bytes_{kBytes};
  std::size_t used_ = 0;
};

// One call of a C function, and what it is given.
struct ApiCall {
  Fields fields;
  std::function<octile_status()> run;
  std::function<void()> destroy = [] {};  // what an accepted call has created
  std::vector<std::shared_ptr<void>> kept;

  // Keeps a value as long as the call. A struct gets its size.
  template <typename T>
  T& keep(T value = {}) {
    if constexpr (requires { value.struct_size; }) value.struct_size = sizeof(T);
    auto made = std::make_shared<T>(value);
    kept.push_back(made);
    return *made;
  }
  void add(const Fields& more, const std::string& prefix = "") {
    for (Field field : more) {
      field.name = prefix + field.name;
      fields.push_back(std::move(field));
    }
  }
  // Sets the function. Its parameters are fields with these names.
  template <typename... T>
  void set(octile_status (*function)(T...), const std::array<const char*, sizeof...(T)>& names,
           std::type_identity_t<T>... values) {
    auto& parameters = keep(std::tuple<T...>(values...));
    std::apply(
        [&](auto&... parameter) {
          std::size_t i = 0;
          (fields.emplace_back(names[i++], &parameter), ...);
        },
        parameters);
    run = [function, &parameters] { return std::apply(function, parameters); };
  }
};

template <typename... T>
ApiCall call_of(octile_status (*function)(T...), const std::array<const char*, sizeof...(T)>& names,
                std::type_identity_t<T>... values) {
  ApiCall call;
  call.set(function, names, values...);
  return call;
}

// Returns fields with the names of expressions, from which a leading "a." or "p." is taken.
template <typename... T>
Fields named(std::string_view names, T&... fields) {
  Fields made;
  const auto next = [&names] {
    const std::size_t end = std::min(names.find(','), names.size());
    std::string_view name = names.substr(0, end);
    name.remove_prefix(std::min(name.find_first_not_of(' '), end));
    if (name.starts_with("a.") || name.starts_with("p.")) name.remove_prefix(2);
    names.remove_prefix(std::min(end + 1, names.size()));
    return std::string(name);
  };
  (made.emplace_back(next(), &fields), ...);
  return made;
}
#define OCTILE_FIELDS(...) named(#__VA_ARGS__, __VA_ARGS__)

Fields fields_of(octile_layer_operand& a);

// Makes calls that are valid, for the plans, layers and pieces of a table's bases. A live device is
// the fake driver's.
class Calls {
 public:
  explicit Calls(const RefusalTable& table) : table_(table) {}

  // Returns the call of a C function on a base, before a row changes it.
  Result<ApiCall> make(const std::string& function, const std::string& base);
  std::vector<unsigned char> contents() { return memory_.contents(); }

  using Maker = std::function<ApiCall(Calls&, const std::string& base)>;
  static const std::map<std::string, Maker>& makers();

 private:
  struct Layer {
    LayerHandle handle;
    octile_layer_desc desc;
  };

  // Creates what a base stands for, by a call whose parameter `name` points to where it goes. The
  // memory is that of this call alone.
  template <typename Handle>
  std::pair<Handle*, ApiCall> create(const std::string& base, const char* name) {
    ApiCall call = make(table_.bases.at(base).call, base).value();
    EXPECT_EQ(call.run(), OCTILE_OK) << base << ": " << octile_last_error();
    const Field& field = *std::ranges::find(call.fields, name, &Field::name);
    Handle* made = nullptr;
    std::memcpy(&made, *static_cast<void**>(field.at), sizeof made);
    return {made, std::move(call)};
  }
  // Made once, with other memory than that of the call.
  octile_plan* plan(const std::string& base);
  const Layer& layer(const std::string& base);

  // Returns memory for a struct or number of the caller's, with these bytes.
  template <typename T>
  T* put(T value = {}) {
    if constexpr (requires { value.struct_size; }) value.struct_size = sizeof(T);
    T* const at = memory_.take<T>(sizeof(T));
    std::memcpy(static_cast<void*>(at), &value, sizeof value);
    return at;
  }
  void* of_layer() { return memory_.take(std::size_t{1} << 19); }  // any tensor of a layer
  // Returns numbers of groups, whose elements are fields.
  const std::int32_t* rows_of_groups(ApiCall& call);
  float* scaling_of(const Layer& on);
  // Gives a call on a layer its tokens, groups and workspace.
  template <typename Args>
  void give_common(ApiCall& call, Args& a, const Layer& on, bool forward);
  // Returns where a create function puts what it makes.
  template <typename Handle>
  Handle** handle(ApiCall& call, octile_status (*destroy)(Handle*)) {
    auto** made = memory_.take<Handle*>(sizeof(Handle*));
    call.destroy = [made, destroy] { EXPECT_EQ(destroy(*made), OCTILE_OK); };
    return made;
  }

  ApiCall library_create(const std::string& base);
  ApiCall plan_create(const std::string& base);
  ApiCall gemm_plan_create(const std::string& base);
  ApiCall quantize_plan_create(const std::string& base);
  ApiCall gemm_run(const std::string& base);
  ApiCall quantize_run(const std::string& base);
  ApiCall scale_update_run(const std::string& base);
  ApiCall plan_problem(const std::string& base);
  ApiCall pieces_create(const std::string& base);
  ApiCall pieces_run(const std::string& base);

  ApiCall layer_create(const std::string& base);
  ApiCall layer_forward(const std::string& base);
  ApiCall layer_backward(const std::string& base);
  ApiCall layer_quantize(const std::string& base);
  ApiCall layer_update_scales(const std::string& base);
  ApiCall weight_begin(const std::string& base);

  ApiCall plan_prepare_with(const std::string& base);
  ApiCall layer_prepare_with(const std::string& base);
  ApiCall tune(const std::string& base);
  ApiCall records_find(const std::string& base);
  ApiCall records_load(const std::string& base);
  ApiCall records_merge(const std::string& base);
  // Returns a list of one file of records. The file, the folder that it is in and the list's first
  // path are fields.
  const char** paths_of_records(ApiCall& call);

  const RefusalTable& table_;
  FakeDevice device_;
  TempFolder folder_;
  LibraryHandle library_{""};
  CallMemory memory_;
  Texts texts_;
  LayerCase plain_layer_;
  std::map<std::string, PlanHandle> plans_;
  std::map<std::string, Layer> layers_;
};

}  // namespace octile::test
