// Outcomes of known-answer tests on this machine's devices: `proofs.json` of the writable root. See
// FORMAT.md section 9.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "cache/file_ops.h"
#include "cache/memo_file.h"

namespace octile::cache {

// The outcome of one known-answer test on one device.
struct Proof {
  std::string device;  // UUID, 32 hex digits
  std::string driver;  // version of CUDA and file: "13.0 libcuda.so.580.95.05"
  std::string test;    // "matrix unit mma: gemm m=? n=64 ..."
  std::string digest;  // of the test and its kernels
  std::string wrong;   // what is wrong; empty: the device is right
  int sum_bits = 0;    // that a matrix unit was seen to keep of a sum; 0: not read off
  std::string date;    // "2026-11-30T16:10:00Z"
  bool is_right() const { return wrong.empty(); }
  friend bool operator==(const Proof&, const Proof&) = default;
};

std::string to_json_text(const std::vector<Proof>& proofs);
// Returns the proofs. The error names the field that is missing or of another type.
tl::expected<std::vector<Proof>, std::string> parse_proofs(std::string_view text);

// May be used by several threads and processes at once.
class Proofs {
 public:
  // root empty: nothing is kept. file_ops null: the system's.
  explicit Proofs(const std::string& root, std::shared_ptr<FileOps> file_ops = nullptr);

  const std::string& path() const { return path_; }  // empty: nothing is kept

  // Returns all proofs, or an empty list if the file does not exist. Errors: those of
  // MemoFile::read(), and code 0 for a text that parse_proofs() refuses.
  IoResult<std::vector<Proof>> read() const;

  // Adds a proof in place of those of the same device, driver, test and digest. A damaged file is
  // replaced. One that cannot be read stays, and is the error. The oldest make room for it, if the
  // file would have more than kMaxMemoBytes. If two processes do this at once, one may win for
  // both.
  IoResult<void> put(const Proof& proof) const;

 private:
  std::string path_;
  MemoFile file_;
};

}  // namespace octile::cache
