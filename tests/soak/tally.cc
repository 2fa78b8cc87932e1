#include "tests/soak/tally.h"

#include <algorithm>
#include <cstring>

namespace octile::soak {

void Tally::violation(std::string_view sentence) noexcept {
  const auto number = static_cast<std::size_t>(violations_++);
  if (number >= kKept) return;
  std::memcpy(kept_[number].data(), sentence.data(), std::min(sentence.size(), kSentenceBytes - 1));
}

std::string Tally::sentences() const {
  std::string text;
  const auto count = static_cast<std::size_t>(violations_);
  for (std::size_t i = 0; i < std::min(count, kKept); ++i)
    text += "  " + std::string(kept_[i].data()) + "\n";
  return text;
}

}  // namespace octile::soak
