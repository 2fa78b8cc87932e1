#include "cache/json_value.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace octile::cache {
namespace {

// Builds a value from the parser's events. Each function returns false to end the parse.
class Builder {
 public:
  using Json = nlohmann::json;

  bool null() { return add(JsonValue()); }
  bool boolean(bool value) { return add(JsonValue(value)); }
  bool number_integer(std::int64_t value) { return add(JsonValue(value)); }
  bool number_unsigned(std::uint64_t value) { return add(JsonValue(value)); }
  bool number_float(double value, const std::string&) { return add(JsonValue(value)); }
  bool string(std::string& value) { return add(JsonValue(std::move(value))); }
  bool binary(Json::binary_t&) { return false; }  // no JSON text has one
  bool start_object(std::size_t) { return open(JsonValue(JsonValue::Object())); }
  bool start_array(std::size_t) { return open(JsonValue(JsonValue::Array())); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    JsonValue::Object& object = *open_.back()->object();
    object.names.push_back(std::move(name));
    object.values.emplace_back();
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) {
    return false;
  }

  bool too_deep() const { return too_deep_; }
  JsonValue take() { return std::move(root_); }

 private:
  // Returns where the next value belongs. A value that is being filled stays where it is: nothing
  // is added to its container meanwhile.
  JsonValue& place() {
    if (open_.empty()) return root_;
    if (JsonValue::Object* object = open_.back()->object()) return object->values.back();
    return open_.back()->array()->emplace_back();
  }
  bool add(JsonValue value) {
    place() = std::move(value);
    return true;
  }
  bool open(JsonValue value) {
    if (open_.size() == std::size_t{kMaxJsonDepth}) {
      too_deep_ = true;
      return false;
    }
    JsonValue& opened = place();
    opened = std::move(value);
    open_.push_back(&opened);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  JsonValue root_;
  std::vector<JsonValue*> open_;  // arrays and objects that have begun, outermost first
  bool too_deep_ = false;
};

}  // namespace

std::optional<std::int64_t> JsonValue::integer() const {
  if (is(kInteger)) return std::get<kInteger>(value_);
  if (!is(kUnsigned) || !std::in_range<std::int64_t>(std::get<kUnsigned>(value_)))
    return std::nullopt;
  return static_cast<std::int64_t>(std::get<kUnsigned>(value_));
}

std::optional<double> JsonValue::number() const {
  if (is(kNumber)) return std::get<kNumber>(value_);
  if (is(kInteger)) return static_cast<double>(std::get<kInteger>(value_));
  if (is(kUnsigned)) return static_cast<double>(std::get<kUnsigned>(value_));
  return std::nullopt;
}

const JsonValue* JsonValue::find(std::string_view name) const {
  const Object* members = object();
  if (members == nullptr) return nullptr;
  for (std::size_t i = members->names.size(); i > 0; --i) {
    if (members->names[i - 1] == name) return &members->values[i - 1];
  }
  return nullptr;
}

tl::expected<JsonValue, std::string> parse_object(std::string_view text, std::string_view where) {
  Builder builder;
  const bool parsed = nlohmann::json::sax_parse(text, &builder);
  if (builder.too_deep()) {
    return tl::unexpected(fmt::format("{}: values nest more than {} deep", where, kMaxJsonDepth));
  }
  JsonValue value = builder.take();
  if (!parsed || value.object() == nullptr)
    return tl::unexpected(fmt::format("{}: not a JSON object", where));
  return value;
}

}  // namespace octile::cache
