#include "cache/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>

namespace octile {
namespace {

// Returns a text or a number as nlohmann prints it. A single value of theirs frees itself without
// allocating.
template <typename Scalar>
std::string json_text(const Scalar& value, bool ascii) {
  return nlohmann::json(value).dump(-1, ' ', ascii, nlohmann::json::error_handler_t::replace);
}

// A number that JSON has no word for stands in the text as a string of the same length, so that
// positions stay.
struct Substitute {
  std::size_t string;  // of the text's strings, keys among them, which one it is
  std::size_t end;     // of the word in the text
  double number;
};

struct Word {
  std::string_view python, json;
  double number;
};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::array kWords = std::to_array<Word>({
    {"-Infinity", R"("-Infini")", -kInfinity},
    {"Infinity", R"("Infini")", kInfinity},
    {"NaN", R"("N")", std::numeric_limits<double>::quiet_NaN()},
});
static_assert(std::ranges::all_of(kWords,
                                  [](const Word& w) { return w.python.size() == w.json.size(); }));

// Returns the end of the string that begins at `at`.
std::size_t string_end(std::string_view text, std::size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\' ? 1U : 0U;
  return std::min(at + 1, text.size());
}

// Replaces Python's words in `text`, which stays empty if there is none.
std::vector<Substitute> substitute(std::string_view from, std::string& text) {
  constexpr std::string_view kOfWords =
      "+-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz";
  std::vector<Substitute> all;
  if (from.find("Infinity") == std::string_view::npos && from.find("NaN") == std::string_view::npos)
    return all;
  text = from;
  std::size_t strings = 0;
  for (std::size_t at = 0; at < from.size();) {
    if (from[at] == '"') {
      at = string_end(from, at);
      ++strings;
      continue;
    }
    const std::size_t end = std::min(from.find_first_not_of(kOfWords, at), from.size());
    const auto* const word = std::ranges::find(kWords, from.substr(at, end - at),
                                               [](const Word& w) { return w.python; });
    if (word != kWords.end()) {
      text.replace(at, word->json.size(), word->json);
      all.push_back({strings++, end, word->number});
    }
    at = std::max(end, at + 1);
  }
  return all;
}

}  // namespace

// Builds a value from the events of nlohmann's parser. Each function returns false to end the
// parse.
class Json::Parser {
 public:
  Parser(std::size_t most_depth, bool allows_twice, const std::vector<Substitute>& substitutes)
      : most_depth_(most_depth), allows_twice_(allows_twice), substitutes_(substitutes) {}

  bool null() { return add(Json()); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(std::int64_t value) { return add(value); }
  bool number_unsigned(std::uint64_t value) { return add(value); }
  bool number_float(double value, const std::string&) { return add(value); }
  bool string(std::string& value) {
    const Substitute* substitute = next_substitute();
    return substitute == nullptr ? add(std::move(value)) : add(substitute->number);
  }
  bool binary(nlohmann::json::binary_t&) { return false; }  // no JSON text has one
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    if (const Substitute* substitute = next_substitute()) return refuse({.byte = substitute->end});
    if (!allows_twice_ && !open_.back().names.insert(name).second)
      return refuse({JsonMistake::Kind::kTwice, 0, name});
    open_.back().value->value_.object->push_back({std::move(name), Json()});
    return true;
  }
  bool parse_error(std::size_t byte, const std::string&, const nlohmann::detail::exception& error) {
    constexpr int kOutOfRange = 406;
    using Kind = JsonMistake::Kind;
    return refuse({error.id == kOutOfRange ? Kind::kNumber : Kind::kSyntax, byte});
  }

  JsonMistake mistake() const { return mistake_; }
  Json take() { return std::move(root_); }

 private:
  // An array or object that has begun. It stays where it is while it is filled: nothing is added
  // to the value around it meanwhile.
  struct Open {
    Json* value;
    std::set<std::string> names;
  };

  // Returns what the next string of the text stands for, or null: it is a string.
  const Substitute* next_substitute() {
    const bool is_one = next_ < substitutes_.size() && substitutes_[next_].string == strings_;
    ++strings_;
    return is_one ? &substitutes_[next_++] : nullptr;
  }
  bool refuse(JsonMistake mistake) {
    mistake_ = std::move(mistake);
    return false;
  }
  // Returns where the next value belongs.
  Json& place() {
    if (open_.empty()) return root_;
    Json& around = *open_.back().value;
    return around.is_object() ? around.value_.object->back().value
                              : around.value_.array->emplace_back();
  }
  bool add(Json value) {
    place() = std::move(value);
    return true;
  }
  bool open(Json value) {
    if (open_.size() == most_depth_) return refuse({JsonMistake::Kind::kTooDeep});
    Json& opened = place();
    opened = std::move(value);
    open_.push_back({&opened, {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const std::size_t most_depth_;
  const bool allows_twice_;
  const std::vector<Substitute>& substitutes_;
  std::size_t next_ = 0, strings_ = 0;
  Json root_;
  std::vector<Open> open_;  // outermost first
  JsonMistake mistake_;
};

class Json::Printer {
 public:
  Printer(std::size_t indent, bool ascii) : indent_(indent), ascii_(ascii) {}

  std::string print(const Json& json) {
    add(json);
    return std::move(to_);
  }

 private:
  void add(const Json& json) {
    switch (json.kind_) {
      case Kind::kNull:
        to_ += "null";
        break;
      case Kind::kBoolean:
        to_ += json.value_.boolean ? "true" : "false";
        break;
      case Kind::kInteger:
        to_ += fmt::format_int(json.value_.integer).str();
        break;
      case Kind::kUnsigned:
        to_ += fmt::format_int(json.value_.natural).str();
        break;
      case Kind::kNumber:
        to_ += json_text(json.value_.number, ascii_);
        break;
      case Kind::kString:
        to_ += json_text(*json.value_.string, ascii_);
        break;
      case Kind::kArray:
        add_all(*json.value_.array, "[]", [this](const Json& value) { add(value); });
        break;
      case Kind::kObject:
        add_all(json.items(), "{}", [this](const Member& member) {
          to_ += json_text(member.name, ascii_) + (indent_ == 0 ? ":" : ": ");
          add(member.value);
        });
        break;
    }
  }

  void add_all(const auto& values, const char* ends, const auto& add_one) {
    ++depth_;
    char before = ends[0];
    for (const auto& value : values) {
      to_ += std::exchange(before, ',');
      end_line();
      add_one(value);
    }
    --depth_;
    if (values.empty()) {
      to_ += ends[0];
    } else {
      end_line();
    }
    to_ += ends[1];
  }

  void end_line() {
    if (indent_ > 0) to_.append(1, '\n').append(depth_ * indent_, ' ');
  }

  const std::size_t indent_;
  const bool ascii_;
  std::size_t depth_ = 0;
  std::string to_;
};

Json::Json(std::string value) {
  value_.string = new std::string(std::move(value));
  kind_ = Kind::kString;
}
Json::Json(std::string_view value) : Json(std::string(value)) {}
Json::Json(const char* value) : Json(std::string(value)) {}
Json::Json(std::initializer_list<Member> members) {
  value_.object = new std::vector<Member>(members);
  kind_ = Kind::kObject;
}

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

Json Json::array(std::initializer_list<Json> values) {
  Json json;
  json.value_.array = new std::vector<Json>(values);
  json.kind_ = Kind::kArray;
  return json;
}

Json Json::object() {
  Json json;
  json.value_.object = new std::vector<Member>();
  json.kind_ = Kind::kObject;
  return json;
}

std::optional<bool> Json::boolean() const {
  return kind_ == Kind::kBoolean ? std::optional(value_.boolean) : std::nullopt;
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

std::size_t Json::size() const {
  return is_array() ? value_.array->size() : is_object() ? value_.object->size() : 0;
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

const Json& Json::at(std::string_view name) const {
  if (const Json* found = find(name)) return *found;
  throw std::out_of_range(fmt::format("JSON without the member '{}'", name));
}
Json& Json::at(std::string_view name) { return const_cast<Json&>(std::as_const(*this).at(name)); }
const Json& Json::at(std::size_t index) const {
  if (is_array() && index < size()) return begin()[index];
  throw std::out_of_range(fmt::format("JSON without the value {}", index));
}
Json& Json::at(std::size_t index) { return const_cast<Json&>(std::as_const(*this).at(index)); }

Json& Json::push_back(Json value) {
  value_.array->push_back(std::move(value));
  return *this;
}

Json& Json::add(std::string_view name, Json value) {
  value_.object->push_back({std::string(name), std::move(value)});
  return *this;
}

Json& Json::set(std::string_view name, Json value) {
  const Json* found = find(name);
  if (found == nullptr) return add(name, std::move(value));
  const_cast<Json&>(*found) = std::move(value);
  return *this;
}

void Json::sort_members() {
  if (is_array()) std::ranges::for_each(*value_.array, &Json::sort_members);
  if (!is_object()) return;
  std::ranges::sort(*value_.object, {}, &Member::name);
  for (Member& member : *value_.object) member.value.sort_members();
}

std::string Json::dump(std::size_t indent) const { return Printer(indent, false).print(*this); }
std::string Json::dump_ascii(std::size_t indent) const {
  return Printer(indent, true).print(*this);
}

bool operator==(const Json& a, const Json& b) {
  if (const auto one = a.integer(), other = b.integer(); one && other) return *one == *other;
  if (const auto one = a.number(), other = b.number(); one || other) return one == other;
  if (a.kind_ != b.kind_) return false;
  if (a.is_object()) return a.items() == b.items();
  if (a.is_array()) return *a.value_.array == *b.value_.array;
  if (const std::string* text = a.string()) return *text == *b.string();
  return a.boolean() == b.boolean();
}

tl::expected<Json, std::string> parse_object(std::string_view text, std::string_view where) {
  const std::vector<Substitute> none;
  Json::Parser parser(kMaxJsonDepth, true, none);
  const bool parsed = nlohmann::json::sax_parse(text, &parser);
  if (parser.mistake().kind == JsonMistake::Kind::kTooDeep)
    return tl::unexpected(fmt::format("{}: values nest more than {} deep", where, kMaxJsonDepth));
  Json value = parser.take();
  if (!parsed || !value.is_object())
    return tl::unexpected(fmt::format("{}: not a JSON object", where));
  return value;
}

tl::expected<Json, JsonMistake> parse_json(std::string_view text, std::size_t most_depth) {
  std::string replaced;
  const std::vector<Substitute> substitutes = substitute(text, replaced);
  Json::Parser parser(most_depth, false, substitutes);
  if (!nlohmann::json::sax_parse(replaced.empty() ? text : std::string_view(replaced), &parser))
    return tl::unexpected(parser.mistake());
  return parser.take();
}

}  // namespace octile
