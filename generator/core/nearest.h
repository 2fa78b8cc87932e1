// The allowed word that was probably meant.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace octile {

// Returns how many letters have to be inserted, removed, replaced, or swapped with the next one, to
// turn one word into the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

// Returns the word that is nearest to `word`, if at most a third of its letters differ and not all
// of a short one's; a word that begins with `word` counts as near. It returns the first of equals.
std::optional<std::string_view> nearest(std::string_view word,
                                        std::span<const std::string_view> words);

// Returns "; did you mean 'x'?", or nothing if no word is near.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> words);

}  // namespace octile
