#include "cache/json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace octile {
namespace {

// Returns a text or a number as nlohmann prints it. A single value of theirs frees itself without
// allocating.
template <typename Scalar>
std::string json_text(const Scalar& value, bool ascii) {
  return nlohmann::json(value).dump(-1, ' ', ascii, nlohmann::json::error_handler_t::replace);
}

}  // namespace

// Builds a value from the events of nlohmann's parser. Each function returns false to end the
// parse.
class Json::Parser {
 public:
  bool null() { return add(Json()); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(std::int64_t value) { return add(value); }
  bool number_unsigned(std::uint64_t value) { return add(value); }
  bool number_float(double value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(nlohmann::json::binary_t&) { return false; }  // no JSON text has one
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    open_.back()->value_.object->push_back({std::move(name), Json()});
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) {
    return false;
  }

  bool too_deep() const { return too_deep_; }
  Json take() { return std::move(root_); }

 private:
  // Returns where the next value belongs. A value that is being filled stays where it is: nothing
  // is added to the value around it meanwhile.
  Json& place() {
    if (open_.empty()) return root_;
    if (open_.back()->is_object()) return open_.back()->value_.object->back().value;
    return open_.back()->value_.array->emplace_back();
  }
  bool add(Json value) {
    place() = std::move(value);
    return true;
  }
  bool open(Json value) {
    if (open_.size() == std::size_t{kMaxJsonDepth}) {
      too_deep_ = true;
      return false;
    }
    Json& opened = place();
    opened = std::move(value);
    open_.push_back(&opened);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Json*> open_;  // arrays and objects that have begun, outermost first
  bool too_deep_ = false;
};

Json::Json(std::string value) {
  value_.string = new std::string(std::move(value));
  kind_ = Kind::kString;
}
Json::Json(std::string_view value) : Json(std::string(value)) {}
Json::Json(const char* value) : Json(std::string(value)) {}

Json::Json(const Json& other) : value_(other.value_) {
  switch (other.kind_) {
    case Kind::kString:
      value_.string = new std::string(*other.value_.string);
      break;
    case Kind::kArray:
      value_.array = new std::vector<Json>(*other.value_.array);
      break;
    case Kind::kObject:
      value_.object = new std::vector<Member>(*other.value_.object);
      break;
    default:
      break;
  }
  kind_ = other.kind_;
}

Json::Json(Json&& other) noexcept
    : kind_(std::exchange(other.kind_, Kind::kNull)), value_(other.value_) {}

Json& Json::operator=(Json other) noexcept {
  std::swap(kind_, other.kind_);
  std::swap(value_, other.value_);
  return *this;
}

Json::~Json() {
  if (kind_ == Kind::kString) delete value_.string;
  if (kind_ == Kind::kArray) delete value_.array;
  if (kind_ == Kind::kObject) delete value_.object;
}

Json Json::array() {
  Json json;
  json.value_.array = new std::vector<Json>();
  json.kind_ = Kind::kArray;
  return json;
}

Json Json::object() {
  Json json;
  json.value_.object = new std::vector<Member>();
  json.kind_ = Kind::kObject;
  return json;
}

std::optional<std::int64_t> Json::integer() const {
  if (kind_ == Kind::kInteger) return value_.integer;
  if (kind_ != Kind::kUnsigned || !std::in_range<std::int64_t>(value_.natural)) return std::nullopt;
  return static_cast<std::int64_t>(value_.natural);
}

std::optional<double> Json::number() const {
  if (kind_ == Kind::kNumber) return value_.number;
  if (kind_ == Kind::kInteger) return static_cast<double>(value_.integer);
  if (kind_ == Kind::kUnsigned) return static_cast<double>(value_.natural);
  return std::nullopt;
}

const Json* Json::begin() const { return is_array() ? value_.array->data() : nullptr; }
const Json* Json::end() const {
  return is_array() ? value_.array->data() + value_.array->size() : nullptr;
}

const Json* Json::find(std::string_view name) const {
  if (!is_object()) return nullptr;
  for (std::size_t i = items().size(); i > 0; --i) {
    if (items()[i - 1].name == name) return &items()[i - 1].value;
  }
  return nullptr;
}

Json& Json::push_back(Json value) {
  value_.array->push_back(std::move(value));
  return *this;
}

Json& Json::add(std::string_view name, Json value) {
  value_.object->push_back({std::string(name), std::move(value)});
  return *this;
}

void Json::print(std::string& to, bool ascii) const {
  switch (kind_) {
    case Kind::kNull:
      to += "null";
      break;
    case Kind::kBoolean:
      to += value_.boolean ? "true" : "false";
      break;
    case Kind::kInteger:
      to += fmt::format_int(value_.integer).str();
      break;
    case Kind::kUnsigned:
      to += fmt::format_int(value_.natural).str();
      break;
    case Kind::kNumber:
      to += json_text(value_.number, ascii);
      break;
    case Kind::kString:
      to += json_text(*value_.string, ascii);
      break;
    case Kind::kArray: {
      char before = '[';
      for (const Json& value : *this) {
        to += std::exchange(before, ',');
        value.print(to, ascii);
      }
      to += before == '[' ? "[]" : "]";
      break;
    }
    case Kind::kObject: {
      char before = '{';
      for (const Member& member : items()) {
        to += std::exchange(before, ',');
        to += json_text(member.name, ascii) + ":";
        member.value.print(to, ascii);
      }
      to += before == '{' ? "{}" : "}";
      break;
    }
  }
}

std::string Json::dump() const {
  std::string text;
  print(text, false);
  return text;
}

std::string Json::dump_ascii() const {
  std::string text;
  print(text, true);
  return text;
}

tl::expected<Json, std::string> parse_object(std::string_view text, std::string_view where) {
  Json::Parser parser;
  const bool parsed = nlohmann::json::sax_parse(text, &parser);
  if (parser.too_deep()) {
    return tl::unexpected(fmt::format("{}: values nest more than {} deep", where, kMaxJsonDepth));
  }
  Json value = parser.take();
  if (!parsed || !value.is_object())
    return tl::unexpected(fmt::format("{}: not a JSON object", where));
  return value;
}

}  // namespace octile
