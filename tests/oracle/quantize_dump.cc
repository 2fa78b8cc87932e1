// Runs the library's casts and quantiser on files. The oracles written in numpy compare with its
// output files.
//   quantize_dump cast <bf16|fp16|fp32> <e4m3|e5m2> <in> <out>
//       casts every element of <in> with encode 1
//   quantize_dump quantize <canonical problem text> <rows> <in> <prefix>
//       writes <prefix>.q and .scale (row), .qt and .scalet (transposed)
//   quantize_dump dequantize <canonical problem text> <rows> <codes> <scales> <out>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "generator/core/layout.h"
#include "generator/families.h"
#include "runtime/families/quantize/complete.h"
#include "runtime/reference/cast.h"

namespace {

using octile::DType;

std::vector<char> read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

bool write(const std::string& path, const std::vector<char>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return file.good();
}

int refuse(const std::string& sentence) {
  std::cerr << "quantize_dump: " << sentence << '\n';
  return 1;
}

int cast(const std::string& from, const std::string& to, const std::string& in,
         const std::string& out) {
  const auto x = octile::parse_dtype(from);
  const auto fp8 = octile::parse_dtype(to);
  if (!x || !fp8) return refuse("unknown type " + from + " or " + to);
  const std::vector<char> bytes = read(in);
  std::vector<char> codes(bytes.size() / static_cast<std::size_t>(octile::size_of(*x)));
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const float value =
        octile::reference::load_as_float(bytes.data(), *x, static_cast<std::int64_t>(i));
    codes[i] = static_cast<char>(octile::reference::to_fp8(value, *fp8));
  }
  return write(out, codes) ? 0 : refuse("cannot write " + out);
}

// Runs a call on the host reference.
octile::Status run(const octile::QuantizeProblem& problem, const octile::QuantizeArguments& args) {
  const auto call = octile::complete(problem, args);
  if (!call) return tl::unexpected<octile::Error>(call.error());
  return call->has_work() ? octile::run_on_host(problem, *call) : octile::Status{};
}

int quantize(const std::string& text, std::int64_t rows, const std::string& in,
             const std::string& prefix) {
  const auto parsed = octile::parse_problem(text);
  if (!parsed) return refuse(parsed.error().message);
  const auto* problem = std::get_if<octile::QuantizeProblem>(&*parsed);
  if (problem == nullptr) return refuse("not a quantize problem: " + text);
  const std::vector<char> x = read(in);
  std::vector<char> data[2];
  std::vector<char> scales[2];
  for (const bool transposed : {false, true}) {
    // Row-wise codes are written without gaps between rows.
    const auto layout = octile::quantized_layout(problem->q, rows, problem->cols,
                                                 transposed ? 0 : problem->cols, transposed);
    if (!layout) {
      if (transposed && problem->output == octile::QuantizeOutput::kRowwise) continue;
      return refuse(layout.error().message);
    }
    data[transposed ? 1 : 0].resize(static_cast<std::size_t>(layout->data.bytes()));
    scales[transposed ? 1 : 0].resize(static_cast<std::size_t>(layout->scales.bytes()));
  }
  octile::QuantizeArguments args;
  args.rows = rows;
  args.x = x.data();
  args.q = data[0].data();
  args.ldq = problem->cols;
  args.scale = scales[0].data();
  if (octile::has_transposed(problem->output)) {
    args.q_transposed = data[1].data();
    args.scale_transposed = scales[1].data();
  }
  const auto status = run(*problem, args);
  if (!status) return refuse(status.error().message);
  const bool written = write(prefix + ".q", data[0]) && write(prefix + ".scale", scales[0]) &&
                       write(prefix + ".qt", data[1]) && write(prefix + ".scalet", scales[1]);
  return written ? 0 : refuse("cannot write " + prefix);
}

int dequantize(const std::string& text, std::int64_t rows, const std::string& codes,
               const std::string& scales, const std::string& out) {
  const auto parsed = octile::parse_problem(text);
  if (!parsed) return refuse(parsed.error().message);
  const auto* problem = std::get_if<octile::QuantizeProblem>(&*parsed);
  if (problem == nullptr) return refuse("not a dequantize problem: " + text);
  const std::vector<char> x = read(codes), x_scale = read(scales);
  std::vector<char> q(x.size() * static_cast<std::size_t>(octile::size_of(problem->q.dtype)));
  octile::QuantizeArguments args;
  args.rows = rows;
  args.x = x.data();
  args.q = q.data();
  args.ldx = problem->cols;
  args.source_scales.x_scale = x_scale.data();
  const auto status = run(*problem, args);
  if (!status) return refuse(status.error().message);
  return write(out, q) ? 0 : refuse("cannot write " + out);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.size() == 5 && args[0] == "cast") return cast(args[1], args[2], args[3], args[4]);
  if (args.size() == 5 && args[0] == "quantize") {
    return quantize(args[1], std::stoll(args[2]), args[3], args[4]);
  }
  if (args.size() == 6 && args[0] == "dequantize") {
    return dequantize(args[1], std::stoll(args[2]), args[3], args[4], args[5]);
  }
  return refuse("see the head of quantize_dump.cc for its arguments");
}
