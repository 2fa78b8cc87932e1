// Composes a JSON object or array on one line. See cache/json_value.h for why it is not nlohmann's
// value that does; a single value of theirs, which is written with it here, frees itself without
// allocating.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace octile::cache {

class JsonText {
 public:
  explicit JsonText(char open) : text_(1, open) {}  // '{' or '['

  // Adds a member. Bytes that are not UTF-8 become U+FFFD.
  template <typename Value>
  JsonText& add(std::string_view name, const Value& value) {
    return add_raw(name, text_of(value));
  }
  template <typename Value>
  JsonText& append(const Value& value) {
    return append_raw(text_of(value));
  }
  JsonText& add_raw(std::string_view name, std::string_view json) {
    return append_raw(text_of(name) + ":" + std::string(json));
  }
  JsonText& append_raw(std::string_view json) {
    if (text_.size() > 1) text_ += ',';
    text_ += json;
    return *this;
  }
  std::string close() { return std::move(text_) + (text_.front() == '{' ? '}' : ']'); }

 private:
  template <typename Value>
  static std::string text_of(const Value& value) {
    return nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  std::string text_;
};

}  // namespace octile::cache
