// Writes .safetensors files, and reads what `octile inspect --json` says of them.
#pragma once

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/command.h"

namespace octile::tests {

// A tensor of a file that a test writes.
struct Written {
  std::string name, dtype;
  std::vector<int> shape;
  std::string data;
};

inline Written bf16(const std::string& name, int rows, int cols, std::uint16_t bits = 0x3F80) {
  Written tensor{name, "BF16", {rows, cols}, {}};
  for (int i = 0; i < rows * cols; ++i) {
    const auto varied = static_cast<std::uint16_t>(bits + i % 97);
    tensor.data.append(reinterpret_cast<const char*>(&varied), sizeof(varied));
  }
  return tensor;
}

inline void write_safetensors(const fs::path& path, const std::vector<Written>& tensors) {
  json header = json::object();
  std::string data;
  for (const Written& one : tensors) {
    header[one.name] = {{"dtype", one.dtype},
                        {"shape", one.shape},
                        {"data_offsets", {data.size(), data.size() + one.data.size()}}};
    data += one.data;
  }
  const std::string text = header.dump();
  const std::uint64_t bytes = text.size();
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  file << text << data;
}

inline std::vector<json> lines_of(const Outcome& outcome) {
  std::vector<json> lines;
  std::istringstream text(outcome.out);
  for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
  return lines;
}

// Returns the values of a member of the records of tensors.
inline std::vector<std::string> names_of(const Outcome& outcome) {
  std::vector<std::string> names;
  for (const json& line : lines_of(outcome)) {
    if (line.at("what") == "tensor") names.push_back(line.at("name"));
  }
  return names;
}

// A vector of the tensor's values.
inline Written flattened(Written tensor) {
  tensor.shape = {tensor.shape[0] * tensor.shape[1]};
  return tensor;
}

// Returns a tensor of F32.
inline Written f32(const std::string& name, std::vector<int> shape,
                   const std::vector<float>& values) {
  return {name, "F32", std::move(shape),
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4)};
}

// Returns the text in one line.
inline std::string unwrapped(std::string text) {
  std::string line;
  for (const char c : text) {
    const bool is_space = c == '\n' || c == ' ';
    if (!is_space || line.empty() || line.back() != ' ') line += is_space ? ' ' : c;
  }
  return line;
}

}  // namespace octile::tests
