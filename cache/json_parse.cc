#include "cache/json_parse.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace octile::cache {
namespace {

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

// Builds a value from the parser's events. Each function returns false to end the parse.
template <typename Json>
class JsonBuilder {
 public:
  JsonBuilder(std::size_t most_depth, const std::vector<Substitute>& substitutes)
      : most_depth_(most_depth), substitutes_(substitutes) {}

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(std::int64_t value) { return add(value); }
  bool number_unsigned(std::uint64_t value) { return add(value); }
  bool number_float(double value, const std::string&) { return add(value); }
  bool string(std::string& value) {
    const Substitute* substitute = next_substitute();
    return substitute == nullptr ? add(std::move(value)) : add(substitute->number);
  }
  bool binary(typename Json::binary_t&) { return false; }  // no JSON text has one
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() {
    const auto& members = open_.back()->template get_ref<const Members&>();
    if constexpr (!kIsSorted) {
      std::vector<std::string_view> names;
      names.reserve(members.size());
      for (const auto& member : members) names.push_back(member.first);
      std::ranges::sort(names);
      const auto twice = std::ranges::adjacent_find(names);
      if (twice != names.end()) return refuse_twice(std::string(*twice));
    }
    open_.pop_back();
    return true;
  }
  bool end_array() {
    open_.pop_back();
    return true;
  }
  bool key(std::string& name) {
    if (const Substitute* substitute = next_substitute()) return refuse_syntax(substitute->end);
    auto& members = open_.back()->template get_ref<Members&>();
    if constexpr (kIsSorted) {
      const auto [place, is_new] = members.try_emplace(name);
      if (!is_new) return refuse_twice(name);
      member_ = &place->second;
    } else {
      // The list itself: what ordered_map adds by walks all members.
      auto& list = static_cast<typename Members::Container&>(members);
      list.emplace_back(std::move(name), Json());
      member_ = &list.back().second;
    }
    return true;
  }
  bool parse_error(std::size_t byte, const std::string&, const nlohmann::detail::exception& error) {
    constexpr int kOutOfRange = 406;
    if (error.id == kOutOfRange) mistake_.kind = JsonMistake::Kind::kNumber;
    return refuse_syntax(byte);
  }

  JsonMistake mistake() const { return mistake_; }
  Json take() { return std::move(root_); }

 private:
  using Members = typename Json::object_t;
  static constexpr bool kIsSorted = std::is_same_v<Json, nlohmann::json>;

  // Returns what the next string of the text stands for, or null: it is a string.
  const Substitute* next_substitute() {
    const bool is_one = next_ < substitutes_.size() && substitutes_[next_].string == strings_;
    ++strings_;
    return is_one ? &substitutes_[next_++] : nullptr;
  }
  bool refuse_syntax(std::size_t byte) {
    mistake_.byte = byte;
    return false;
  }
  bool refuse_twice(std::string name) {
    mistake_ = {JsonMistake::Kind::kTwice, 0, std::move(name)};
    return false;
  }
  // Returns where the next value belongs. A value that is being filled stays where it is: nothing
  // is added to its container meanwhile.
  Json& place() {
    if (open_.empty()) return root_;
    if (open_.back()->is_object()) return *member_;
    return open_.back()->template get_ref<typename Json::array_t&>().emplace_back();
  }
  template <typename Value>
  bool add(Value&& value) {
    place() = Json(std::forward<Value>(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() == most_depth_) {
      mistake_.kind = JsonMistake::Kind::kTooDeep;
      return false;
    }
    Json& opened = place();
    opened = std::move(value);
    open_.push_back(&opened);
    return true;
  }

  const std::size_t most_depth_;
  const std::vector<Substitute>& substitutes_;
  std::size_t next_ = 0, strings_ = 0;
  Json root_;
  std::vector<Json*> open_;  // arrays and objects that have begun, outermost first
  Json* member_ = nullptr;   // the value of the last key
  JsonMistake mistake_;
};

}  // namespace

template <typename Json>
tl::expected<Json, JsonMistake> parse_json(std::string_view text, std::size_t most_depth) {
  std::string replaced;
  const std::vector<Substitute> substitutes = substitute(text, replaced);
  JsonBuilder<Json> builder(most_depth, substitutes);
  if (!Json::sax_parse(replaced.empty() ? text : std::string_view(replaced), &builder))
    return tl::unexpected(builder.mistake());
  return builder.take();
}

template tl::expected<nlohmann::json, JsonMistake> parse_json(std::string_view, std::size_t);
template tl::expected<nlohmann::ordered_json, JsonMistake> parse_json(std::string_view,
                                                                      std::size_t);

}  // namespace octile::cache
